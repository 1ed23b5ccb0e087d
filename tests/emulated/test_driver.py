"""The emulated GPU by itself, with pyopencl: commands, launches, and the faults that it is there to find.

`python -m tests.emulated FOLDER DEVICE driver` runs these tests; elsewhere they are skipped.
"""

import os

import numpy as np
import pyopencl as cl
import pytest

from tests.emulated import settings

pytestmark = pytest.mark.skipif("EMULATED_CHECKOUT" not in os.environ, reason="python -m tests.emulated FOLDER runs it on its device")

SOURCE = """
__kernel void add(__global const float *a, __global const float *b, __global float *c, float k) {
  int i = get_global_id(0);
  c[i] = a[i] * k + b[i];
}
__kernel void total(__global const float *x, __global float *y, __local float *part, int n) {
  int l = get_local_id(0), w = get_local_size(0);
  float s = 0;
  for (int i = get_global_id(0); i < n; i += get_global_size(0)) s += x[i];
  part[l] = s;
  barrier(CLK_LOCAL_MEM_FENCE);
  for (int k = w / 2; k; k >>= 1) {
    if (l < k) part[l] += part[l + k];
    barrier(CLK_LOCAL_MEM_FENCE);
  }
  if (!l) y[get_group_id(0)] = part[0];
}
__kernel void count(__global const int *x, __global int *y) { atomic_add(y + (x[get_global_id(0)] & 7), 1); }
__kernel void tickets(__global int *next, __global int *y) { y[get_global_id(0)] = atomic_add(next, 1); }
__kernel void grid(__global int *y, int w) {
  int i = get_global_id(1) * w + get_global_id(0);
  y[i] = get_global_id(0) + 1000 * get_global_id(1) + 100000 * get_local_id(1) + 10000000 * get_num_groups(1);
}
__kernel void shifted(__global int *y) { y[get_global_id(0) - get_global_offset(0)] = get_global_id(0); }
__kernel void array(__global float *y, int n) {
  float t[64];
  for (int k = 0; k < 64; k++) t[k] = k * n;
  barrier(CLK_LOCAL_MEM_FENCE);
  y[get_global_id(0)] = t[(get_global_id(0) * 7 + n) & 63];
}
"""
# The first wave reads what the last one writes, and the last one what the first one writes.
EXCHANGE = """
__kernel void exchange(__global const int *x, __global int *y) {
  __local int t[256];
  int l = get_local_id(0);
  for (int k = 0; k < 4; ++k) {
    t[l] = x[l] + k;
    FIRST
    y[k * 256 + l] = t[255 - l];
    SECOND
  }
}
"""
BARRIER = "barrier(CLK_LOCAL_MEM_FENCE);"


@pytest.fixture(scope="module")
def queue():
    device = next(d for p in cl.get_platforms() if "Emulated" in p.name for d in p.get_devices())
    return cl.CommandQueue(cl.Context([device]), properties=cl.command_queue_properties.PROFILING_ENABLE)


@pytest.fixture(scope="module")
def program(queue):
    return built(queue, SOURCE)


def built(queue, source, options=()):
    return cl.Program(queue.context, source).build(list(options))


def buffer(queue, array):
    return cl.Buffer(queue.context, cl.mem_flags.READ_WRITE | cl.mem_flags.COPY_HOST_PTR, hostbuf=array)


def read(queue, memory, shape, dtype):
    array = np.empty(shape, dtype)
    cl.enqueue_copy(queue, array, memory)
    return array


def floats(n, seed=0):
    return np.random.default_rng(seed).standard_normal(n).astype("float32")


def test_a_launch_and_its_times(queue, program):
    a, b = floats(1000), floats(1000, 1)
    c = buffer(queue, np.zeros_like(a))
    event = program.add(queue, (1000,), (100,), buffer(queue, a), buffer(queue, b), c, np.float32(2))
    assert np.allclose(read(queue, c, 1000, "f4"), a * 2 + b) and event.profile.end > event.profile.start


def test_a_sum_through_local_memory(queue, program):
    a = floats(1000)
    y = buffer(queue, np.zeros(4, "f4"))
    program.total(queue, (256,), (64,), buffer(queue, a), y, cl.LocalMemory(256), np.int32(1000))
    assert np.isclose(read(queue, y, 4, "f4").sum(), a.sum(dtype="f8"), atol=1e-4)


def test_atomic_operations(queue, program):
    x = np.random.default_rng(0).integers(0, 100, 512).astype("i4")
    y = buffer(queue, np.zeros(8, "i4"))
    program.count(queue, (512,), None, buffer(queue, x), y)
    assert np.array_equal(read(queue, y, 8, "i4"), np.bincount(x & 7, minlength=8))
    y = buffer(queue, np.zeros(512, "i4"))
    program.tickets(queue, (512,), (64,), buffer(queue, np.zeros(1, "i4")), y)
    assert sorted(read(queue, y, 512, "i4")) == [*range(512)]


def test_indices_and_offsets(queue, program):
    y = buffer(queue, np.zeros((12, 20), "i4"))
    program.grid(queue, (20, 12), (10, 4), y, np.int32(20))
    i, j = np.mgrid[:12, :20]
    assert np.array_equal(read(queue, y, (12, 20), "i4"), j + 1000 * i + 100000 * (i % 4) + 30000000)
    y = buffer(queue, np.zeros(64, "i4"))
    program.shifted(queue, (64,), (32,), y, global_offset=(500,))
    assert np.array_equal(read(queue, y, 64, "i4"), np.arange(64) + 500)


def test_arrays_of_an_item(queue, program):
    y = buffer(queue, np.zeros(256, "f4"))
    program.array(queue, (256,), (256,), y, np.int32(3))
    assert np.array_equal(read(queue, y, 256, "f4"), ((np.arange(256) * 7 + 3) & 63) * 3)


def test_arrays_in_registers(queue):
    """Of which the compiler makes moves between registers whose numbers it does not know."""
    text = """__kernel void f(__global const float *x, __global float *y, int k) {
      int i = get_global_id(0);
      float t[8];
      vstore8(vload8(i, x), 0, t);
      t[k] = 77;
      y[2 * i] = t[k + 3 & 7], y[2 * i + 1] = t[(k & 3) * 2];
    }"""
    x, kernel = floats(512).reshape(64, 8), built(queue, text).f
    for k in (0, 2, 5, 7):
        y, wanted = buffer(queue, np.zeros((64, 2), "f4")), x.copy()
        wanted[:, k] = 77
        kernel(queue, (64,), (64,), buffer(queue, x), y, np.int32(k))
        np.testing.assert_array_equal(read(queue, y, (64, 2), "f4"), wanted[:, [k + 3 & 7, (k & 3) * 2]])


def test_commands_on_buffers(queue):
    a = floats(1000)
    memory = buffer(queue, a)
    mapped, _ = cl.enqueue_map_buffer(queue, memory, cl.map_flags.READ, 0, (1000,), np.float32)
    assert np.array_equal(mapped, a)
    mapped.base.release(queue)
    assert np.array_equal(read(queue, memory.get_sub_region(512, 512), 128, "f4"), a[128:256])
    cl.enqueue_fill_buffer(queue, memory, np.float32(7), 0, 4000)
    assert (read(queue, memory, 1000, "f4") == 7).all()


def test_binaries_and_errors_of_the_compiler(queue, program):
    binary = program.get_info(cl.program_info.BINARIES)[0]
    again = cl.Program(queue.context, queue.context.devices, [binary]).build()
    a, y = floats(64), buffer(queue, np.zeros(64, "f4"))
    again.add(queue, (64,), (32,), buffer(queue, a), buffer(queue, a), y, np.float32(3))
    assert np.allclose(read(queue, y, 64, "f4"), a * 4)
    with pytest.raises(cl.RuntimeError, match="error:"):
        built(queue, "__kernel void f( { }")


def exchanged(queue, first, second):
    """How many of 20 launches are right, with and without barriers."""
    x, right = np.arange(256, dtype="i4"), 0
    kernel = built(queue, EXCHANGE.replace("FIRST", first).replace("SECOND", second)).exchange
    for _ in range(20):
        y = buffer(queue, np.zeros(1024, "i4"))
        kernel(queue, (256,), (256,), buffer(queue, x), y)
        right += np.array_equal(read(queue, y, (4, 256), "i4"), x[::-1] + np.arange(4)[:, None])
    return right


@pytest.mark.skipif(not settings.current().seed, reason="with EMULATED_SEED=0 waves run one after the other")
def test_a_missing_barrier_shows(queue):
    assert exchanged(queue, BARRIER, BARRIER) == 20
    assert exchanged(queue, "", BARRIER) < 20, "before the reads"
    assert exchanged(queue, BARRIER, "") < 20, "before the next step's writes"


@pytest.mark.skipif(settings.current().seed == 0 or settings.current().resident == 1, reason="groups run one after the other")
def test_groups_run_at_the_same_time(queue):
    text = """__kernel void f(__global int *count) {
      int v = count[0];
      for (int k = 0; k < 64; ++k) v = v + 1 - (count[1 + k] != 0);
      count[0] = v - 63;
    }"""
    count = buffer(queue, np.zeros(65, "i4"))
    built(queue, text).f(queue, (100,), (1,), count)
    assert 1 <= read(queue, count, 65, "i4")[0] < 100, "a sum without atomic operations loses some"


def test_nothing_begins_as_zero(queue):
    text = """__kernel void f(__global float *y, __global const float *x, int k) {
      __local float t[64];
      float own[8];
      if (k < 0) t[get_local_id(0)] = own[-k & 7] = 1;
      y[get_local_id(0)] = t[get_local_id(0)], y[64 + get_local_id(0)] = own[k & 7], y[128 + get_local_id(0)] = x[get_local_id(0)];
    }"""
    y, fresh = buffer(queue, np.zeros(192, "f4")), cl.Buffer(queue.context, cl.mem_flags.READ_WRITE, 256)
    built(queue, text, ["-cl-opt-disable"]).f(queue, (64,), (64,), y, fresh, np.int32(3))
    assert np.isnan(read(queue, y, 192, "f4")).all()


@pytest.mark.parametrize("at", [-1, -(1 << 20), 1 << 20])
def test_an_access_outside_of_buffers_is_an_error(queue, at, capfd):
    """And the process goes on. Of a buffer's own page nothing is known: it ends, or begins, at one."""
    if at == -1 and settings.current().guard in ("", "end"):
        at = -4096 // 4
    y = buffer(queue, np.zeros(1024, "f4"))
    kernel = built(queue, "__kernel void f(__global float *y, int at) { y[at] += 1; }").f
    with pytest.raises(cl.Error, match="OUT_OF_RESOURCES"):
        kernel(queue, (1,), (1,), y, np.int32(at))
    assert "f [1, 1, 1] [1, 1, 1]: an access outside of all buffers" in capfd.readouterr().err
    kernel(queue, (1,), (1,), y, np.int32(5))
    assert read(queue, y, 1024, "f4")[5] == 1


def test_approximate_functions(queue):
    """Less than an ulp from the exact value, and exact where that is a float."""
    text = """__kernel void f(__global const float *x, __global float *y, int n) {
      int i = get_global_id(0);
      y[i] = native_recip(x[i]), y[n + i] = native_exp2(x[i]), y[2 * n + i] = native_log2(x[i]), y[3 * n + i] = native_rsqrt(x[i]);
    }"""
    x = np.concatenate([np.exp2(np.arange(-20, 7)), np.random.default_rng(0).uniform(0.01, 100, 997)]).astype("f4")
    y = buffer(queue, np.zeros((4, 1024), "f4"))
    built(queue, text).f(queue, (1024,), (64,), buffer(queue, x), y, np.int32(1024))
    exact = np.stack([function(x.astype("f8")) for function in (lambda v: 1 / v, np.exp2, np.log2, lambda v: v**-0.5)])
    errors = (read(queue, y, (4, 1024), "f4") - exact) / np.spacing(np.abs(exact.astype("f4")))
    assert np.abs(errors).max() < (1.001 if settings.current().ulps else 0.51)
    assert np.abs(errors[0, :27]).max() == 0
    assert (np.abs(errors).max() > 0.6) == bool(settings.current().ulps)


@pytest.mark.skipif(settings.current().device != "gfx1100", reason="of gfx1100 alone are generic pointers to local memory emulated")
def test_generic_pointers_to_local_memory(queue):
    text = """float at(const float *p, int i) { return p[i]; }
    __kernel void f(__global const float *x, __global float *y, int which) {
      __local float t[64];
      int l = get_local_id(0);
      t[63 - l] = x[l];
      barrier(CLK_LOCAL_MEM_FENCE);
      y[l] = at(which ? (const float *)t : (const float *)x, l);
    }"""
    x, y = floats(64), buffer(queue, np.zeros(64, "f4"))
    kernel = built(queue, text, ["-cl-std=CL2.0"]).f
    for which, want in ((0, x), (1, x[::-1])):
        kernel(queue, (64,), (64,), buffer(queue, x), y, np.int32(which))
        assert np.array_equal(read(queue, y, 64, "f4"), want), which


@pytest.mark.parametrize("kind", ["float", "double"])
def test_exponents(queue, kind):
    """ldexp and frexp, with numbers near both ends."""
    dtype = np.dtype(kind.replace("float", "f4").replace("double", "f8"))
    pragma = "#pragma OPENCL EXTENSION cl_khr_fp64 : enable\n"
    text = f"""{pragma}__kernel void f(__global const {kind} *x, __global const int *n, __global {kind} *y, __global int *e) {{
      int i = get_global_id(0), k;
      y[i] = ldexp(x[i], n[i]);
      y[512 + i] = frexp(x[i], &k);
      e[i] = k;
    }}"""
    rng, least = np.random.default_rng(1), np.finfo(dtype).smallest_subnormal
    n = rng.integers(-2200, 2200, 512).astype("i4")
    n[:256] //= 16
    x = np.concatenate([rng.standard_normal(480), [0, -0.0, np.inf, -np.inf], rng.standard_normal(28) * 1e-30]).astype(dtype)
    x[200:232] = least * rng.integers(1, 99, 32)
    y, e = buffer(queue, np.zeros(1024, dtype)), buffer(queue, np.zeros(512, "i4"))
    built(queue, text).f(queue, (512,), (64,), buffer(queue, x), buffer(queue, n), y, e)
    with np.errstate(over="ignore", under="ignore"):
        wanted = np.concatenate([np.ldexp(x, n), np.frexp(x)[0]])
    np.testing.assert_array_equal(read(queue, y, 1024, dtype), wanted)
    finite = np.isfinite(x)
    np.testing.assert_array_equal(read(queue, e, 512, "i4")[finite], np.frexp(x)[1][finite])


def test_products_of_24_bits(queue):
    """Of which the compiler makes instructions of their own, where the upper bits do not count."""
    text = """__kernel void f(__global const int *x, __global long *y, int n) {
      int i = get_global_id(0), a = x[i], b = x[n + i], c = a << 8 >> 8, d = b << 8 >> 8;
      y[i] = (long)c * d, y[n + i] = (ulong)(a & 0xFFFFFF) * (b & 0xFFFFFF), y[2 * n + i] = mad24(c, d, i);
    }"""
    x = np.random.default_rng(0).integers(-(2**23), 2**23, (2, 256)).astype("i4")
    x[:, :32] %= 9
    y = buffer(queue, np.zeros((3, 256), "i8"))
    built(queue, text).f(queue, (256,), (64,), buffer(queue, x), y, np.int32(256))
    a, b = x.astype("i8")
    wanted = [a * b, (a & 0xFFFFFF) * (b & 0xFFFFFF), (a * b + np.arange(256)).astype("i4")]
    np.testing.assert_array_equal(read(queue, y, (3, 256), "i8"), wanted)


def test_carries_of_a_group_of_one_item(queue):
    """Whose other lanes must not count: a long division."""
    text = """__kernel __attribute__((reqd_work_group_size(1, 1, 1))) void f(__global int *y) {
      const size_t i = get_global_id(1);
      y[2 * i] = i / 3, y[2 * i + 1] = i % 3;
    }"""
    y = buffer(queue, np.zeros((32, 2), "i4"))
    built(queue, text).f(queue, (1, 32), (1, 1), y)
    assert np.array_equal(read(queue, y, (32, 2), "i4"), np.stack(np.divmod(np.arange(32), 3), 1))
