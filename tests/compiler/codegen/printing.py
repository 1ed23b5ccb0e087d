"""Kernels made of what the generator prints over a nest of loops, and run."""

import numpy as np

from keras_ocl import runtime
from keras_ocl.compiler.codegen import Generator
from keras_ocl.compiler.codegen.nests import analyse
from keras_ocl.core import dtypes
from keras_ocl.core.index import Affine, linear
from keras_ocl.kernels.spec import Args
from tests.kernels.launching import launch, named


def printed(extents, write, materialised=(), width=1, all_arguments=False):
    """(generator, its Args, loop variables) after `write(gen, variables)` inside loops over `extents`; a dry run comes first, as always."""
    nests = None
    for _ in range(2):
        args = Args(all_arguments)
        gen = Generator(args, set(materialised), width, nests)
        nest, variables = gen.nest("root", extents), []
        for group in nest.groups:
            variables += gen.open_loop(nest, group, gen.block)
        write(gen, variables)
        for _ in nest.groups:
            gen.close_loop()
        if nests is None:
            nests = gen.nests
            analyse(nests)
    return gen, args, variables


def numbers(extents, evaluate, count):
    """int32 array (*extents, count) of what the C expressions are that `evaluate(gen, variables)` returns, at each point of the loops."""

    def write(gen, variables):
        texts = evaluate(gen, variables)
        assert len(texts) == count
        place = gen.text(linear([Affine.of(v) for v in variables], extents))
        for k, text in enumerate(texts):
            gen.emit(f"{gen.args.pointer(named('y'), 'int32', out=True)}[({place}) * {count} + {k}] = {text};")

    gen, args, _ = printed(extents, write)
    device, shape = runtime.current_device(), (*map(int, extents), count)
    buffers = {"y": device.upload(np.full(shape, -77, "i4"))}
    launch(device, [args.kernel("", gen.top.render(), (1,), (1,), frozenset(gen.helpers), title="numbers")], buffers)
    return device.download(buffers["y"], dtypes.numpy_dtype("int32"), shape)
