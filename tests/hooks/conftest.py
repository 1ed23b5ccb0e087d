import signal

import pytest

from tests.fixtures import built, seeded  # noqa: F401


@pytest.fixture
def ctrl_c():
    """SIGINT raises KeyboardInterrupt: jobs in a shell's background begin with it ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)
