"""The studies' data: one module a data set, NumPy only.

A loader is a function `(folder, **options) -> Data`; `folder` is what --data names, or None. One whose examples cost something to make
takes `examples` and `test_examples`, at most how many are wanted (None: all). Where the real data are not there, a loader
downloads them with keras.datasets if it can, else gives a seeded stand-in of the same shapes and says so in `notice`.
"""

from typing import NamedTuple

import numpy as np


class Data(NamedTuple):
    """Training and test examples.

    Attributes:
        x, y, x_test, y_test: NumPy arrays, examples along the first axis; labels as the networks' losses take them.
        real: False for a stand-in, whose times are valid but whose accuracies mean nothing.
        notice: a sentence for the reader, "" for none.
    """

    x: np.ndarray
    y: np.ndarray
    x_test: np.ndarray
    y_test: np.ndarray
    real: bool = True
    notice: str = ""
