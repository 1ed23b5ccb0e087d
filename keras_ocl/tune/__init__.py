"""Search for a device's own tiles: candidates of the kernels, measured beside the estimate's choice, and a file of those that are faster."""
