"""The indentation of kernels' text."""

from keras_ocl.kernels.indent import indented

LAID_OUT = """\
  int a[2] = {1, 2};
  for (int i = 0; i < 3; ++i)
    for (int j = 0; j < 3; ++j) {
      if (i) {
        f(i); }
      else if (j)
        g(j);
      { const int e = 1;
        f(e);
    }}
  do {
    --i;
  } while (i);
  if (i) {
    f(i);
  } else {
    g(i);
  }
"""
PLAIN = "\n".join(line.strip() for line in LAID_OUT.splitlines())


def test_lines_are_indented_by_the_braces_around_them():
    assert indented(PLAIN) == LAID_OUT
    assert indented(LAID_OUT) == LAID_OUT
    assert indented("") == ""
