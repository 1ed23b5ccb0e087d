"""Host operations that a thread computes beside the device: what runs meanwhile, whose memory is kept, and how runs end that fail."""

import json
import threading
import time
from itertools import count

import numpy as np
import pytest

from keras_ocl import chrome_trace, runtime
from keras_ocl import primitives as P
from keras_ocl.compiler.run.executable import Executable
from keras_ocl.distribution.communicator import Communicator
from keras_ocl.primitives.collective import all_reduce_p
from keras_ocl.runtime.traits import ways_of_sharing
from tests.compiler.graphs import graph_of
from tests.devices import another

N, PRODUCTS = 300, 20  # rows of matrices that a thread is worth; how many products follow the first


class Slow(Communicator):
    """Doubles, as two equal ranks would, after a while."""

    overlaps = True

    def __init__(self):
        self.begun, self.done, self.error = threading.Event(), [], None
        self.seconds = 0.05

    def all_reduce(self, arrays, kind, targets=()):
        self.begun.set()
        time.sleep(self.seconds)
        if self.error is not None:
            raise self.error
        for array, target in zip(arrays, targets, strict=True):
            np.add(array, array, out=target)
        self.done.append(time.perf_counter_ns())
        return list(targets)


class Case:
    """x -> 2 x^2 + 2 x^(2 + PRODUCTS): the first sum waits for one product, the second for all."""

    def __init__(self, sharing=None):
        self.device = another(sharing)
        self.group = Slow()
        graph, inputs = graph_of(self._function, ((N, N), "float32"))
        self.executable = Executable(self.device, graph, inputs, name="case")
        self.x = np.linalg.qr(np.random.default_rng(0).normal(size=(N, N)))[0]  # products neither grow nor vanish

    def _function(self, x):
        token = P.constant(0, "int32")
        first = y = P.dot_general(x, x, ((1,), (0,)))
        for _ in range(PRODUCTS):
            y = P.dot_general(y, x, ((1,), (0,)))
        b, token = all_reduce_p(first, token, group=self.group, kind="sum")
        a, _ = all_reduce_p(y, token, group=self.group, kind="sum")
        return P.add(a, b)

    def check(self):
        (result,) = self.executable.run([self.device.upload(self.x.astype("float32"))])
        want = 2 * np.linalg.matrix_power(self.x, 2) + 2 * np.linalg.matrix_power(self.x, 2 + PRODUCTS)
        np.testing.assert_allclose(self.device.download(result, np.dtype("float32"), (N, N)), want, atol=1e-5)


@pytest.mark.parametrize("sharing", ["shared", "mapped", "copied"])
def test_operands_stay_while_others_are_computed(sharing):
    if sharing not in (*ways_of_sharing(runtime.current_device().driver.handle), "copied"):
        pytest.skip("this device cannot share memory so")
    case = Case(sharing)
    case.check()
    case.check()  # with the memory of before


def test_kernels_run_meanwhile(tmp_path):
    case = Case()
    case.check()
    case.group.seconds = 0.2
    for _ in range(5):  # on a busy machine the thread may come late
        with runtime.profiled(case.device, runtime.Timeline()) as timeline:
            case.check()
        (first, overlap), (second, _) = timeline.overlaps()
        *_, last, addition = [span for span in timeline.device_spans() if span.label != "constant"]
        assert last.end < second.start and first.end <= second.start and second.end < addition.start
        if overlap:
            break
    assert first.start < last.start and 0 < overlap <= first.end - first.start and first.nbytes == N * N * 4 + 4
    chrome_trace.write(tmp_path / "trace.json", "device", timeline)
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    event = next(event for event in events if event["name"] == "all_reduce")
    assert event["args"] == {"bytes": first.nbytes, "overlapped ms": overlap * 1e-6}
    thread = next(e for e in events if e["name"] == "thread_name" and (e["pid"], e["tid"]) == (event["pid"], event["tid"]))
    assert thread["args"]["name"] == "overlapped"


def test_an_error_of_the_thread():
    case = Case()
    case.check()
    case.group.error = ValueError("no network")
    with pytest.raises(ValueError, match="no network"):
        case.check()
    case.group.error = None
    case.check()


def failing(replay, number, error):
    """`replay`, whose call of this number fails."""
    calls = count()

    def run(*args):
        if next(calls) == number:
            raise error
        return replay(*args)

    return run


@pytest.mark.parametrize("number", [1, 2])
def test_a_run_that_fails_between_waits(number, monkeypatch):
    """The thread writes to memory of the arena: the next run comes behind it."""
    case = Case()
    case.check()
    case.group.done.clear()
    with monkeypatch.context() as patch:
        patch.setattr(case.device, "replay", failing(case.device.replay, number, RuntimeError("driver")))
        with pytest.raises(RuntimeError, match="driver"):
            case.check()
    assert len(case.group.done) == number
    case.check()


def test_interrupted_again_while_it_waits(monkeypatch):
    """Then the next run has other memory than what the thread still writes to."""
    case = Case()
    case.check()
    before, case.group.seconds = case.device.arena.storages, 0.3
    case.group.done.clear()

    def interrupted():
        case.group.begun.wait()
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(case.device, "replay", failing(case.device.replay, 1, KeyboardInterrupt()))
        patch.setattr(case.device.worker, "finish", interrupted)
        case.group.begun.clear()
        with pytest.raises(KeyboardInterrupt):
            case.check()
    assert not case.group.done
    case.group.seconds = 0
    case.check()  # behind what the thread has begun
    assert len(case.group.done) == 3 and not set(case.device.arena.storages) & set(before)
