"""How each primitive is written in ONNX, a file per family; `RULES` are those that there are, `REFUSED` why there is none."""
