"""Indices are split into coordinates, whose quotients have names of their own."""

import pytest

from keras_ocl.kernels.coordinates import decode
from keras_ocl.kernels.spec import Args


@pytest.mark.parametrize("rest, quotient", [("", "or"), ("v", "v")])
def test_names_of_quotients(rest, quotient):
    lines = [f"const int o1 = flat % 5; const int {quotient}1 = flat / 5;", f"const int o0 = {quotient}1;"]
    assert decode("flat", (3, 5), "o", Args(), rest=rest).splitlines() == lines
