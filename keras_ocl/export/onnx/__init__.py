"""ONNX models from traced functions: a graph builder, and one rule per primitive."""
