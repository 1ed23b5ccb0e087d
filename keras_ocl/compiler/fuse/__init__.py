"""Fusion: which nodes of a graph one kernel computes, decided by their cost and by how they access memory."""
