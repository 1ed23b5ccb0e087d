"""ONNX models from traced functions: the graph that is built, and a rule per primitive."""
