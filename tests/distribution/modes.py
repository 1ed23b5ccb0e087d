"""What processes of these tests do otherwise than users': see `prepare`."""

import os

OVERLAP = "KERAS_OCL_TEST_OVERLAP"


def everything_overlaps():
    """Whether all sums, however small, are exchanged while the rest is computed: `KERAS_OCL_TEST_OVERLAP=1` runs any of these tests so."""
    return os.environ.get(OVERLAP, "0") not in ("", "0")


def prepare(optimised=False):
    """What a process does first that a test starts.

    Args:
        optimised: whether kernels are compiled as they are for users. By default they are without optimisation, in a fifth of the time,
            where that gives the same results (as unoptimised builds do): these tests are about what devices exchange.
    """
    if not optimised:
        _compile_without_optimisation()
    if everything_overlaps():
        from keras_ocl.compiler.launch import overlap
        from keras_ocl.distribution import partition

        os.environ["KERAS_OCL_OVERLAP"] = "1"
        partition._BUCKET = overlap.WORTH = 0


def _compile_without_optimisation():
    from keras_ocl.runtime.programs import UNOPTIMISED, Programs

    optimised = Programs.build

    def build(self, specs, options="", unoptimised=None):
        return optimised(self, specs, f"{options} {UNOPTIMISED}" if self.unoptimised_is_exact else options)

    Programs.build = build
