"""A user's code, for the type checker: nothing runs it. Calls of functions without annotations are errors here."""

from pathlib import Path
from typing import Any, assert_type

import keras_ocl
from keras_ocl.profiler import Profile, Row
from keras_ocl.runtime import DeviceInfo, Traits


def devices_and_memory() -> None:
    infos = keras_ocl.devices()
    assert_type(infos, list[DeviceInfo])
    assert_type(infos[0].name, str)
    assert_type(infos[0].traits, Traits)
    assert_type(infos[0].traits.fp64, bool)
    assert_type(keras_ocl.memory_info("cpu:0"), dict[str, int])
    assert_type(keras_ocl.clear_cache(), int)


def loss(x: float, scale: int) -> float:
    return x * scale


@keras_ocl.jit
def compiled(x: float) -> str:
    return str(x)


@keras_ocl.jit(dynamic=(0,), name="named")
def compiled_with_options(x: float) -> str:
    return str(x)


def training() -> None:
    assert_type(compiled(1.0), str)
    assert_type(compiled_with_options(1.0), str)
    assert_type(keras_ocl.value_and_grad(loss, argnums=(0,))(1.0, 2), tuple[float, Any])
    keras_ocl.grad(loss, has_aux=False)(1.0, scale=2)
    keras_ocl.callback(print, 1.0, [2.0])
    keras_ocl.all_reduce([1.0, None], kind="max")
    keras_ocl.CentralStorage(devices=["gpu:0", "gpu:1"], storage="cpu:0")
    with keras_ocl.GradientTape(persistent=True) as tape:
        tape.watch([])
    assert_type(tape, keras_ocl.GradientTape)
    tape.gradient([], [], unconnected_gradients="zero")


def kernels() -> None:
    op = keras_ocl.custom_op(
        "out[i] = x[i];",
        inputs=("x",),
        shape=lambda x: x[:1],
        items=lambda x: (x[0], 1),
        group=lambda x: (1, 1),
        local={"rows": ("float4", 16)},
        gradient=lambda cotangent, out, x: cotangent,
    )
    op(1.0)
    with keras_ocl.profile(by="layer") as profile:
        pass
    assert_type(profile, Profile)
    assert_type(profile.table(by="kernel"), list[Row])
    assert_type(profile.table()[0].total_ms, float)
    profile.to_csv(Path("rows.csv"))


def errors() -> None:
    try:
        compiled(1.0)
    except keras_ocl.OutOfMemory as error:
        memory: MemoryError = error
        raise memory from None
    except keras_ocl.KernelBuildError as error:
        assert_type(error.names, tuple[str, ...])
    except keras_ocl.UnsupportedKeras as error:
        missing: ImportError = error
        raise missing from None
