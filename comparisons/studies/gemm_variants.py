"""Matrix products as a thesis tuned them by hand, step by step, next to this backend's own and to other backends'.

C[m, n] = A[m, k] B[k, n] in float32, row-major. Its four kernels, written anew for OpenCL as custom ops:

- v1: one work-group for all of C, one work-item per element, operands read from global memory;
- v2: v1 with both operands copied to local memory first;
- v3: C cut into tiles, a work-group each, operands read from global memory;
- v4: v3 with a tile of each operand in local memory at a time, along k (the tiled product of NVIDIA's CUDA C++ programming guide).

v1 and v2 take only what one work-group and its local memory can hold; a size that they refuse has the device's reason instead of times.
Other backends have the one variant "matmul", which is `keras.ops.matmul`, compiled where they compile.
"""

import time

from comparisons.measures import spread

TILE = 16  # rows and columns of a tile; the thesis does not give its own
SIZES = (50, 10, 50), (64, 64, 64), (256, 256, 256), (512, 512, 512), (1024, 1024, 1024), (333, 777, 111)  # m, k, n
REPEATS = 7
SECONDS = 0.05  # that a timed repeat takes at least, unless one product takes longer

ELEMENT = """
    const int row = get_global_id(1), column = get_global_id(0);
    const int m = a_shape[0], k = a_shape[1], n = b_shape[1];
"""
GLOBAL = """
    if (row < m && column < n) {
        float sum = 0;
        for (int p = 0; p < k; ++p) sum += a[row * k + p] * b[p * n + column];
        c[row * n + column] = sum;
    }
"""
WHOLE_LOCAL = """
    const int item = row * n + column;
    for (int e = item; e < m * k; e += m * n) a_local[e] = a[e];
    for (int e = item; e < k * n; e += m * n) b_local[e] = b[e];
    barrier(CLK_LOCAL_MEM_FENCE);
    float sum = 0;
    for (int p = 0; p < k; ++p) sum += a_local[row * k + p] * b_local[p * n + column];
    c[item] = sum;
"""
TILED_LOCAL = """
    const int r = get_local_id(1), q = get_local_id(0);
    float sum = 0;
    for (int first = 0; first < k; first += TILE) {
        a_tile[r * TILE + q] = row < m && first + q < k ? a[row * k + first + q] : 0.0f;
        b_tile[r * TILE + q] = first + r < k && column < n ? b[(first + r) * n + column] : 0.0f;
        barrier(CLK_LOCAL_MEM_FENCE);
        for (int p = 0; p < TILE; ++p) sum += a_tile[r * TILE + p] * b_tile[p * TILE + q];
        barrier(CLK_LOCAL_MEM_FENCE);
    }
    if (row < m && column < n) c[row * n + column] = sum;
""".replace("TILE", str(TILE))


def _whole(a, b):
    return b[1], a[0]


def _tiles(a, b):
    return -(-b[1] // TILE) * TILE, -(-a[0] // TILE) * TILE


def _tile(a, b):
    return TILE, TILE


def variants(m, k, n):
    """Return the thesis's kernels as custom ops (a, b) -> c by name, for products of this size."""
    import keras_ocl

    def op(name, source, items, group, **local):
        shape = {"shape": lambda a, b: (a[0], b[1]), "items": items, "group": group}
        arrays = {array: ("float", elements) for array, elements in local.items()}
        return keras_ocl.custom_op(ELEMENT + source, ("a", "b"), "c", name=f"gemm_{name}", local=arrays, **shape)

    return {
        "v1": op("v1", GLOBAL, _whole, _whole),
        "v2": op("v2", WHOLE_LOCAL, _whole, _whole, a_local=m * k, b_local=k * n),
        "v3": op("v3", GLOBAL, _tiles, _tile),
        "v4": op("v4", TILED_LOCAL, _tiles, _tile, a_tile=TILE * TILE, b_tile=TILE * TILE),
    }


def compiled(function):
    """Return `function` as the current backend compiles functions of arrays; torch runs it as it is."""
    import keras

    backend = keras.config.backend()
    if backend == "ocl":
        import keras_ocl

        return keras_ocl.jit(function)
    if backend == "tensorflow":
        import tensorflow as tf

        return tf.function(function)
    if backend == "jax":
        import jax

        return jax.jit(function)
    return function


def product_seconds(product, a, b, repeats):
    """Time `product(a, b)`: a list of seconds, each the mean of as many calls as take SECONDS, the last of which is read back."""
    import keras

    def calls(count):
        began = time.perf_counter()
        for _ in range(count):
            c = product(a, b)
        keras.ops.convert_to_numpy(c)
        return time.perf_counter() - began

    calls(1)
    count = max(1, min(1000, int(SECONDS / calls(1))))
    calls(count)
    return [calls(count) / count for _ in range(repeats)]


def error(c, a, b):
    """Return how far `c` is from the product in float64, in units of the largest error that k sums in float32 can have (Higham, 2002).

    At most 1 for a right result, whatever the order of its sums.
    """
    import numpy as np

    a, b = a.astype("float64"), b.astype("float64")
    bound = a.shape[1] * np.finfo("float32").eps / 2 * (abs(a) @ abs(b))
    return float((abs(c - a @ b) / bound).max())


def measure_size(m, k, n, repeats=REPEATS):
    """Time all variants that the current backend has at one size.

    Returns:
        A dict {variant: {"seconds": [...], "gflops": spread, "error": see `error`}}; for a variant that the device cannot run at this size
        {"refused": why}.

    Raises:
        ArithmeticError: a variant computes something else than the product.
    """
    import keras
    import numpy as np

    generator = np.random.default_rng([m, k, n])
    a, b = (generator.uniform(-1, 1, shape).astype("float32") for shape in ((m, k), (k, n)))
    operands = [keras.ops.convert_to_tensor(x) for x in (a, b)]
    products = variants(m, k, n) if keras.config.backend() == "ocl" else {}
    found = {}
    for name, product in {**products, "matmul": keras.ops.matmul}.items():
        product = compiled(product)
        try:
            c = keras.ops.convert_to_numpy(product(*operands))
        except ValueError as refusal:
            if name not in ("v1", "v2"):
                raise
            found[name] = {"refused": next(line for line in str(refusal).splitlines() if "custom_op" in line)}
            continue
        off = error(c, a, b)
        if not off <= 1:
            raise ArithmeticError(f"{name} of {m}x{k} and {k}x{n} is {off:.1f} times as far from NumPy's float64 as rounding can be")
        seconds = product_seconds(product, *operands, repeats)
        gflops = spread([2 * m * k * n / s / 1e9 for s in seconds])
        found[name] = {"seconds": seconds, "gflops": gflops, "error": off}
    return found


def measure(context):
    """Time products of the sizes in settings["sizes"] (SIZES), each extent.repeats times.

    Adds gemm: {"MxKxN": {variant: see `measure_size`}}, and gemm_tile.
    """
    sizes, found = context.row.settings.get("sizes", SIZES), {}
    for done, (m, k, n) in enumerate(sizes):
        context.progress(f"products {m}x{k} by {k}x{n}", done, len(sizes))
        found[f"{m}x{k}x{n}"] = measure_size(m, k, n, context.extent.repeats)
    return {"gemm": found, "gemm_tile": TILE}
