"""Random models: a few new ones, those that once failed, and whether a wrong layer would be noticed."""

import dataclasses
from importlib.util import find_spec

import keras
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from keras import ops

from keras_ocl.compiler.trace.ir import Graph
from tests.fuzz import model_checks
from tests.fuzz.model_checks import check_keeping, check_model
from tests.fuzz.models import RandomModel, models
from tests.fuzz.reference import Reference

pytestmark = pytest.mark.skipif(find_spec("tensorflow") is None, reason="TensorFlow is not installed")

FOUND = {
    "a mask that attention takes from its operand": RandomModel(
        inputs=[()],
        steps=[
            ("Embedding", [0], {"input_dim": 7, "output_dim": 1, "mask_zero": True}),
            ("MultiHeadAttention", [1, 1], {"num_heads": 1, "key_dim": 1, "use_bias": False, "value_dim": None}),
            ("Activation", [1], {"activation": "tanh"}),
        ],
        calls=[(1, 3)],
        seed=14,
    ),
    "masks that layers find or not, by Keras's order of the layers": RandomModel(
        inputs=[()],
        steps=[
            ("Embedding", [0], {"input_dim": 7, "output_dim": 3, "mask_zero": True}),
            ("Add", [1, 1], {}),
            ("TimeDistributed", [1], {"layer": ("Dense", {"units": 3, "activation": "linear", "use_bias": True})}),
            ("MultiHeadAttention", [1, 1], {"num_heads": 1, "key_dim": 2, "use_bias": True, "value_dim": None}),
        ],
        calls=[(3, 5)],
        seed=29,
    ),
    "a bias of heads that are as many as time steps": RandomModel(
        inputs=[(None, 1)],
        steps=[("MultiHeadAttention", [0, 0], {"num_heads": 3, "key_dim": 1, "use_bias": True, "value_dim": None})],
        calls=[(1, 3)],
    ),
    "a mean that cancels, then what makes its rounding larger": RandomModel(
        inputs=[()],
        steps=[
            ("Embedding", [0], {"input_dim": 7, "output_dim": 1, "mask_zero": True}),
            ("Add", [1, 1], {}),
            ("LayerNormalization", [2], {"epsilon": 0.01, "center": True, "scale": False}),
            ("GroupNormalization", [3], {"groups": 1, "epsilon": 0.01}),
            ("GroupNormalization", [4], {"groups": 1, "epsilon": 0.01}),
        ],
        calls=[(1, 1), (1, 2), (1, 3)],
        seed=92,
    ),
}
SMALL = RandomModel(
    inputs=[(), (None, 3)],
    steps=[
        ("Embedding", [0], {"input_dim": 7, "output_dim": 3, "mask_zero": True}),
        ("LSTM", [2], {"units": 3, "return_sequences": True}),
        ("Conv1D", [1], {"filters": 3, "kernel_size": (2,), "padding": "same"}),
        ("again", [4], 2),
        ("Multiply", [3, 5], {}),
        ("BatchNormalization", [6], {"epsilon": 0.01}),
    ],
    calls=[(2, 5), (3, 7)],
)
DROPPED = RandomModel(
    inputs=[(None, 3)],
    steps=[("Dense", [0], {"units": 5, "activation": "gelu"}), ("RMSNormalization", [1], {"epsilon": 0.01}), ("Dense", [2], {"units": 3})],
    calls=[(2, 5)],
    remat=True,
    dropped=[0, 1],
)


@pytest.fixture(scope="module")
def reference():
    with Reference() as process:
        yield process


@pytest.mark.filterwarnings("ignore:You are using a softmax over axis", "ignore:(?s).*mask", "ignore:The model does not have any trainable")
@pytest.mark.filterwarnings("ignore:Do not use the `random` module")
@settings(max_examples=3, deadline=None, suppress_health_check=list(HealthCheck))
@given(models())
def test_random_models(reference, model):
    if model.steps:
        check_model(model, reference)


@pytest.mark.parametrize("name", FOUND)
def test_models_that_failed_once(reference, name):
    assert check_model(FOUND[name], reference)


def test_masks_shared_layers_and_lengths(reference):
    assert check_model(SMALL, reference)


def test_dropout_and_layers_that_are_computed_again(reference):
    assert check_model(DROPPED, reference)


@pytest.mark.parametrize("remat", [False, True])
def test_a_value_that_is_computed_again_wrongly_is_noticed(monkeypatch, remat):
    model = dataclasses.replace(DROPPED, remat=remat)
    targets, again = [np.ones((2, 5, 3), "float32")], Graph.again
    check_keeping(model, targets)

    def without_products(graph, node, inputs, origin):
        return inputs[0] if node.name == "mul" else again(graph, node, inputs, origin)

    monkeypatch.setattr(Graph, "again", without_products)
    with pytest.raises(AssertionError, match="compiled, keeping least: variables: result .* wrong elements"):
        check_keeping(model, targets)


def test_a_wrong_result_is_noticed(reference, monkeypatch):
    call = keras.layers.Conv1D.call
    monkeypatch.setattr(keras.layers.Conv1D, "call", lambda self, x: call(self, x) * (1 + 2e-4))
    with pytest.raises(AssertionError, match="eager, of batch and length .*: predicted: result 0 has .* wrong elements"):
        check_model(SMALL, reference)


def test_a_wrong_gradient_is_noticed(reference, monkeypatch):
    call = keras.layers.Conv1D.call
    monkeypatch.setattr(keras.layers.Conv1D, "call", lambda self, x: ops.stop_gradient(call(self, x)))
    with pytest.raises(AssertionError, match="variables after a step: result .* wrong elements"):
        check_model(SMALL, reference)


def test_a_mask_that_is_lost_is_noticed(reference, monkeypatch):
    monkeypatch.setattr(keras.layers.Embedding, "compute_mask", lambda self, x, mask=None: None)
    with pytest.raises(AssertionError, match="predicted: result 0 has .* wrong elements"):
        check_model(SMALL, reference)


def test_what_happens_only_when_compiled_is_noticed(reference, monkeypatch):
    keep = model_checks.keras.Model.train_on_batch

    def train(self, x, y):
        logs = keep(self, x, y)
        if not self.run_eagerly and len(x[0]) == 3:
            self.trainable_variables[0].assign(self.trainable_variables[0] + 1e-3)
        return logs

    monkeypatch.setattr(keras.Model, "train_on_batch", train)
    with pytest.raises(AssertionError, match=r"compiled, of batch and length \(3, 7\): variables after a step"):
        check_model(SMALL, reference)


def test_what_tensorflow_cannot_run_is_left_out(reference):
    class Unable(Reference):
        def __init__(self):
            self.__dict__ = reference.__dict__

        def __call__(self, model, targets):
            return super().__call__(model, targets[:0])  # one call without targets

    assert not check_model(SMALL, Unable())
    assert check_model(SMALL, reference), "the process goes on"


def test_a_model_is_made_again_from_its_text():
    again = eval(repr(SMALL))
    assert again == SMALL and all(np.array_equal(a, b) for a, b in zip(again.arrays((2, 5)), SMALL.arrays((2, 5)), strict=True))
