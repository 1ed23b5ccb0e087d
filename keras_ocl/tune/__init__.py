"""Search for a device's own tiles: the kernels' candidates, measured beside what the estimates choose, and a record of the faster ones."""
