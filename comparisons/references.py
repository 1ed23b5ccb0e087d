"""What products, convolutions and attention should give: some of their results in float64, and how far a framework's are from those."""

import numpy as np

LINES = 16  # of a product's rows, and four times as many columns
CHANNELS = 8  # of a filter's gradient


def error(kind, arrays, results):
    """||results - reference|| / ||reference|| over some of the results; infinite where one is no number.

    Args:
        kind, arrays, results: see frameworks.measure.
    """
    found, wanted = _attention(kind, arrays, results) if kind.startswith("attention") else _OTHERS[kind](*arrays, *results)
    distance = np.linalg.norm(found.astype("float64") - wanted) / np.linalg.norm(wanted)
    return float(distance) if np.isfinite(distance) else float("inf")


def _some(count, number):
    """Indices of `number` lines of `count`, the first and the last among them."""
    return np.unique(np.linspace(0, count - 1, min(count, number)).astype(int))


def _product(a, b, result):
    a, b, result = (array.reshape(-1, *array.shape[-2:])[-1] for array in (a, b, result))
    rows, columns = _some(a.shape[0], LINES), _some(b.shape[1], 4 * LINES)
    return result[np.ix_(rows, columns)], a[rows].astype("float64") @ b[:, columns].astype("float64")


def _convolution(x, w, result):
    """The last image."""
    width, size = w.shape[0], x.shape[1:3]
    padded = np.pad(x[-1].astype("float64"), [(width // 2, width // 2)] * 2 + [(0, 0)])
    taps = [(i, j) for i in range(width) for j in range(width)]
    return result[-1], sum(padded[i : i + size[0], j : j + size[1]] @ w[i, j].astype("float64") for i, j in taps)


def _input_gradient(y, w, result):
    return _convolution(y, w[::-1, ::-1].transpose(0, 1, 3, 2), result)


def _filter_gradient(x, y, result):
    """The middle of the filters, where no padding counts, and the first corner, where it does."""
    x, y = x[..., :CHANNELS].astype("float64"), y[..., :CHANNELS].astype("float64")
    width = result.shape[0]
    middle, corner = np.tensordot(x, y, ((0, 1, 2),) * 2), np.tensordot(x[:, :-1, :-1], y[:, 1:, 1:], ((0, 1, 2),) * 2)
    found = result[[width // 2, width // 2 - 1], [width // 2, width // 2 - 1], :CHANNELS, :CHANNELS]
    return found, np.stack([middle, corner])


_OTHERS = {
    "product": _product,
    "convolution": _convolution,
    "input gradient": _input_gradient,
    "filter gradient": _filter_gradient,
}


def _attention(kind, arrays, results):
    """The last head of the last of the batch."""
    q, k, v, *y = (array[-1, :, -1].astype("float64") for array in arrays)
    scale = q.shape[-1] ** -0.5
    scores = q @ k.T * scale
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    weights /= weights.sum(-1, keepdims=True)
    if kind == "attention":
        wanted = [weights @ v]
    else:
        of_weights = y[0] @ v.T
        of_scores = weights * (of_weights - (of_weights * weights).sum(-1, keepdims=True)) * scale
        wanted = [of_scores @ k, of_scores.T @ q, weights.T @ y[0]]
    return np.stack([result[-1, :, -1] for result in results]), np.stack(wanted)
