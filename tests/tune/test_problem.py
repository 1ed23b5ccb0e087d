"""Problems by their keys: kernels' problems made of keys have these keys, and smaller ones stand for them."""

import dataclasses

import pytest

from keras_ocl import runtime
from keras_ocl.core.dim import hint
from keras_ocl.kernels import conv
from keras_ocl.kernels.gemm import cpu_choice, gpu_choice
from keras_ocl.kernels.gemm.parts import Problem as Product
from keras_ocl.tune import standard
from keras_ocl.tune.problem import OPERATIONS, Choice, Problem, choices, measurable, operations, plain, smaller

PRODUCTS = [
    "float32 m=64 n=512 k=512 a=float32(512,1) b=float32(1,512)",
    "float32 batch=3 m=32* n=10 k=7 a=float32(224,7,1) b=float32(0,10,1) uniform=2 longest=2048 repeated",
    "int32 m=16 n=16 k=16 a=int8(16,1) b=int8(16,1) eager",
    "float32 m=4 n=16 k=32* a=float16(32*,1) b=float16(16,1) precision=tf32",
]
CONVOLUTIONS = [
    "float32 input=2,9,9,8 filter=3,3,8,16 output=2,9,9,16 low=1,1",
    "float16 input=32*,20,4 filter=5,2,6 output=32*,8,6 low=0 strides=2 groups=2",
    "float32 input=2,7,9,8 filter=3,3,8,4 output=2,15,19,4 low=2,2 dilation=1,2 input_dilation=2,2 transposed precision=tf32",
]
LARGE = "float32 m=8192 n=8192 k=512 a=float32(512,1) b=float32(8192,1)"


@pytest.fixture
def traits():
    return runtime.read_record("intel-cpu")


@pytest.mark.parametrize("key", PRODUCTS)
def test_a_products_key_says_all(key, traits):
    p, operands, result, shape = plain(Problem("product", key), traits)
    assert isinstance(p, Product) and p.key == key
    assert result.elements == plain(Problem("product", key), None)[2].elements and len(shape) == (3 if "batch" in key else 2)
    assert {name: buffer.dtype for name, buffer in operands.items()} == {"a": p.a.dtype, "b": p.b.dtype}


@pytest.mark.parametrize("key", CONVOLUTIONS)
def test_a_convolutions_key_says_all(key, traits):
    for operation in ("convolution", "filter_gradient"):
        p, operands, *_ = plain(Problem(operation, key), traits)
        assert isinstance(p, conv.Problem) and p.key == key
        assert set(operands) == {"x", "w" if operation == "convolution" else "dy"}


@pytest.mark.parametrize(
    "operation, key",
    [
        ("product", "float32 m=8 n=8 k=8 a=float32(8,1) b=float32(computed)"),
        ("product", "float32 m=8 n=8 a=float32(8,1) b=float32(8,1)"),
        ("product", "float32 m=8 n=8 k=8 a=float32(8,1) b=float32(8,1) colour=red"),
        ("product", "float32 m=8 n=8 k=8 a=float32(8,1) b=float32(8,1) loud"),
        ("convolution", "float32 input=2,9,9,8 filter=3,3,8,16 low=1,1"),
        ("convolution", "float32 m=8 n=8 k=8 a=float32(8,1) b=float32(8,1)"),
    ],
)
def test_another_key_is_refused(operation, key, traits):
    with pytest.raises(ValueError, match="is not the key of a (product whose operands lie in memory|convolution)$"):
        plain(Problem(operation, key), traits)


def test_a_smaller_problem_has_the_same_strides_and_steps():
    key = "float32 batch=64 m=8 n=8 k=8 a=float32(64,8,1) b=float32(64,8,1)"
    assert smaller(Problem("product", LARGE), 1e9).key == LARGE.replace("m=8192 n=8192", "m=2048 n=512")
    assert smaller(Problem("product", key), 10_000).key == key.replace("batch=64", "batch=9")
    images = "float32 input=64,9,9,8 filter=3,3,8,16 output=64,9,9,16 low=1,1"
    assert smaller(Problem("filter_gradient", images), 1e5).key == images.replace("64,9,9", "4,9,9")
    varying = LARGE.replace("m=8192", "m=8192*")
    assert smaller(Problem("product", varying), 1e9).key == varying.replace("m=8192* n=8192", "m=2048* n=512")
    small = Problem("product", PRODUCTS[0])
    assert smaller(small, 1e12) is small
    assert operations(plain(smaller(Problem("product", LARGE), 4e10), None)[0]) <= 4e10


def test_what_was_asked_for_by_size_and_without_fused_ones():
    larger, fused = PRODUCTS[0].replace("m=64", "m=128"), PRODUCTS[0].replace("b=float32(1,512)", "b=float32(computed)")
    asked = [("product", PRODUCTS[0]), ("few_rows", PRODUCTS[0]), ("product", larger), ("product", fused), ("winograd", CONVOLUTIONS[0])]
    found, others = measurable([*asked, ("attention", "key")])
    assert found == [Problem("product", larger), Problem("product", PRODUCTS[0]), Problem("convolution", CONVOLUTIONS[0])] and others == 1


@pytest.mark.parametrize("record", ["intel-cpu", "sm_90"])
def test_the_standard_set_has_candidates_of_which_kernels_take_the_first(record):
    traits = runtime.read_record(record)
    problems = standard.problems(traits)
    assert len(problems) > 30 and len(set(problems)) == len(problems)
    sizes = [operations(plain(problem, None)[0]) for problem in problems]
    assert sizes == sorted(sizes, reverse=True)
    for problem in problems:
        found = choices(problem, traits)
        assert len(set(found)) == len(found) > 1, problem
        assert all(OPERATIONS[choice.kind] == problem.operation for choice in found)
        if problem.operation == "product":
            taken = what_kernels_take(plain(problem, traits)[0])
            assert taken is None or dict(found[0].fields) == taken


def what_kernels_take(product):
    """The fields of the tile without a choice of the device's own; None for slices of a group's items, which no device has of its own."""
    if product.traits.schedule == "cpu":
        return vars(cpu_choice.choose(product))
    tile, steps = gpu_choice.few(product) or gpu_choice.choose(product)
    names = ("lanes", "places", "rows", "vector") if hint(product.m) == 1 else ("across", "down", "rows", "columns", "depth")
    fields = {name: getattr(tile, name) for name in names}
    return None if getattr(tile, "slices", 1) > 1 else {**fields, "steps": steps} if steps else fields


def test_choices_by_how_much_they_differ():
    one = Choice.of("product", {"rows": 1, "vectors": 2})
    assert one.differences(Choice.of("product", {"rows": 2, "vectors": 2})) == 1
    assert one.differences(Choice.of("product", {"rows": 1, "vectors": 2, "steps": 8})) == 1
    assert one.differences(Choice.of("winograd", {"rows": 1, "vectors": 2})) > 2
    assert dataclasses.replace(one) == Choice.of("product", dict(one.fields)) and str(one) == "product rows=1 vectors=2"
