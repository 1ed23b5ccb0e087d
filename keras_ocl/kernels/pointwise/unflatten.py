"""Splits a flat index into loop variables."""

from keras_ocl.core.dim import product


def unflatten(gen, nest, groups, name):
    """Vars of all dimensions of `groups`, computed from the flat index in the C variable `name`."""
    ctype = gen.ctype
    block, variables = gen.block, []
    for k in range(len(groups) - 1, -1, -1):
        extent = product(nest.extents[i] for i in groups[k])
        own = gen.name("g")
        if k == 0:
            gen.emit(f"const {ctype} {own} = {name};")
        else:
            rest = gen.name("g")
            n = gen.int(extent)
            gen.emit(f"const {ctype} {rest} = {name} / {n};")
            gen.emit(f"const {ctype} {own} = {name} - {rest} * {n};")
            name = rest
        variables = gen.group_vars(nest, groups[k], own, block) + variables
    return variables
