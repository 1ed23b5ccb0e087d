from tests.fixtures import built, seeded  # noqa: F401
