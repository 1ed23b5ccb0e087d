"""Loops: what the compiler does with a trace's scans, and how a loop is lowered to launches that repeat."""
