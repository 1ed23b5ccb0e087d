"""Three plain Keras scripts, and `python -m comparisons`, which runs each of them on several backends and compares the results."""
