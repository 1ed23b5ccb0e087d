"""What models become on several devices is what the golden file says."""

import pytest

from tests.golden.lowered import RECORDS, difference, read, summary, texts
from tests.golden.models import MODELS

GOLDEN = read()
EACH = ("intel-cpu", "sm_86")  # the other records' kernels differ little from one model to the next: a third of the models shows them
CASES = [(name, record) for k, name in enumerate(MODELS) for record in RECORDS if record in EACH or k % 3 == 0]


@pytest.mark.parametrize("name, record", CASES)
def test_launches_are_the_golden_files(name, record):
    text = difference(name, record, GOLDEN[name][record], summary(name, record))
    assert not text, f"{text}\nIf that is meant, `python -m tests.golden --write` rewrites the file."


def test_texts_are_those_of_the_kernels_without_their_names():
    found = texts("xor", "intel-cpu")
    assert set(found) == set(GOLDEN["xor"]["intel-cpu"])
    for text in found.values():
        assert "void kernel_(" in text and text.startswith("// ")
    assert found == texts("xor", "intel-cpu")
