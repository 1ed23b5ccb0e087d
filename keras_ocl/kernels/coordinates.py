"""C text that takes a flattened index apart."""

from keras_ocl.core.index import is_one


def unflattened(args, flat, extents):
    """C expressions of the row-major coordinates in `extents` of the index `flat` (a name or a parenthesised expression).

    Results are names, literals or in parentheses; divisions are printed only where there are several extents above 1.
    """
    result, rest = ["0"] * len(extents), flat
    real = [i for i, n in enumerate(extents) if not is_one(n)]
    for i in reversed(real[1:]):
        n = args.int(extents[i])
        result[i], rest = f"({rest} % {n})", f"({rest} / {n})"
    if real:
        result[real[0]] = rest
    return result
