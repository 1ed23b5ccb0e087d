"""Matrix units: instructions that multiply small matrices, as data, and the contraction that multiplies with them."""
