"""The memory of a step, as `keras_ocl.profile` and `python -m keras_ocl lower --kept` tell it."""

import keras
import numpy as np
import pytest
from keras import layers as L

import keras_ocl
from keras_ocl import cli
from keras_ocl.compiler.run.intermediates import Intermediate
from keras_ocl.core.origin import Origin
from keras_ocl.step_memory import StepMemory

pytestmark = pytest.mark.usefixtures("apart")  # kernels are counted

SCRIPT = """
import keras

def model():
    m = keras.Sequential([keras.Input((40,)), keras.layers.Dense(24, "tanh", name="hidden"), keras.layers.Dense(3)], name="net")
    m.compile("sgd", "mse")
    return m
"""


def one(layer, nbytes, kept, gradient=False, first=0):
    return Intermediate(Origin(layer, "Tanh", gradient), "tanh", (nbytes // 4,), "float32", nbytes, first, 5, kept)


SOME = (one("a", 4096, True), one("b", 1024, True), one("a", 8192, True), one("b", 2048, False, gradient=True, first=3))


def test_table_and_text_of_the_peak():
    memory = StepMemory("train", 16384, 512, 100, 200, SOME)
    assert memory.table() == [(Origin("a", "Tanh"), 12288, 12288), (Origin("b", "Tanh", True), 2048, 0), (Origin("b", "Tanh"), 1024, 1024)]
    assert (memory.peak_bytes, memory.kept_bytes) == (15360, 13312)
    assert [line.split() for line in str(memory).splitlines()] == [
        "train: peak 15.0 KiB at launch 3".split(),
        "arena 16.0 KiB, kept for the gradient 13.0 KiB, variables 512 bytes, read 100 bytes, written 200 bytes".split(),
        "at the peak of it kept layer: operation".split(),
        "12.0 KiB 12.0 KiB a: Tanh".split(),
        "2.0 KiB b: Tanh gradient".split(),
        "1.0 KiB 1.0 KiB b: Tanh".split(),
    ]


def test_the_text_sums_up_many_rows():
    memory = StepMemory("train", 1 << 20, 0, 0, 0, tuple(one(f"layer{k}", 4096 - 4 * k, True) for k in range(25)))
    lines = str(memory).splitlines()
    assert len(lines) == 3 + 20 + 1 and lines[-1].split()[-2:] == ["5", "more"]


def test_text_of_what_is_kept():
    head, *rows = StepMemory("train", 16384, 512, 100, 200, SOME).kept_text().splitlines()
    assert head == "train: 3 results of the forward part are kept for the gradient, 13.0 KiB"
    assert [row.split() for row in rows] == [
        ["8.0", "KiB", "float32[2048]", "a:", "Tanh", "(tanh)"],
        ["4.0", "KiB", "float32[1024]", "a:", "Tanh", "(tanh)"],
        ["1.0", "KiB", "float32[256]", "b:", "Tanh", "(tanh)"],
    ]
    assert StepMemory("predict", 0, 0, 0, 0, ()).kept_text() == "predict: 0 results of the forward part are kept for the gradient, 0 bytes"


def test_command_lists_what_is_kept(tmp_path, capsys):
    script = tmp_path / "models.py"
    script.write_text(SCRIPT)
    assert cli.main(["lower", f"{script}:model", "--traits", "sm_86", "--kept"]) == 0
    head, *rows = capsys.readouterr().out.splitlines()
    assert head.startswith("net.train_step: ") and "are kept for the gradient, " in head
    assert [row.split() for row in rows if "net/hidden" in row] == [["3.0", "KiB", "float32[32,", "24]", "net/hidden:", "Tanh", "(tanh)"]]


def test_profile_of_a_step():
    model = keras.Sequential([keras.Input((40,)), L.Dense(24, "tanh", name="hidden"), L.Dense(3)])
    model.compile("sgd", "mse")
    x, y = np.zeros((64, 40), "float32"), np.zeros((64, 3), "float32")
    model.train_on_batch(x, y)
    with keras_ocl.profile() as profile:
        model.train_on_batch(x, y)
    memory = profile.memory()
    assert memory.name == f"{model.name}.train_step"
    assert (memory.arena_bytes, memory.state_bytes) == (profile.arena_bytes, profile.state_bytes)
    assert 64 * 24 * 4 <= memory.kept_bytes <= memory.peak_bytes <= memory.arena_bytes <= keras_ocl.memory_info()["arena"]
    assert any(origin.layer.endswith("hidden") and kept == 64 * 24 * 4 for origin, _, kept in memory.table())


def test_profile_follows_the_extents():
    function = keras_ocl.jit(lambda x: keras.ops.sum(keras.ops.sort(keras.ops.cumsum(x, axis=0), axis=0)), dynamic=(0,))
    found = []
    for rows in (300, 600):
        with keras_ocl.profile() as profile:
            function(keras.ops.ones((rows, 50)))
        found.append(max(one.nbytes for one in profile.memory().intermediates))
    assert found[1] == 2 * found[0]


def test_profile_without_a_compiled_function():
    with keras_ocl.profile() as profile:
        pass
    with pytest.raises(RuntimeError, match="no compiled function ran"):
        profile.memory()
