"""The layer hook."""


class OclLayer:
    """Base class that Keras mixes into every layer; this backend needs nothing from it."""
