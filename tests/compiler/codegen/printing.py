"""Kernels made of what the generator prints over a nest of loops, and run."""

import numpy as np

from keras_ocl import runtime
from keras_ocl.compiler.codegen import Analysis, Generator
from keras_ocl.compiler.codegen.nests import analyse
from keras_ocl.core import dtypes
from keras_ocl.core.index import Affine, linear
from keras_ocl.kernels.spec import Args
from tests.kernels.launching import launch, named


def printed(extents, evaluate, emit=None, materialised=(), width=1, all_arguments=False):
    """(generator, its Args, loop variables) after `evaluate(evaluator, variables)` inside loops over `extents`, first by an Analysis.

    evaluate: may return index expressions, which the text will have. emit: function of the generator, the variables and what `evaluate`
        returned, which writes further statements.
    """
    analysis = Analysis(set(materialised), for_any=all_arguments)
    nest = analysis.nest("root", extents)
    for x in evaluate(analysis, [analysis.open_loop(nest, i) for i in range(len(extents))]) or ():
        if isinstance(x, Affine):
            analysis.note(x)
    analyse(analysis.nests)
    args, variables = Args(all_arguments), []
    gen = Generator(args, set(materialised), width, analysis.nests)
    for group in nest.groups:
        variables += gen.open_loop(nest, group, gen.block)
    found = evaluate(gen, variables)
    if emit is not None:
        emit(gen, variables, found)
    for _ in nest.groups:
        gen.close_loop()
    return gen, args, variables


def numbers(extents, evaluate, count):
    """int32 array (*extents, count) of what `evaluate(evaluator, variables)` returns, at each point of the loops.

    It returns index expressions, and masks: 1 where they hold, as None always does.
    """

    def emit(gen, variables, found):
        assert len(found) == count
        place = gen.text(linear([Affine.of(v) for v in variables], extents))
        for k, x in enumerate(found):
            text = "1" if x is None else gen.text(x) if isinstance(x, Affine) else f"-({x.text})"
            gen.emit(f"{gen.args.pointer(named('y'), 'int32', out=True)}[({place}) * {count} + {k}] = {text};")

    gen, args, _ = printed(extents, evaluate, emit)
    device, shape = runtime.current_device(), (*map(int, extents), count)
    buffers = {"y": device.upload(np.full(shape, -77, "i4"))}
    launch(device, [args.kernel("", gen.top.render(), (1,), (1,), frozenset(gen.helpers), title="numbers")], buffers)
    return device.download(buffers["y"], dtypes.numpy_dtype("int32"), shape)
