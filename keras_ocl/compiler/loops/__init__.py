"""Loops: how they are lowered to launches that repeat."""
