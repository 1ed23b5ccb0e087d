"""Connectionist temporal classification: loss and decoding.

Graves, Fernández, Gomez & Schmidhuber, "Connectionist Temporal Classification" (2006); the beam search is the prefix search of
Hannun, Maas, Jurafsky & Ng, "First-Pass Large Vocabulary Continuous Speech Recognition using Bi-Directional Recurrent DNNs" (2014).
"""

from keras_ocl import primitives as P
from keras_ocl.ops import numpy as knp
from keras_ocl.ops.control_flow import scan
from keras_ocl.ops.conversion import convert_to_tensor
from keras_ocl.ops.nn.activations import log_softmax
from keras_ocl.ops.nn.encoding import one_hot
from keras_ocl.ops.promotion import scalar_like
from keras_ocl.ops.result_types import result_type

_LOG_ZERO = -1e5  # stands for log(0): finite, so that gradients are


def ctc_loss(target, output, target_length, output_length, mask_index=0):
    """-log(probability of the labels) of each sample.

    Args:
        target: (batch, labels) integers. output: (batch, time, classes) logits.
        target_length, output_length: (batch,) integers. mask_index: the blank's class.
    """
    target = convert_to_tensor(target, "int32")
    output = convert_to_tensor(output)
    output = convert_to_tensor(output, result_type(output.dtype, "float32"))
    target_length, output_length = convert_to_tensor(target_length, "int32"), convert_to_tensor(output_length, "int32")
    if target.ndim != 2 or output.ndim != 3:
        raise ValueError(
            "Targets `target` are expected to be a tensor of shape `(batch_size, max_length)` and `output` one of shape `(batch_size, time,"
            f" classes)`. Received: {tuple(target.shape)} and {tuple(output.shape)}."
        )
    batch, labels = target.shape
    if output.shape[0] != batch or tuple(target_length.shape) != (batch,) or tuple(output_length.shape) != (batch,):
        raise ValueError(
            f"ctc_loss: target {tuple(target.shape)}, output {tuple(output.shape)}, target_length {tuple(target_length.shape)} and"
            f" output_length {tuple(output_length.shape)} must have the same batch size."
        )
    states = 2 * labels + 1
    # The labels with blanks around each: blank, l1, blank, l2, ..., blank.
    path = P.pad(target, P.constant(mask_index, "int32"), (0, 1), (0, 1), (0, 1))
    # A label may follow another at once, with no blank between, unless they are equal.
    label = P.ne(P.rem(P.iota(path.shape, 1, "int32"), scalar_like(2, path)), scalar_like(0, path))
    skips = P.and_(label, P.ne(path, P.pad(path, P.constant(mask_index, "int32"), (0, 2), (0, -2))))
    encoded = one_hot(path, output.shape[2], dtype=output.dtype)
    emitted = P.dot_general(log_softmax(output), encoded, ((2,), (2,)), ((0,), (0,)))  # (batch, time, states)
    emitted = P.transpose(emitted, (1, 0, 2))
    shape = (batch, states)
    # Before the first step only the first blank is occupied; the first label is one state ahead of it.
    zero_log = P.full(shape, _LOG_ZERO, output.dtype)
    low = P.constant(_LOG_ZERO, output.dtype)
    start = P.select(P.eq(P.iota(shape, 1, "int32"), P.full(shape, 0, "int32")), P.full(shape, 0, output.dtype), zero_log)

    def step(carry, emission):
        alpha, time = carry
        one_back = P.pad(alpha, low, (0, 1), (0, -1))
        two_back = P.select(skips, P.pad(alpha, low, (0, 2), (0, -2)), zero_log)
        following = P.add(knp.logaddexp(knp.logaddexp(alpha, one_back), two_back), emission)
        running = P.broadcast(P.lt(P.broadcast(time, (batch,), ()), output_length), shape, (0,))
        return (P.select(running, following, alpha), P.add(time, P.constant(1, "int32"))), None

    (alpha, _), _ = scan(step, (start, convert_to_tensor(0, "int32")), emitted)
    last = P.mul(target_length, scalar_like(2, target_length))
    ends = [P.eq(P.iota(shape, 1, "int32"), P.broadcast(P.sub(last, scalar_like(k, last)), shape, (0,))) for k in (0, 1)]
    ends = [P.reduce_max(P.select(end, alpha, P.full(shape, 2 * _LOG_ZERO * 1e3, alpha.dtype)), (1,)) for end in ends]
    return P.neg(knp.logaddexp(*ends))


def ctc_decode(
    inputs,
    sequence_lengths,
    strategy="greedy",
    beam_width=100,
    top_paths=1,
    merge_repeated=True,
    mask_index=0,
):
    """The most probable labels of (batch, time, classes) `inputs`.

    Returns:
        (paths, batch, time) int32, -1 after the end, and scores (batch, paths).
    """
    if strategy not in ("greedy", "beam_search"):
        raise ValueError(f"Invalid strategy {strategy}. Supported values are 'greedy' and 'beam_search'.")
    inputs = convert_to_tensor(inputs)
    inputs = convert_to_tensor(inputs, result_type(inputs.dtype, "float32"))
    lengths = convert_to_tensor(sequence_lengths, "int32")
    if inputs.ndim != 3 or tuple(lengths.shape) != (inputs.shape[0],):
        raise ValueError(
            f"ctc_decode: inputs of shape {tuple(inputs.shape)} and sequence_lengths of shape {tuple(lengths.shape)} do not fit; they need"
            " shapes (batch, time, classes) and (batch,)."
        )
    if strategy == "beam_search" and not 1 <= top_paths <= beam_width:
        raise ValueError(f"ctc_decode: top_paths {top_paths} must be at least 1 and not more than beam_width {beam_width}.")
    if mask_index is None:
        mask_index = inputs.shape[2] - 1
    if strategy == "greedy":
        return _greedy(inputs, lengths, merge_repeated, mask_index)
    return _beam_search(inputs, lengths, beam_width, top_paths, mask_index)


def _greedy(inputs, lengths, merge_repeated, blank):
    batch, time, _ = inputs.shape
    shape = (batch, time)
    inside = P.lt(P.iota(shape, 1, "int32"), P.broadcast(lengths, shape, (0,)))
    blanks = P.full(shape, blank, "int32")
    labels = P.select(inside, P.argmax(inputs, 2), blanks)
    scores = P.select(inside, P.reduce_max(inputs, (2,)), P.full(shape, 0, inputs.dtype))
    if merge_repeated:
        repeated = P.eq(labels, P.pad(labels, P.constant(-1, "int32"), (0, 1), (0, -1)))
        labels = P.select(repeated, blanks, labels)
    empty = P.eq(labels, blanks)
    # A stable sort by "is a blank" moves what is left to the front.
    _, labels = P.sort((P.convert(empty, "int32"), P.select(empty, P.full(shape, -1, "int32"), labels)), 1)
    return P.reshape(labels, (1, *shape)), P.neg(P.reshape(P.reduce_sum(scores, (1,)), (batch, 1)))


def _beam_search(inputs, lengths, width, top_paths, blank):
    """Prefix beam search, all samples at once; a beam is a prefix with the probabilities that it ends in a blank or not."""
    batch, time, classes = inputs.shape
    dtype = inputs.dtype
    steps = P.transpose(log_softmax(inputs), (1, 0, 2))
    low = float("-inf")
    beams, across = (batch, width), (batch, width, width)
    first = P.eq(P.iota(beams, 1, "int32"), P.full(beams, 0, "int32"))
    nothing = P.full(beams, low, dtype)
    start = (
        P.full((batch, width, time), -1, "int32"),  # prefixes
        P.full(beams, 0, "int32"),  # their lengths
        P.full(beams, -1, "int32"),  # their last labels
        P.select(first, P.full(beams, 0, dtype), nothing),  # log probability of ending in a blank
        nothing,  # and in a label
        convert_to_tensor(0, "int32"),
    )

    def step(carry, scores):
        prefixes, extents, tails, blanks, others, now = carry
        total = knp.logaddexp(blanks, others)
        of_blank = P.broadcast(P.reshape(P.slice(scores, (0, blank), (batch, blank + 1)), (batch,)), beams, (0,))
        of_tail = _score_of(scores, tails)
        # The prefix stays: a blank, or its last label once more.
        stay_blank = P.add(total, of_blank)
        stay_label = P.add(others, of_tail)
        # Prefix i grows by class c. Where that makes the prefix of another beam j, its probability goes there.
        wide = (batch, width, classes)
        label = P.iota(wide, 2, "int32")
        again = P.eq(label, P.broadcast(tails, wide, (0, 1)))
        grown = P.select(again, P.broadcast(blanks, wide, (0, 1)), P.broadcast(total, wide, (0, 1)))
        grown = P.add(grown, P.broadcast(scores, wide, (0, 2)))
        grown = P.select(P.eq(label, P.full(wide, blank, "int32")), P.full(wide, low, dtype), grown)
        joins = _continues(prefixes, extents, time)  # (batch, j, i)
        same = P.eq(P.broadcast(tails, across, (0, 1)), P.broadcast(tails, across, (0, 2)))
        arriving = P.select(same, P.broadcast(blanks, across, (0, 2)), P.broadcast(total, across, (0, 2)))
        arriving = P.add(arriving, P.broadcast(of_tail, across, (0, 1)))
        arriving = P.reduce_max(P.select(joins, arriving, P.full(across, low, dtype)), (2,))
        stay_label = knp.logaddexp(stay_label, arriving)
        deep = (batch, width, width, classes)  # (batch, j, i, class)
        taken = P.eq(P.iota(deep, 3, "int32"), P.broadcast(tails, deep, (0, 1)))
        taken = P.reduce_or(P.and_(P.broadcast(joins, deep, (0, 1, 2)), taken), (1,))
        grown = P.select(taken, P.full(wide, low, dtype), grown)
        # The best of all.
        candidates = P.concat([knp.logaddexp(stay_blank, stay_label), P.reshape(grown, (batch, width * classes))], 1)
        _, chosen = P.top_k(candidates, width)
        growing = P.ge(chosen, P.full(beams, width, "int32"))
        extension = P.max(P.sub(chosen, P.full(beams, width, "int32")), P.full(beams, 0, "int32"))
        n = P.full(beams, classes, "int32")
        origin = P.select(growing, P.floor_div(extension, n), chosen)
        added = P.rem(extension, n)
        old_extents = _picked(extents, origin)
        old = P.gather(prefixes, (P.iota(beams, 0, "int32"), origin), (0, 1))
        at_end = P.eq(P.iota(old.shape, 2, "int32"), P.broadcast(old_extents, old.shape, (0, 1)))
        at_end = P.and_(at_end, P.broadcast(growing, old.shape, (0, 1)))
        new = (
            P.select(at_end, P.broadcast(added, old.shape, (0, 1)), old),
            P.select(growing, P.add(old_extents, P.full(beams, 1, "int32")), old_extents),
            P.select(growing, added, _picked(tails, origin)),
            P.select(growing, nothing, _picked(stay_blank, origin)),
            P.select(growing, _picked(P.reshape(grown, (batch, width * classes)), extension), _picked(stay_label, origin)),
        )
        running = P.lt(P.broadcast(now, (batch,), ()), lengths)
        kept = tuple(P.select(P.broadcast(running, a.shape, (0,)), a, b) for a, b in zip(new, carry[:5], strict=True))
        return (*kept, P.add(now, P.constant(1, "int32"))), None

    (prefixes, _, _, blanks, others, _), _ = scan(step, start, steps)
    scores, best = P.top_k(knp.logaddexp(blanks, others), top_paths)
    paths = P.gather(prefixes, (P.iota((batch, top_paths), 0, "int32"), best), (0, 1))
    return P.transpose(paths, (1, 0, 2)), scores


def _picked(x, positions):
    """x[b, positions[b, k]]."""
    return P.gather(x, (P.iota(positions.shape, 0, "int32"), positions), (0, 1))


def _score_of(scores, labels):
    """scores[b, labels[b, k]]; label -1 (none) gives -inf."""
    known = P.ge(labels, scalar_like(0, labels))
    found = _picked(scores, P.max(labels, scalar_like(0, labels)))
    return P.select(known, found, scalar_like(float("-inf"), found))


def _continues(prefixes, extents, time):
    """Whether prefix j is prefix i and one label more, as (batch, j, i)."""
    batch, width, _ = prefixes.shape
    across, deep = (batch, width, width), (batch, width, width, time)
    longer, shorter = P.broadcast(extents, across, (0, 1)), P.broadcast(extents, across, (0, 2))
    by_one = P.eq(longer, P.add(shorter, P.full(across, 1, "int32")))
    equal = P.eq(P.broadcast(prefixes, deep, (0, 1, 3)), P.broadcast(prefixes, deep, (0, 2, 3)))
    beyond = P.ge(P.iota(deep, 3, "int32"), P.broadcast(extents, deep, (0, 2)))
    return P.and_(by_one, P.reduce_and(P.or_(equal, beyond), (3,)))
