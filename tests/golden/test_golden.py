"""What models become on several devices is what the golden file says."""

import pytest

from tests.golden.lowered import RECORDS, difference, read, summary
from tests.golden.models import MODELS

GOLDEN = read()


@pytest.mark.parametrize("record", RECORDS)
@pytest.mark.parametrize("name", MODELS)
def test_launches_are_the_golden_files(name, record):
    text = difference(name, record, GOLDEN[name][record], summary(name, record))
    assert not text, f"{text}\nIf that is meant, `python -m tests.golden --write` rewrites the file."
