"""Few cases of a full grid of parameters that still meet in every pair."""

import itertools


def pairwise(*parameters, allowed=lambda *case: True):
    """Cases (one value of each parameter) such that any two values of two parameters that meet in an allowed case meet in one of these.

    For `pytest.mark.parametrize` with the names of the parameters in one string. The choice depends on the order of the values alone:
    the next case is the one that brings most new pairs, of equals the first of the grid.

    Args:
        parameters: the values of each of at least two parameters.
        allowed: function from the values of a case to whether it exists.
    """
    parameters = [list(values) for values in parameters]
    grid = [at for at in itertools.product(*(range(len(p)) for p in parameters)) if allowed(*_values(parameters, at))]
    left = {at: set(itertools.combinations(enumerate(at), 2)) for at in grid}  # the pairs of each case that none of the chosen has
    chosen = []
    while left:
        best = max(left, key=lambda at: len(left[at]))
        chosen.append(best)
        brought = left.pop(best)
        left = {at: remaining for at, pairs in left.items() if (remaining := pairs - brought)}
    return [_values(parameters, at) for at in sorted(chosen)]


def _values(parameters, at):
    return tuple(values[k] for values, k in zip(parameters, at, strict=True))
