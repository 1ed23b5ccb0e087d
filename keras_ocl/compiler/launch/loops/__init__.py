"""Loops: how scans and while loops are lowered to launches that repeat."""
