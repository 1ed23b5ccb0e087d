"""Whether large sums are exchanged while other results are computed: `KERAS_OCL_OVERLAP`, or whether it pays."""

import os

OVERLAP = "KERAS_OCL_OVERLAP"


def setting():
    """The value of KERAS_OCL_OVERLAP: "1", "0", or "" to decide by whether it pays.

    Raises:
        ValueError: another value.
    """
    text = os.environ.get(OVERLAP, "")
    if text not in ("", "0", "1"):
        raise ValueError(f"{OVERLAP}={text}: 1 exchanges large sums while the rest is computed, and 0 behind it.")
    return text


def overlaps(kinds, several_hosts=False):
    """`setting` if it is given, else whether overlapping pays.

    Within a host, an exchange consists of copies and sums, which take from CPUs the time that overlapping saves.

    Args:
        kinds: the kinds of the devices that compute.
        several_hosts: whether these are on several hosts.
    """
    said = setting()
    return said == "1" if said else several_hosts or "cpu" not in kinds
