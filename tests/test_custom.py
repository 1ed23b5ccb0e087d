"""custom_op: a user's kernel in eager code, in models and under differentiation."""

import gc

import keras
import numpy as np
import pytest
from keras import ops

import keras_ocl
from keras_ocl.compiler.run.executable import Executable
from tests.plugin.process import run_python

X = np.linspace(-2, 2, 24, dtype="float32").reshape(4, 6)


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def swish():
    return keras_ocl.custom_op(
        "out[i] = x[i] / (1.0f + exp(-x[i]));",
        inputs="x",
        gradient=lambda cotangent, out, x: cotangent * (out + ops.sigmoid(x) * (1 - out)),
        name="swish",
    )


def test_elementwise():
    np.testing.assert_allclose(swish()(X), X * sigmoid(X), rtol=1e-5)


def test_gradient():
    op = swish()
    expected = X * sigmoid(X) + sigmoid(X) * (1 - X * sigmoid(X))
    np.testing.assert_allclose(keras_ocl.grad(lambda x: ops.sum(op(x)))(X), expected, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(keras_ocl.jit(keras_ocl.grad(lambda x: ops.sum(op(x * 1.0) + 1)))(X), expected, rtol=1e-5, atol=1e-6)


def test_row_sums_with_two_inputs_and_another_shape():
    op = keras_ocl.custom_op(
        """
        float sum = 0;
        for (int k = 0; k < a_shape[1]; ++k)
            sum += a[i * a_shape[1] + k] * b[k];
        rows[i] = sum;
        """,
        inputs=("a", "b"),
        output="rows",
        shape=lambda a, b: a[:1],
    )
    b = np.arange(6, dtype="float32")
    np.testing.assert_allclose(op(X, b), X @ b, rtol=1e-5)
    np.testing.assert_allclose(op(X[:2], b), X[:2] @ b, rtol=1e-5)
    np.testing.assert_allclose(keras_ocl.jit(lambda x: op(x + 1, b) * 2)(X), (X + 1) @ b * 2, rtol=1e-5)


def test_other_dtype_and_number_of_items():
    op = keras_ocl.custom_op(
        "for (int k = 0; k < x_shape[1]; ++k) out[i * x_shape[1] + k] = (int)floor(x[i * x_shape[1] + k]);",
        inputs="x",
        dtype="int32",
        items=lambda x: x[0],
    )
    result = op(X)
    assert result.dtype == "int32"
    np.testing.assert_array_equal(result, np.floor(X).astype("int32"))


TRANSPOSE = """
    const int row = get_global_id(1), column = get_global_id(0), r = get_local_id(1), c = get_local_id(0);
    if (row < x_shape[0] && column < x_shape[1]) tile[r * 4 + c] = x[row * x_shape[1] + column];
    barrier(CLK_LOCAL_MEM_FENCE);
    const int to_row = get_group_id(0) * 4 + r, to_column = get_group_id(1) * 4 + c;
    if (to_row < x_shape[1] && to_column < x_shape[0]) out[to_row * x_shape[0] + to_column] = tile[c * 4 + r];
"""


def test_groups_share_local_memory():
    op = keras_ocl.custom_op(
        TRANSPOSE,
        "x",
        shape=lambda x: (x[1], x[0]),
        items=lambda x: (-(-x[1] // 4) * 4, -(-x[0] // 4) * 4),
        group=lambda x: (4, 4),
        local={"tile": ("float", 16)},
    )
    for x in (X, X[:3, :5], np.ones((9, 1), "float32"), np.zeros((0, 3), "float32")):
        np.testing.assert_array_equal(op(x), x.T)
    compiled = keras_ocl.jit(lambda x: op(x * 2) + 1, dynamic=(0,))
    for rows in (4, 3):
        np.testing.assert_allclose(compiled(X[:rows]), X[:rows].T * 2 + 1)


def test_errors_of_groups_and_local_memory():
    with pytest.raises(ValueError, match=r"each of which divides its number of work-items, but items are \(24,\) and the group is \(7,\)"):
        keras_ocl.custom_op("out[i] = x[i];", "x", group=lambda x: 7)(X)
    with pytest.raises(ValueError, match="`group` must have the same number of extents"):
        keras_ocl.custom_op("out[i] = x[i];", "x", group=lambda x: (4, 6))(X)
    with pytest.raises(ValueError, match=r"has 1073741824 work-items, but the device allows \d+ in a group"):
        keras_ocl.custom_op("out[0] = x[0];", "x", items=lambda x: 1 << 30, group=lambda x: 1 << 30)(X)
    with pytest.raises(ValueError, match=r"its local arrays take 17179869184 bytes, but the device has \d+ per group"):
        keras_ocl.custom_op("out[i] = x[i];", "x", local={"a": ("float4", 1 << 30)})(X)
    for declared in ("float", ("float", 0), ("Float", 3), ("float3", 3)):
        with pytest.raises(TypeError, match=r"local array a must be \(C type, number of elements\), not "):
            keras_ocl.custom_op("", "x", local={"a": declared})
    with pytest.raises(ValueError, match="local arrays need distinct names"):
        keras_ocl.custom_op("", "x", local={"x": ("float", 3)})
    with pytest.raises(TypeError, match="`group` must be a function"):
        keras_ocl.custom_op("", "x", group=(4,))
    np.testing.assert_allclose(swish()(X), X * sigmoid(X), rtol=1e-5)


def test_ops_of_one_name_differ():
    one = keras_ocl.custom_op("out[i] = x[i] + 1;", "x", name="same")
    two = keras_ocl.custom_op("out[i] = x[i] + 2;", "x", name="same")
    np.testing.assert_allclose(keras_ocl.jit(lambda x: two(x) - one(x))(X), np.ones_like(X), rtol=1e-5)


def test_in_a_trained_model():
    op = swish()
    inputs = keras.Input((6,))
    model = keras.Model(inputs, keras.layers.Dense(1)(op(keras.layers.Dense(8)(inputs))))
    assert model.layers[-1].input.shape == (None, 8)
    model.compile(keras.optimizers.Adam(0.05), "mse")
    history = model.fit(np.tile(X, (8, 1)), np.tile(X.sum(1), 8), epochs=20, verbose=0).history["loss"]
    assert history[-1] < history[0] / 3
    kernel = keras.layers.Dense(3, activation=swish())(X)
    assert kernel.shape == (4, 3)


def test_errors():
    with pytest.raises(ValueError, match="distinct names"):
        keras_ocl.custom_op("", inputs=("x", "x"))
    with pytest.raises(ValueError, match="distinct names"):
        keras_ocl.custom_op("", inputs=[1])
    for names in ({"inputs": "p1"}, {"inputs": "x", "output": "n0"}, {"inputs": "i"}, {"inputs": "x", "local": {"p0": ("float", 3)}}):
        with pytest.raises(ValueError, match="'(p1|n0|i|p0)' is a name of the kernel's own, as are i, p0 and n1; choose another"):
            keras_ocl.custom_op("", **names)
    with pytest.raises(TypeError, match="`source` must be a string of OpenCL C, not int"):
        keras_ocl.custom_op(3, inputs="x")
    with pytest.raises(TypeError, match=r"`shape` must be a function .*, not \(3,\)"):
        keras_ocl.custom_op("out[i] = x[i];", "x", shape=(3,))
    with pytest.raises(TypeError, match="`items` must return an int, the number of work-items, or up to three in a tuple, not 2.5"):
        keras_ocl.custom_op("out[i] = x[i];", "x", items=lambda x: 2.5)(X)
    with pytest.raises(ValueError, match=r"takes 1 inputs \(x\), but got 2"):
        swish()(X, X)
    with pytest.raises(NotImplementedError, match="without has no gradient: pass `gradient=`"):
        op = keras_ocl.custom_op("out[i] = x[i];", "x", name="without")
        keras_ocl.grad(lambda x: ops.sum(op(x)))(X)
    with pytest.raises(ValueError, match=r"gradient for x has the shape \(\), but x has \(4, 6\)"):
        op = keras_ocl.custom_op("out[i] = x[i];", "x", gradient=lambda cotangent, out, x: ops.sum(cotangent))
        keras_ocl.grad(lambda x: ops.sum(op(x)))(X)
    wrong = keras_ocl.custom_op("out[i] = undeclared_name;", "x")
    for called in (wrong, keras.layers.Activation(wrong), keras_ocl.jit(wrong)):
        with pytest.raises(keras_ocl.KernelBuildError, match="undeclared_name") as error:
            called(X)
        assert "undeclared_name" in error.value.log and "out[i] = undeclared_name;" in error.value.source
    np.testing.assert_allclose(swish()(X), X * sigmoid(X), rtol=1e-5)


def test_an_op_that_is_dropped_releases_what_was_compiled():
    def function_names():
        return [o.name for o in gc.get_objects() if type(o) is Executable and o.name.startswith("passing")]

    for _ in range(3):
        op = keras_ocl.custom_op("out[i] = x[i];", inputs="x", gradient=lambda cotangent, out, x: cotangent, name="passing")
        np.testing.assert_array_equal(op(np.ones(4, "float32")), np.ones(4))
        compiled = keras_ocl.jit(lambda x, op=op: op(x))
        np.testing.assert_array_equal(compiled(np.ones(4, "float32")), np.ones(4))
    del op, compiled
    gc.collect()
    assert function_names() == []


def saved(path, how):
    """A model with an op of OpenCL C, saved at `path`: as an operation of its own, or as a layer's activation."""
    op = keras_ocl.custom_op("sums[i] = x[i]; out[i] = sums[i] * 2;", "x", name="twice", local={"sums": ("float", 24)})
    x = keras.Input((6,))
    model = keras.Model(x, op(x)) if how == "operation" else keras.Sequential([x, keras.layers.Activation(op)])
    model.save(path)
    return path


FILES = pytest.mark.parametrize("how,suffix", [("operation", "keras"), ("activation", "keras"), ("activation", "h5")])


@FILES
def test_a_file_with_source_text_loads_only_without_safe_mode_and_says_why(tmp_path, how, suffix):
    path = saved(tmp_path / f"model.{suffix}", how)
    for custom_objects in (None, {"CustomOp": keras_ocl.custom.CustomOp}):
        with pytest.raises((ValueError, TypeError), match=r"custom_op twice.*OpenCL C that would run on this machine.*safe_mode=False"):
            keras.models.load_model(path, custom_objects)
    model = keras.models.load_model(path, safe_mode=False)
    np.testing.assert_array_equal(model(X), 2 * X)


def test_no_other_way_of_reading_a_configuration_takes_source_text(tmp_path):
    model = keras.models.load_model(saved(tmp_path / "model.keras", "operation"), safe_mode=False)
    op = next(operation for operation in model.operations if operation.name == "twice")
    for read in (
        lambda: keras.saving.deserialize_keras_object(keras.saving.serialize_keras_object(op)),
        lambda: keras.models.model_from_json(model.to_json()),
        lambda: keras.Model.from_config(model.get_config()),
    ):
        with pytest.raises(ValueError, match="custom_op twice.*safe_mode=False"):
            read()
    np.testing.assert_array_equal(keras.models.clone_model(model)(X), 2 * X)  # a copy of the program's own op


def test_a_process_that_never_heard_of_the_op_reads_its_file(tmp_path):
    path = saved(tmp_path / "model.keras", "operation")
    output = run_python(
        f"""
        import keras, numpy
        try:
            keras.models.load_model({str(path)!r})
        except ValueError as error:
            print("safe_mode=False" in str(error))
        print(keras.models.load_model({str(path)!r}, safe_mode=False)(numpy.ones((1, 6))).shape)
        """,
        KERAS_BACKEND="ocl",
    )
    assert output.splitlines() == ["True", "(1, 6)"]


def test_an_op_with_functions_cannot_be_saved(tmp_path):
    model = keras.Sequential([keras.Input((6,)), keras.layers.Activation(swish())])
    with pytest.raises(NotImplementedError, match="CustomOp"):
        model.save(tmp_path / "model.keras")
    model.save_weights(tmp_path / "model.weights.h5")
