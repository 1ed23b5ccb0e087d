"""Executables share one arena per device: whoever runs last may write over it, and nobody can tell."""

import dataclasses
import gc
import threading

import numpy as np
import pytest

from keras_ocl import primitives as P
from keras_ocl import runtime
from keras_ocl.compiler.launch.loops.lower import Loop
from keras_ocl.compiler.run.executable import Executable
from keras_ocl.kernels.spec import KernelSpec
from keras_ocl.primitives import linalg
from keras_ocl.runtime.memory import round_up, size_class
from tests.compiler.graphs import graph_of
from tests.devices import another


@pytest.fixture
def device():
    """The current device with memory, a queue and an arena of its own."""
    return another()


def product(a, b):
    return P.dot_general(a, b, ((1,), (0,)))


def chain(x):
    """The products before the last are intermediate results."""
    for _ in range(5):
        x = product(x, x)
    return x


def repeated(x):
    """As `chain`, with the products in a loop whose carries lie in the arena."""
    (last,), _ = P.scan(lambda _, carries, slices: ([product(product(carries[0], x), product(x, x))], []), [x], [], 5)
    return product(last, x)


def with_host(x):
    """Intermediate results before a host operation are read after it."""
    y = product(x, x)
    q, _ = linalg.qr(y)
    return product(P.transpose(q, (1, 0)), product(y, y))


def with_host_reference(x):
    return np.linalg.qr(x @ x)[0].T @ x @ x @ x @ x


def executable(device, function, n):
    graph, inputs = graph_of(function, ((n, n), "float32"))
    return Executable(device, graph, inputs, name=f"{n} x {n}")


def rotation(n, seed):
    """Products of an orthogonal matrix neither grow nor vanish."""
    return np.linalg.qr(np.random.default_rng(seed).normal(size=(n, n)))[0].astype("float32")


class Case:
    """An executable with an array for it and what it should give."""

    def __init__(self, device, n, function=chain, reference=lambda x: np.linalg.matrix_power(x, 32), seed=0):
        self.device, self.array = device, rotation(n, seed)
        self.executable = executable(device, function, n)
        self.want = reference(self.array.astype("float64"))

    def run(self):
        (result,) = self.executable.run([self.device.upload(self.array)])
        return result

    def check(self, result):
        np.testing.assert_allclose(self.device.download(result, np.dtype("float32"), self.want.shape), self.want, atol=1e-4)


def test_two_sizes_take_the_memory_of_the_larger(device):
    cases = [Case(device, n) for n in (48, 144, 96)]
    for _ in range(3):
        for case in cases:
            case.check(case.run())
    gc.collect()
    device.memory.trim()
    sizes = [case.executable.arena_bytes for case in cases]
    assert max(sizes) > sum(sizes) / 2 > 0
    assert device.memory.current == device.memory.reserved == size_class(max(sizes))


def test_an_arena_larger_than_a_buffer(device):
    """As where a buffer has a quarter of the memory at most; what needs fewer or smaller parts shares them."""
    device.traits = dataclasses.replace(device.traits, max_allocation=100_000)
    device.memory.largest = device.traits.max_allocation
    power = np.linalg.matrix_power
    cases = [Case(device, 144), Case(device, 48), Case(device, 128, repeated, lambda x: power(x, 17)), Case(device, 156, seed=1)]
    for _ in range(2):
        for case in cases:
            case.check(case.run())
    large = round_up(156 * 156 * 4, device.traits.alignment)
    assert [s.nbytes for s in device.arena.storages] == [large, large, 128 * 128 * 4]  # the loop has three, and two do not fit in one
    with pytest.raises(runtime.OutOfMemory, match="160 x 160 needs 100.0 KiB.*a single buffer holds at most 97.7 KiB"):
        Case(device, 160).executable.run([device.upload(cases[0].array)])
    cases[0].check(cases[0].run())


def test_a_step_binds_nothing_again(device, monkeypatch):
    small, large = Case(device, 48), Case(device, 144)
    small.run(), large.run(), small.run()
    monkeypatch.setattr(type(small.executable._binding), "enter", lambda *args: pytest.fail("bound again"))
    for case in (small, large, small):
        case.check(case.run())


def test_loops_share_it(device):
    def power(x):
        return np.linalg.matrix_power(x, 17)

    cases = [Case(device, 64, repeated, power), Case(device, 144), Case(device, 96, repeated, power, seed=1)]
    results = [(case, case.run()) for _ in range(5) for case in cases]
    for case, result in results:
        case.check(result)
    assert [s.nbytes for s in device.arena.storages] == [cases[1].executable.arena_bytes]


def test_growth_with_work_in_flight(device):
    cases = [Case(device, n, seed=n) for n in (64, 96, 128, 192, 256)]
    results = []
    for count in range(1, len(cases) + 1):
        for _ in range(10):
            results += [(case, case.run()) for case in cases[:count]]
    for case, result in results:
        case.check(result)
    assert [s.nbytes for s in device.arena.storages] == [cases[-1].executable.arena_bytes]


def test_results_do_not_lie_in_the_arena(device):
    first, second = Case(device, 96), Case(device, 96, seed=1)
    kept = first.run()
    for _ in range(3):
        second.check(second.run())
    first.check(kept)


def test_threads(device):
    cases = [Case(device, n, seed=n) for n in (48, 144)]
    cases += [Case(device, n, with_host, with_host_reference, seed=n) for n in (32, 64)]
    wrong, barrier = [], threading.Barrier(len(cases))

    def work(case):
        try:
            barrier.wait()
            for _ in range(20):
                results = [case.run() for _ in range(4)]
                for result in results:
                    case.check(result)
        except Exception as error:
            wrong.append(error)

    threads = [threading.Thread(target=work, args=[case]) for case in cases]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_a_run_that_interrupts_another(device, monkeypatch):
    """As a signal handler does: what lies in the arena is still needed."""

    outer = Case(device, 64, with_host, with_host_reference)
    inner = Case(device, 96)
    inner.check(inner.run())
    outer.check(outer.run())
    original, results = linalg._qr.host, []

    def interrupted(arrays, targets, **params):
        results.append(inner.run())
        return original(arrays, targets, **params)

    monkeypatch.setattr(linalg._qr, "host", interrupted)
    for _ in range(2):
        outer.check(outer.run())
        inner.check(results.pop())
    inner.check(inner.run())
    assert device.memory.current <= 2 * size_class(inner.executable.arena_bytes)
    inner = outer
    with pytest.raises(RuntimeError, match="64 x 64: called while it is running"):
        outer.run()
    monkeypatch.setattr(linalg._qr, "host", original)
    outer.check(outer.run())


def test_a_failed_run_holds_nothing(device, monkeypatch):
    case = Case(device, 64)
    case.check(case.run())
    before = device.memory.current
    monkeypatch.setattr(device.memory, "allocate", lambda nbytes, what: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        case.executable.run([device.memory.allocate_idle(64 * 64 * 4)])
    assert device.memory.current == before
    monkeypatch.undo()
    case.check(case.run())


def test_released_memory_is_taken_again(device):
    case = Case(device, 64)
    result = case.run()
    assert device.arena.release() and not device.arena.release()
    assert device.memory.current == size_class(64 * 64 * 4)
    case.check(result)
    case.check(case.run())


def test_a_driver_that_says_less_than_kernels_can_have(device, monkeypatch):
    """NVIDIA's says 256 of each."""

    class Kernel:
        def get_work_group_info(self, *_):
            return 256

    for required, limit in ((False, 256), (True, 1024)):
        monkeypatch.setattr(device, "traits", dataclasses.replace(device.traits, required_groups=required, max_group=1024))
        assert device.group_limit(Kernel()) == limit


def test_kernels_that_can_have_few_work_items_in_a_group(device, monkeypatch):
    """As where each needs many registers: all are written again with smaller groups and tiles, those of loops too."""

    def kernels(launches):
        for launch in launches:
            yield from kernels(launch.launches) if isinstance(launch, Loop) else [launch] * isinstance(launch, KernelSpec)

    device.traits = dataclasses.replace(device.traits, schedule="gpu")
    power = np.linalg.matrix_power
    monkeypatch.setattr(device, "group_limit", lambda kernel: 24)
    cases = [Case(device, 48), Case(device, 48, repeated, lambda x: power(x, 17)), Case(device, 32, with_host, with_host_reference)]
    for case in cases:
        groups = [np.prod(launch.group) for launch in kernels(case.executable.launches)]
        assert groups and 1 < max(groups) <= 24, groups
        case.check(case.run())
