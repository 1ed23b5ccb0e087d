"""Which kernels may begin without optimisation: many that do little, none that run long."""

import dataclasses
from types import SimpleNamespace

from keras_ocl import runtime
from keras_ocl.compiler.launch.loops.lower import Loop
from keras_ocl.compiler.run.unoptimised import unoptimised_builds
from keras_ocl.kernels.schedule import schedule_of
from keras_ocl.kernels.spec import KernelSpec

TRAITS = dataclasses.replace(runtime.read_record("intel-cpu"), compute_units=2)
PRICE = schedule_of(TRAITS).compilation * TRAITS.compute_units / 8  # operations for a character


def kernel(work, characters=100, scalar=False):
    """A kernel of so many operations (in two launches, of which this is one) and so long a text."""
    spec = object.__new__(KernelSpec)
    provenance = SimpleNamespace(work=2 * work, launches=2, parts=lambda spec: [spec])
    spec.__dict__.update(provenance=provenance, scalar=scalar, text="x" * (characters - 10))
    return spec


def loop(length, *launches):
    found = object.__new__(Loop)
    found.__dict__.update(launches=launches, length=length)
    return found


def chosen(*launches):
    """Numbers of the kernels that may be unoptimised, in the order in which they are found."""
    found = []

    def look(launches):
        for launch in launches:
            look(launch.launches) if isinstance(launch, Loop) else found.append(launch)

    look(launches)
    named = [(spec, (f"k{k}", spec.text, ("y" * 10,))) for k, spec in enumerate(found)]
    return sorted(int(name[1:]) for name, *_ in unoptimised_builds(launches, named, TRAITS).chosen([spec for _, spec in named]))


def test_what_is_over_before_it_is_compiled():
    assert chosen(kernel(99 * PRICE)) == [0]
    assert chosen(kernel(101 * PRICE)) == []
    assert chosen(kernel(101 * PRICE, characters=200)) == [0]


def test_others_may_pay_for_one():
    assert chosen(kernel(50 * PRICE), kernel(140 * PRICE)) == [0, 1]
    assert chosen(kernel(50 * PRICE), kernel(160 * PRICE)) == [0]


def test_kernels_of_loops_run_often():
    assert chosen(loop(3, kernel(30 * PRICE))) == [0]
    assert chosen(loop(4, kernel(30 * PRICE))) == []
    assert chosen(loop(2, loop(2, kernel(60 * PRICE))), kernel(1)) == [1]
    assert chosen(loop(None, kernel(1))) == []


def test_nobody_knows_how_long_a_users_kernel_takes():
    assert chosen(kernel(1, scalar=True), kernel(1)) == [1]


def test_the_weight_is_the_work():
    launches = [kernel(3), loop(5, kernel(2))]
    named = [(launches[0], ("k0", "")), (launches[1].launches[0], ("k1", ""))]
    found = unoptimised_builds(launches, named, TRAITS)
    assert [found.weight(("k0", "")), found.weight(("k1", ""))] == [3, 10]


def test_when_optimised_builds_are_due():
    launch = kernel(5 * PRICE)  # eight runs of 20 are paid for
    found, spec = unoptimised_builds([launch], [(launch, ("k0", "", ()))], TRAITS), ("k0", launch.text, ("y" * 10,))
    due = []
    for _ in range(60):
        due.append(found.due([spec]))
        found.ran("event")
    assert due.index(True) == 54 and all(due[54:])  # three times 54 runs of 5 are more than 8 times 100
