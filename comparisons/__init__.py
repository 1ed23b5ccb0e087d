"""Plain Keras scripts, and `python -m comparisons`, which compares several backends by them and by the source documents' experiments."""
