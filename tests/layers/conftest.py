from tests.fixtures import seeded  # noqa: F401
