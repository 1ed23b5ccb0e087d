"""What becomes fewer launches: loops whose steps are one, and small kernels that follow one another or are independent."""

import numpy as np

from keras_ocl import primitives as P
from keras_ocl.core.autodiff import GradientTape
from keras_ocl.verify.case import Case
from keras_ocl.verify.cases.numbers import normal, wide


def loops(traits, short):
    """The cases of loops."""
    sizes = [(12, 9, 24)] if short else [(12, 9, 24), (33, 40, 64), (5, 3, 100)]
    return [_recurrent(*size) for size in sizes] + [_while(7, 19)]


def _recurrent(steps, batch, units):
    """A gated recurrence with the gradients of its weights."""
    xs, first = normal("inputs", steps, batch, 2 * units), normal("state", batch, units)
    weights = normal("weights", units, 2 * units, scale=units**-0.5)

    def last(xs, first, weights):
        def step(index, carries, slices):
            both = P.add(slices[0], P.dot_general(carries[0], weights, ((1,), (0,))))
            gate = P.logistic(P.slice(both, (0, 0), (batch, units)))
            new = P.tanh(P.slice(both, (0, units), (batch, 2 * units)))
            state = P.add(P.mul(gate, carries[0]), P.mul(P.sub(P.full((batch, units), 1, "float32"), gate), new))
            return [state], [state]

        return P.scan(step, [first], [xs], steps)

    def function(xs, first, weights):
        with GradientTape() as tape:
            tape.watch([first, weights])
            (state,), (states,) = last(xs, first, weights)
            total = P.reduce_sum(P.mul(state, state), (0, 1))
        return [state, states, *tape.gradient(total, [first, weights])]

    def wanted():
        state, states, kept = wide(first), [], []
        for x in wide(xs):
            both = x + state @ wide(weights)
            gate, new = 1 / (1 + np.exp(-both[:, :units])), np.tanh(both[:, units:])
            kept.append((state, gate, new))
            state = gate * state + (1 - gate) * new
            states.append(state)
        ct, dw = 2 * state, np.zeros(weights.shape)
        for before, gate, new in reversed(kept):
            slopes = np.concatenate([ct * (before - new) * gate * (1 - gate), ct * (1 - gate) * (1 - new**2)], 1)
            dw += before.T @ slopes
            ct = ct * gate + slopes @ wide(weights).T
        return [state, np.stack(states), ct, dw]

    names = ("last state", "states", "gradient of the first state", "gradient of the weights")
    size = f"{steps} steps of {batch} x {units}"
    return Case(f"recurrence of {size}", function, (xs, first, weights), wanted, 64 + 8 * steps, lambda: _largest(wanted()), names)


def _while(rows, columns):
    x = normal("halved", rows, columns, scale=100)

    def function(x):
        def condition(variables):
            return P.gt(P.reduce_max(P.abs(variables[0]), (0, 1)), P.full((), 1, "float32"))

        def step(variables):
            value, count = variables
            return [P.mul(value, P.full((rows, columns), 0.5, "float32")), P.add(count, P.full((), 1, "int32"))]

        return P.while_loop(condition, step, [x, P.full((), 0, "int32")])

    def wanted():
        value, count = x.copy(), 0
        while abs(value).max() > 1:
            value, count = value * np.float32(0.5), count + 1
        return [value, np.array(count, np.int32)]

    return Case("a loop with a condition", function, (x,), wanted, names=("values", "number of steps"))


def joined(traits, short):
    """The cases of many small kernels."""
    return [_classifier(*size) for size in ([(13, 20, 30, 7)] if short else [(13, 20, 30, 7), (64, 33, 100, 10), (1, 5, 4, 3)])] + [
        _beside()
    ]


def _classifier(batch, inputs, hidden, classes):
    """Two dense layers, softmax, cross-entropy, and the steps of their weights."""
    x, w, v = normal("x", batch, inputs), normal("w", inputs, hidden, scale=inputs**-0.5), normal("v", hidden, classes, scale=hidden**-0.5)
    targets = np.eye(classes, dtype=np.float32)[np.arange(batch) % classes]

    def function(x, w, v, targets):
        with GradientTape() as tape:
            tape.watch([w, v])
            logits = P.dot_general(P.tanh(P.dot_general(x, w, ((1,), (0,)))), v, ((1,), (0,)))
            over = P.sub(logits, P.broadcast(P.reduce_max(logits, (1,)), (batch, classes), (0,)))
            logs = P.sub(over, P.broadcast(P.log(P.reduce_sum(P.exp(over), (1,))), (batch, classes), (0,)))
            loss = P.neg(P.mul(P.reduce_sum(P.mul(targets, logs), (0, 1)), P.full((), 1 / batch, "float32")))
        right = P.reduce_sum(P.convert(P.eq(P.argmax(logits, 1), P.argmax(targets, 1)), "float32"), (0,))
        steps = [P.sub(z, P.mul(P.full(z.shape, 0.5, "float32"), g)) for z, g in zip((w, v), tape.gradient(loss, [w, v]), strict=True)]
        return [loss, right, *steps]

    def wanted():
        h = np.tanh(wide(x) @ wide(w))
        logits = h @ wide(v)
        powers = np.exp(logits - logits.max(1, keepdims=True))
        weights = powers / powers.sum(1, keepdims=True)
        slopes = (weights - targets) / batch
        dw = wide(x).T @ (slopes @ wide(v).T * (1 - h**2))
        loss = -(targets * np.log(weights)).sum() / batch
        right = (logits.argmax(1) == targets.argmax(1)).sum()
        return [np.array(loss), np.array(right, float), wide(w) - 0.5 * dw, wide(v) - 0.5 * (h.T @ slopes)]

    names = ("loss", "accuracy", "first weights", "second weights")
    size = f"{batch} x {inputs} x {hidden} x {classes}"
    return Case(f"training step of a classifier {size}", function, (x, w, v, targets), wanted, 64, lambda: _largest(wanted()), names)


def _beside():
    """Independent small kernels of several kinds."""
    arrays = [normal(f"beside {k}", 20 + 7 * k, 11) for k in range(6)]

    def function(*xs):
        return [f(x) for x in xs for f in (lambda x: P.reduce_sum(x, (0,)), lambda x: P.reduce_max(x, (1,)), lambda x: P.mul(x, x))]

    def wanted():
        return [w for x in map(wide, arrays) for w in (x.sum(0), x.max(1), x * x)]

    def scales():
        return [w for x in map(wide, arrays) for w in (abs(x).sum(0), abs(x.max(1)), x * x)]

    return Case("independent small kernels", function, arrays, wanted, 16, scales)


def _largest(arrays):
    return [np.full(a.shape, abs(a).max() + 1e-3) for a in arrays]
