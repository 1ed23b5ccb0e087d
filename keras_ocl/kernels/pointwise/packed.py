"""Packs, on GPUs: a work-item computes up to 4 adjacent elements, which it loads and stores as aligned vectors of at most 16 bytes.

This takes a quarter of the instructions for indices and memory, and keeps more bytes in flight. It is for kernels of elementwise
operations only, whose operands all have the memory layout of the results, or one element for a whole pack.
"""

from keras_ocl.core import dtypes
from keras_ocl.core.dim import Dim, ceil_div, product, size_hint
from keras_ocl.kernels.overrides import tuning_of
from keras_ocl.kernels.pointwise.unflatten import unflatten

_BYTES = 16  # bytes of the widest load of a work-item
_LANES = 4


def lanes(traits, gen, nest):
    """Elements of a pack; 1 for no packs, if a load or store would not be aligned or too few work-items would remain."""
    if len(gen.nests) > 1 or nest.masked or not nest.vectorisable or nest.strided or not nest.groups:
        return 1
    count = widest(nest.places)
    inner = nest.groups[-1]
    if len(nest.groups) > 1 and not multiple(nest.length(inner), count):
        return 1
    if not all(aligned(place, nest, inner, count) for place in nest.places):
        return 1
    enough = traits.compute_units * tuning_of(traits).unit_items
    return count if size_hint(nest.extents) >= enough * count else 1


def widest(places):
    """Most elements of a pack that reads and writes `places`, the Places of the kernel's loads and stores."""
    return min(_LANES, _BYTES // max(dtypes.itemsize(place.dtype) for place in places))


def aligned(place, nest, inner, count):
    """Whether a Place has one element for a pack along the Nest's dimensions `inner`, or starts at a multiple of `count` elements."""
    if place.offset is None:
        return False
    along = [v.nest is nest and v.position in inner for v in place.offset.terms]
    if not any(along):
        return True
    others = [c for c, own in zip(place.offset.terms.values(), along, strict=True) if not own]
    others += [] if place.buffer.slice is None else [place.buffer.slice.elements]
    return all(multiple(n, count) for n in (*others, place.offset.constant))


def multiple(n, count):
    """Whether `n`, an int or a Dim, is known to be a multiple of `count`, whatever the unknown extents are."""
    rest = n % count
    return not isinstance(rest, Dim) and rest == 0


def write(traits, gen, nest, count, evaluate):
    """(grid, group) of loops over packs of `count` elements around `evaluate`."""
    *outer, inner = nest.groups
    length, t = nest.length(inner), gen.ctype
    whole = multiple(length, count)
    items = product(nest.length(g) for g in outer) * ceil_div(length, count)
    gen.emit(f"const {t} item = {gen.args.place('global', 0)};")
    gen.emit(gen.args.leave(f"item >= {gen.int(items)}"))
    variables, place = [], "item"
    if outer:
        packs = gen.int(length // count)
        gen.emit(f"const {t} row = item / {packs};")
        variables, place = unflatten(gen, nest, outer, "row"), f"(item - row * {packs})"
    gen.emit(f"const {t} begin = {place} * {count};")
    if not whole:
        gen.open(f"if (begin <= {gen.int(length)} - {count})")
    own = gen.group_vars(nest, inner, "begin", gen.block)
    saved = gen.width, gen.vector
    gen.width, gen.vector, gen.whole = count, own[-1], True
    evaluate(variables + own)
    gen.width, gen.vector = saved
    gen.whole = False
    if not whole:
        gen.close_loop()
        gen.open(f"if (begin > {gen.int(length)} - {count})")  # no `else`: code common to all packs may be emitted in between
        evaluate(variables + gen.open_loop(nest, inner, gen.block, 0, ("begin", gen.int(length))))
        gen.close_loop()
        gen.close_loop()
    size = min(tuning_of(traits).pointwise_group, traits.max_group)
    return (ceil_div(items, size) * size,), (size,)
