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
            where that gives the same results (as drafts do): these tests are about what devices exchange.
    """
    if not optimised:
        _compile_hastily()
    if everything_overlaps():
        from keras_ocl.compiler.launch import overlap
        from keras_ocl.distribution import partition

        os.environ["KERAS_OCL_OVERLAP"] = "1"
        partition._BUCKET = overlap.WORTH = 0


def _compile_hastily():
    from keras_ocl.runtime.programs import HASTY, Programs

    optimised = Programs.build

    def build(self, specs, options="", drafts=None):
        return optimised(self, specs, f"{options} {HASTY}" if self.drafts_are_exact else options)

    Programs.build = build
