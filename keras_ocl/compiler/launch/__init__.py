"""Lowering: from regions to launches, the fusion of small kernels into fewer launches, and what each launch computes."""
