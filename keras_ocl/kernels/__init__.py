"""Kernel templates: Python that turns parameters into OpenCL C. Launches nothing."""
