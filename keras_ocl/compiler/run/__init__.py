"""Running: memory, programs and arguments of a list of launches, and its replay."""
