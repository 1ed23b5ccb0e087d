"""The Python examples of the documentation run as they stand, one page after the other, each page in a namespace of its own."""

import re
from pathlib import Path

import keras
import numpy as np
import pytest

import keras_ocl

PAGES = Path(__file__).parents[1] / "docs"
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def given():
    """What the examples take for granted."""
    rng = np.random.default_rng(0)
    x, labels = rng.random((32, 4), dtype=np.float32), rng.integers(0, 10, 32)
    model = keras.Sequential([keras.layers.Dense(10)])
    loss_fn = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("sgd", loss_fn)
    return {
        "keras": keras,
        "keras_ocl": keras_ocl,
        "model": model,
        "loss_fn": loss_fn,
        "optimizer": keras.optimizers.Adam(),
        "batches": [(x[:16], labels[:16]), (x[16:], labels[16:])],
        **{"x": keras.ops.convert_to_tensor(x), "x_train": x},
        **{"y": labels, "y_train": labels},
        "w": keras.ops.ones((4, 2)),
    }


def run(page):
    """The namespace after all examples of a page."""
    blocks = BLOCK.findall((PAGES / page).read_text(encoding="utf-8"))
    assert blocks
    names = given()
    for block in blocks:
        exec(compile(block, page, "exec"), names)
    return names


def test_the_front_page(monkeypatch, capsys):
    rng = np.random.default_rng(0)
    part = rng.integers(0, 256, (256, 28, 28)).astype("uint8"), rng.integers(0, 10, 256)  # in the place of MNIST's
    monkeypatch.setattr(keras.datasets.mnist, "load_data", lambda: (part, part))
    names = run("index.md")
    assert len(names["model"].history.history["loss"]) == 3 and np.isfinite(names["model"].history.history["loss"]).all()
    assert re.search(r"\[[0-9.]+, [0-9.]+\]", capsys.readouterr().out)


def test_start():
    assert run("start.md")["model"].history.history["accuracy"]


def test_precision():
    assert np.isfinite(run("mixed-precision.md")["model"].history.history["loss"]).all()


def test_custom_loops():
    names = run("custom-loops.md")
    assert np.isfinite(float(names["value"])) and names["gradient"].shape == names["second"].shape == (4, 2)
    # The mean of squares of x @ w is quadratic in w: the sum over a row of its second derivative does not depend on w.
    x = np.asarray(names["x"])
    expected = np.repeat((x.T @ x / len(x)).sum(1)[:, None], 2, axis=1)
    np.testing.assert_allclose(np.asarray(names["second"]), expected, rtol=1e-5)


def test_distribution():
    try:
        assert np.isfinite(float(run("distribution.md")["loss"]))
    finally:
        keras.distribution.set_distribution(None)


def test_generation():
    pytest.importorskip("keras_hub", exc_type=ImportError)
    names = run("generation.md")
    tokens = np.asarray(names["text"]["token_ids"])
    assert tokens.shape == (1, 16) and tokens[0, :3].tolist() == [7, 42, 5] and (tokens[0, 3:] != 0).any()
    assert int(names["collatz"](np.int32(27))) == 111


def test_custom_kernels():
    names = run("custom-kernels.md")
    x = keras.random.normal((5, 131), seed=1)
    np.testing.assert_allclose(np.asarray(names["row_sums"](x)), np.asarray(x).sum(1), atol=1e-4)
    np.testing.assert_allclose(np.asarray(names["swish"](x)), np.asarray(keras.ops.silu(x)), rtol=1e-5, atol=1e-6)
    assert names["model"](names["x"]).shape == (32, 10)


def test_profiling(capsys):
    run("profiling.md")
    assert "MatMul" in capsys.readouterr().out


def test_memory(capsys):
    names = run("memory.md")
    printed, memory = capsys.readouterr().out, names["profile"].memory()
    assert printed == f"{memory}\n" and "kept for the gradient" in printed and memory.peak_bytes > 0


def test_checks():
    names = run("checks.md")
    page = (PAGES / "checks.md").read_text(encoding="utf-8")
    embedding = keras.Sequential([keras.layers.Embedding(5, 2, name="embedding")], name="sequential")
    root = keras.Sequential([keras.layers.Lambda(keras.ops.sqrt, name="lambda")], name="sequential")
    zeros = np.zeros((4, 3), "float32")
    with keras_ocl.checks():
        with pytest.raises(IndexError) as wrong:
            embedding.predict(np.array([[0] * 3] * 3 + [[0, 0, 9]]))
        assert str(wrong.value) in page
        with pytest.raises(FloatingPointError) as wrong:
            keras_ocl.jit(root, name="sequential.train_step")(zeros - 1)
        assert str(wrong.value) == "sequential.train_step: Sqrt in sequential/lambda gave a NaN."
    assert names["model"].built


@pytest.mark.parametrize("page", sorted(path.relative_to(PAGES).as_posix() for path in PAGES.glob("*.md")))
def test_every_page_with_python_is_run(page):
    tested = {
        "index.md",
        "start.md",
        "custom-loops.md",
        "distribution.md",
        "custom-kernels.md",
        "generation.md",
        "memory.md",
        "mixed-precision.md",
        "profiling.md",
        "checks.md",
    }
    assert bool(BLOCK.findall((PAGES / page).read_text(encoding="utf-8"))) == (page in tested)
