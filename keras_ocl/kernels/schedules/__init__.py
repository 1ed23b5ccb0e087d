"""How kernels are written for each kind of device: one table per schedule, and the numbers that were measured."""
