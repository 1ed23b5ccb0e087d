"""Traces: what is recorded of a function, when two traces are the same, and the graph of nodes that is built of one."""
