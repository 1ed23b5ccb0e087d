"""Recurrence over time for any cell, step by step."""

from keras.src import tree

from keras_ocl import primitives as P
from keras_ocl.core import dtypes
from keras_ocl.ops.control_flow import discarded, scan_steps, unrolls
from keras_ocl.ops.conversion import convert_to_tensor
from keras_ocl.ops.numpy import shapes
from keras_ocl.ops.promotion import as_bool, broadcast_to


def rnn(
    step_function,
    inputs,
    initial_states,
    go_backwards=False,
    mask=None,
    constants=None,
    unroll=False,
    input_length=None,
    time_major=False,
    zero_output_for_mask=False,
    return_all_outputs=True,
):
    """Apply output, states = step_function(input at t, states + constants) along the time axis of `inputs`.

    Inside a trace the step is traced once (see ops/control_flow.py); with `unroll`, and in eager code, once per time step.

    Args:
        inputs: tensor or nest of tensors (batch, time, ...), with `time_major` (time, batch, ...).
        initial_states: list of tensors or nests of them.
        go_backwards: whether to go from the last time step to the first; outputs are in the order of computation.
        mask: (batch, time) or (batch, time, 1) bool; where it is False the states stay, and the output is the previous one, or zero
            with `zero_output_for_mask`.
        constants: further tensors handed to each step.
        return_all_outputs: whether `outputs` holds all steps; False: the last one only.
    Returns:
        (last output, outputs (batch, time, ...), states after the last step).
    Raises:
        ValueError: there are no time steps; or a step fails, for instance as the shapes of states do not fit.
    """
    inputs = tree.map_structure(convert_to_tensor, inputs)
    if not time_major:
        inputs = tree.map_structure(_time_batch_swapped, inputs)
    length = tree.flatten(inputs)[0].shape[0]
    if length == 0:
        raise ValueError(f"rnn: inputs of shape {tuple(tree.flatten(inputs)[0].shape)} (time first) have no time steps.")
    if mask is not None:
        mask = as_bool(mask)
        if mask.ndim == 2:
            mask = P.reshape(mask, (*mask.shape, 1))
        if not time_major:
            mask = _time_batch_swapped(mask)
    states = tree.map_structure(convert_to_tensor, tuple(initial_states))
    recurrence = _Recurrence(step_function, inputs, mask, tuple(constants or ()), zero_output_for_mask, go_backwards, return_all_outputs)
    run = recurrence.unrolled if unroll or unrolls(length) else recurrence.compiled
    try:
        last, outputs, states = run(states)
    except ValueError as error:
        raise _explained(error, inputs, states, time_major) from error
    if not time_major:
        outputs = tree.map_structure(_time_batch_swapped, outputs)
    return last, outputs, list(states)


def sizes(x):
    """The shape of a tensor or array, as a tuple of ints."""
    return tuple(int(n) for n in x.shape)


def _explained(error, inputs, states, time_major):
    """A step's ValueError with the step's shapes added, as a wrong initial state is its usual cause."""
    cause = error.__context__ if isinstance(error.__context__, ValueError) else error  # Keras wraps a cell's errors in many lines
    first = sizes(tree.flatten(inputs)[0])
    given = first if time_major else (first[1], first[0], *first[2:])
    shapes = " and ".join(str(sizes(s)) for s in tree.flatten(states))
    hint = f"give an initial_state of the shapes that the cell expects, beginning with the batch, {given[1 if time_major else 0]}"
    return ValueError(f"{cause} (rnn: inputs of shape {given}, states of {shapes}; {hint}.)")


class _Recurrence:
    """A step function and the inputs that it runs over, with time as the first axis."""

    def __init__(self, step, inputs, mask, constants, zero, backwards, all_outputs):
        self.step, self.inputs, self.mask, self.constants = step, inputs, mask, constants
        self.zero, self.backwards, self.all_outputs = zero, backwards, all_outputs

    def _advance(self, x, states, mask, previous):
        """(output, new states) of one step. `previous`: function from the output to the values for where the mask is False."""
        output, new = self.step(x, states + self.constants)
        output, new = tree.map_structure(convert_to_tensor, (output, tuple(new)))
        if mask is not None:
            output = tree.map_structure(lambda y, old: _where(mask, y, old), output, previous(output))
            new = tree.map_structure(lambda y, old: _where(mask, y, old), new, states)
        return output, new

    def unrolled(self, states):
        """Run all steps one after the other; returns (last output, outputs, states)."""
        slices = [shapes.unstacked(x) for x in tree.flatten(self.inputs)]
        masks = None if self.mask is None else shapes.unstacked(self.mask)
        outputs, previous = [], None
        for t in reversed(range(len(slices[0]))) if self.backwards else range(len(slices[0])):

            def before(output, previous=previous):
                return _zeros(output) if self.zero or previous is None else previous

            x = tree.pack_sequence_as(self.inputs, [s[t] for s in slices])
            previous, states = self._advance(x, states, None if masks is None else masks[t], before)
            outputs = [*outputs, previous] if self.all_outputs else [previous]
        return previous, tree.map_structure(lambda *ys: shapes.stack(list(ys)), *outputs), states

    def compiled(self, states):
        """The same as `unrolled`, by a scan."""
        count = len(tree.flatten(states))
        keeps = self.mask is not None and not self.zero  # whether the previous output is needed
        like, same = (None, ()) if self.all_outputs and not keeps else self._output(states)
        carried = [] if like is None else [j for j, k in enumerate(same) if keeps or k is None]
        structure = like

        def step(_, carries, slices):
            nonlocal structure
            now = tree.pack_sequence_as(states, carries[:count])
            mask = None if self.mask is None else slices[-1]
            x = tree.pack_sequence_as(self.inputs, slices[: len(tree.flatten(self.inputs))])

            def before(output):
                return tree.pack_sequence_as(like, carries[count:]) if keeps else _zeros(output)

            structure, new = self._advance(x, now, mask, before)
            new = [_as_float(y, old.dtype) for y, old in zip(tree.flatten(new), carries, strict=False)]
            flat = tree.flatten(structure)
            return [*new, *(flat[j] for j in carried)], flat if self.all_outputs else []

        init = [*tree.flatten(states), *(P.zeros_like(tree.flatten(like)[j]) for j in carried)]
        xs = [*tree.flatten(self.inputs), *(() if self.mask is None else (self.mask,))]
        length = xs[0].shape[0]
        carries, outputs = scan_steps(step, init, xs, length, self.backwards)
        if self.all_outputs:
            place = 0 if self.backwards else length - 1
            last = [P.reshape(P.slice(y, (place, *(0 for _ in y.shape[1:])), (place + 1, *y.shape[1:])), y.shape[1:]) for y in outputs]
            outputs = [P.reverse(y, (0,)) for y in outputs] if self.backwards else outputs
        else:
            last = [carries[count + carried.index(j)] if j in carried else carries[k] for j, k in enumerate(same)]
            outputs = [P.reshape(y, (1, *y.shape)) for y in last]
        last, outputs = tree.pack_sequence_as(structure, last), tree.pack_sequence_as(structure, outputs)
        return last, outputs, tree.pack_sequence_as(states, carries[:count])

    def _output(self, states):
        """A step's output (from a trace that is dropped), and for each of its tensors the index of the new state equal to it, or None."""
        with discarded():
            first = tree.map_structure(lambda x: P.reshape(P.slice(x, (0,) * x.ndim, (1, *x.shape[1:])), x.shape[1:]), self.inputs)
            output, new = self.step(first, states + self.constants)
            output, new = tree.map_structure(convert_to_tensor, (output, tuple(new)))
        places = {id(s): k for k, s in enumerate(tree.flatten(new)) if s.dtype == tree.flatten(states)[k].dtype}
        return output, [None if self.mask is not None else places.get(id(y)) for y in tree.flatten(output)]


def _time_batch_swapped(x):
    return P.transpose(x, (1, 0, *range(2, x.ndim)))


def _as_float(x, dtype):
    """A float state in its initial dtype; other states must keep theirs."""
    return P.convert(x, dtype) if dtypes.is_float(x.dtype) and dtypes.is_float(dtype) and x.dtype != dtype else x


def _zeros(nest):
    return tree.map_structure(P.zeros_like, nest)


def _where(mask, new, old):
    """`new` where the (batch, 1) mask is True, else `old`."""
    mask = P.reshape(mask, (*mask.shape, *(1 for _ in range(new.ndim - mask.ndim)))) if new.ndim > mask.ndim else mask
    return P.select(broadcast_to(mask, new.shape), new, broadcast_to(convert_to_tensor(old, new.dtype), new.shape))


def without_steps(layer, sequences, initial_state, training):
    """The result of an RNN layer for `sequences` (batch, 0, ...): as after one masked step, that is zeros and the initial states."""
    from keras.src.layers.rnn.rnn import RNN

    batch = sequences.shape[0]
    step = P.full((batch, 1, *sequences.shape[2:]), 0, sequences.dtype)
    result = RNN.call(layer, step, initial_state, P.full((batch, 1), False, "bool"), training)
    if not layer.return_sequences:
        return result
    outputs, *states = result if layer.return_state else (result,)
    outputs = P.slice(outputs, (0,) * outputs.ndim, (batch, 0, *outputs.shape[2:]))
    return (outputs, *states) if layer.return_state else outputs
