"""What models become on several devices is what the golden file says."""

import keras
import pytest

from keras_ocl.lowering import lower
from tests.golden.lowered import RECORDS, difference, read, summary, texts, traits
from tests.golden.models import APPLICATIONS, MODELS

GOLDEN = read()
EACH = (
    "intel-cpu",
    "sm_86",
)  # the other records' kernels differ little from one model to the next: a third of the smaller models shows them
FEWER = [name for k, name in enumerate(MODELS) if k % 3 == 0 and name not in APPLICATIONS]
CASES = [(name, record) for name in MODELS for record in RECORDS if record in EACH or name in FEWER]


@pytest.mark.parametrize("name, record", CASES)
def test_launches_are_the_golden_files(name, record):
    text = difference(name, record, GOLDEN[name][record], summary(name, record))
    assert not text, f"{text}\nIf that is meant, `python -m tests.golden --write` rewrites the file."


def test_arenas_are_little_larger_than_what_is_alive_at_once():
    steps = []
    for name in ("small_cnn", "cifar_cnn", "wide_residual", "transformer", "bidirectional_masked", "decoder_grouped_queries"):
        for record in EACH:
            keras.utils.clear_session()
            steps += lower(MODELS[name], traits(record), name=record)
    assert all(step.live_bytes <= step.arena_bytes <= 1.15 * step.live_bytes + 2**16 for step in steps)
    assert sum(step.arena_bytes for step in steps) <= 1.02 * sum(step.live_bytes for step in steps)


def test_texts_are_those_of_the_kernels_without_their_names():
    found = texts("xor", "intel-cpu")
    assert set(found) == set(GOLDEN["xor"]["intel-cpu"])
    for text in found.values():
        assert "void kernel_(" in text and text.startswith("// ")
    assert found == texts("xor", "intel-cpu")
