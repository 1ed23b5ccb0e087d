from tests.fixtures import built  # noqa: F401
