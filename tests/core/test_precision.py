"""What precision asks of products: eager and compiled code, gradients, convolutions, the environment; on an emulated matrix unit."""

import subprocess
import sys

import keras
import numpy as np
import pytest

import keras_ocl
from keras_ocl import primitives as P
from keras_ocl import runtime
from keras_ocl.compiler import eager
from keras_ocl.compiler.cache import Cache
from keras_ocl.compiler.convert import from_numpy, to_numpy
from keras_ocl.compiler.jit import Jitted
from keras_ocl.core import precision
from keras_ocl.core.autodiff import GradientTape
from keras_ocl.core.trace import Trace, tracing
from keras_ocl.kernels.matrix.contraction import MatrixContraction
from tests.kernels.matrix.emulated import traits_with

RNG = np.random.default_rng(3)
X, W = RNG.normal(size=(80, 96)).astype("f4"), RNG.normal(size=(96, 64)).astype("f4")
EXACT = X.astype("f8") @ W.astype("f8")


@pytest.fixture(params=["emulated_tf32", "emulated"])
def unit(request, monkeypatch):
    """The device's only matrix unit."""
    device = runtime.current_device()
    rates = {"emulated_tf32": 2.5, "emulated": 7.0}
    monkeypatch.setattr(device, "traits", traits_with(device, request.param, matrix_rates=(rates[request.param],), item_registers=96))
    monkeypatch.setattr(eager, "_cache", Cache())
    return request.param


@pytest.fixture
def expanded(unit, monkeypatch):
    """The names of the Expansions with which kernels were written since the test began."""
    found = []
    multiply = MatrixContraction.multiply

    def noted(self, *args, **kwargs):
        found.append(self.tile.expansion.name if self.tile.expansion else "")
        return multiply(self, *args, **kwargs)

    monkeypatch.setattr(MatrixContraction, "multiply", noted)
    return found


def product(x, w):
    return P.dot_general(x, w, ((1,), (0,)))


NAMES = {"emulated": "bf16", "emulated_tf32": "tf32"}  # unit -> its Expansion of lowest price in the precision "bfloat16"


def error(result):
    return abs(to_numpy(result).astype("f8") - EXACT).max()


def test_each_precision_in_compiled_code(unit, expanded):
    compiled, x, w = Jitted(product), from_numpy(X), from_numpy(W)
    exact = error(compiled(x, w))
    assert expanded == [], "seven times a work-item's rate does not pay for six products"
    with keras_ocl.precision("tf32"):
        less = error(compiled(x, w))
    with keras_ocl.precision("bfloat16"):
        least = error(compiled(x, w))
        with keras_ocl.precision("float32"):
            assert error(compiled(x, w)) == exact
    assert len(compiled.traces) == 3 and error(compiled(x, w)) == exact
    if unit == "emulated_tf32":
        assert expanded == ["tf32", "tf32"] and exact < 1e-4 < less < 2e-2 and less == least
    else:
        assert expanded == ["bf16"] and exact == less < 1e-4 < 2e-2 < least < 0.3


def test_eager_code(unit, expanded):
    x, w = from_numpy(X), from_numpy(W)
    exact = error(product(x, w))
    with keras_ocl.precision("bfloat16"):
        assert error(product(x, w)) > 100 * exact
    assert error(product(x, w)) == exact and expanded == [NAMES[unit]]


def test_gradients_inherit_it(unit, expanded):
    """Though the tape is asked when the context has ended."""
    x, w = from_numpy(X), from_numpy(W)

    def gradients(x, w):
        with GradientTape() as tape:
            tape.watch(x)
            tape.watch(w)
            with keras_ocl.precision("bfloat16"):
                y = product(x, w)
        return tape.gradient(y, [x, w])

    dx, dw = Jitted(gradients)(x, w)
    assert expanded == [NAMES[unit]] * 2  # the product itself is not needed
    ones = np.ones(EXACT.shape)
    for found, wanted in ((dx, ones @ W.T), (dw, X.T @ ones)):
        assert 1e-5 < abs(to_numpy(found) - wanted).max() / abs(wanted).max() < 2e-2


def test_convolutions_and_their_gradients(unit, expanded):
    x, w = RNG.normal(size=(2, 9, 9, 16)).astype("f4"), RNG.normal(size=(3, 3, 16, 24)).astype("f4")

    def loss(x, w):
        with GradientTape() as tape:
            tape.watch(w)
            tape.watch(x)
            y = P.conv(x, w, (1, 1), ((1, 1), (1, 1)), (1, 1), (1, 1), 1)
            total = P.reduce_sum(P.mul(y, y), (0, 1, 2, 3))
        return [y, *tape.gradient(total, [x, w])]

    compiled, arguments = Jitted(loss), (from_numpy(x), from_numpy(w))
    exact = [to_numpy(t) for t in compiled(*arguments)]
    assert expanded == []
    with keras_ocl.precision("bfloat16"):
        near = [to_numpy(t) for t in compiled(*arguments)]
    assert expanded == [NAMES[unit]] * 3
    for a, b in zip(exact, near, strict=True):
        assert 1e-5 < abs(a - b).max() / abs(a).max() < 2e-2


def test_it_concerns_float32_alone():
    params = {}
    with keras_ocl.precision("tf32"):
        for dtype in ("float32", "float16", "float64", "int32"):
            x = from_numpy(np.ones((3, 3), dtype))
            trace = Trace()
            with tracing(trace):
                product(*(trace.input(x.shape, x.dtype) for _ in range(2)))
            (equation,) = trace.equations
            params[dtype] = equation.params["precision"]
    assert params == {"float32": "tf32", "float16": "float32", "float64": "float32", "int32": "float32"}


def test_a_models_step(unit, expanded):
    """fit in each precision: the step is compiled once for each, and the loss is that of float32 within what the operands lose."""
    x, y = RNG.normal(size=(64, 24)).astype("f4"), RNG.normal(size=(64, 1)).astype("f4")
    losses = {}
    for name in precision.PRECISIONS:
        keras.utils.set_random_seed(2)
        model = keras.Sequential([keras.Input((24,)), keras.layers.Dense(32, "relu"), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
        with keras_ocl.precision(name):
            losses[name] = model.fit(x, y, batch_size=32, epochs=3, verbose=0).history["loss"][-1]
    assert {*expanded} == {NAMES[unit]}
    assert losses["float32"] != losses["bfloat16"] == pytest.approx(losses["float32"], rel=5e-2)
    assert losses["tf32"] == (losses["bfloat16"] if unit == "emulated_tf32" else losses["float32"])


def test_a_wrong_name():
    with pytest.raises(ValueError, match='precision=\'high\': it is "float32", "tf32" or "bfloat16"'), keras_ocl.precision("high"):
        pass
    assert precision.active() == "float32"


def test_the_environment(monkeypatch):
    text = "from keras_ocl.core import precision; print(precision.active())"
    for setting, wanted in (("", "float32"), ("tf32", "tf32")):
        monkeypatch.setenv("KERAS_OCL_PRECISION", setting)
        assert subprocess.run([sys.executable, "-c", text], capture_output=True, text=True).stdout == f"{wanted}\n"
    monkeypatch.setenv("KERAS_OCL_PRECISION", "fast")
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True)
    assert "KERAS_OCL_PRECISION='fast': it is " in done.stderr
