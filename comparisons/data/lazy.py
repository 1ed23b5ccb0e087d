"""Arrays of which only the beginning that is asked for is made."""


class Lazy:
    """Examples that are made when a slice from the beginning is taken: `lazy[:n]` is a NumPy array, `lazy[:None]` has all of them.

    make: the function n -> array of the first n examples (all if n is None or there are fewer); the first must not depend on n.
    """

    def __init__(self, make):
        self.make = make

    def __getitem__(self, wanted):
        if not isinstance(wanted, slice) or wanted.start or wanted.step not in (None, 1) or (wanted.stop or 0) < 0:
            raise TypeError(f"only the first examples can be taken, as [:n], but the index is {wanted!r}")
        return self.make(wanted.stop)
