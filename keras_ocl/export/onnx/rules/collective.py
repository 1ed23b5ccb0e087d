"""Collectives, which cannot be exported: they belong to the ranks of a job, not to a model."""

RULES = {}

_RANKS = "ONNX has no ranks"
REFUSED = {"all_reduce": _RANKS, "all_gather": _RANKS, "reduce_scatter": _RANKS}
