"""Rules that write primitives in ONNX, one file per family: `RULES` has them by primitive, `REFUSED` the reasons for missing ones."""
