"""The studies' networks: plain Keras, one module a study or kind of network, with no import of this backend."""
