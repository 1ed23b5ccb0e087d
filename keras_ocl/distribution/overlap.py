"""Whether large sums are exchanged while the rest is computed: `KERAS_OCL_OVERLAP`, or what pays."""

import os

OVERLAP = "KERAS_OCL_OVERLAP"


def setting():
    """What the variable says: "1", "0", or "" to decide by what pays.

    Raises:
        ValueError: it says something else.
    """
    text = os.environ.get(OVERLAP, "")
    if text not in ("", "0", "1"):
        raise ValueError(f"{OVERLAP}={text}: 1 exchanges large sums while the rest is computed, and 0 behind it.")
    return text


def overlaps(kinds, several_hosts=False):
    """What `setting` says, else whether it pays.

    Within a host the exchange is copying and adding, which takes from CPUs what it saves.

    Args:
        kinds: of the devices that compute.
        several_hosts: whether they are on several.
    """
    said = setting()
    return said == "1" if said else several_hosts or "cpu" not in kinds
