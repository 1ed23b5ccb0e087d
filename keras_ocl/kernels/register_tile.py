"""The register tile of CPU kernels: rows x vectors of sums, to which each step adds an outer product.

A step loads the right operand's vectors once, and broadcasts an element of the left operand against them for each row (Goto and
van de Geijn, "Anatomy of High-Performance Matrix Multiplication", 2008). Products, convolutions, their gradients and attention
are loops around it.
"""

from collections.abc import Callable, Iterable, Sequence


def _fma(x: str, y: str, z: str) -> str:
    return f"fma({x}, {y}, {z})"


def halved(
    vector: Callable[[int], str],
    value: str,
    lanes: int,
    name: Callable[[str, int], str],
    until: int = 1,
    op: Callable[[str, str, int], str] | None = None,
) -> tuple[str, str]:
    """(statements that reduce the register `value` of `lanes` lanes, name of the result of `until` lanes), by adding halves, or by `op`.

    vector: C type of so many lanes. name: a register's name, from that of the one before and its own number of lanes.
    """
    text = ""
    while lanes > until:
        lanes, whole = lanes // 2, value
        value, low, high = name(whole, lanes), f"{whole}.lo", f"{whole}.hi"
        text += f"const {vector(lanes)} {value} = {op(low, high, lanes) if op else f'{low} + {high}'};\n"
    return text, value


class RegisterTile:
    """C text of a tile whose sums are the variables `s{row}_{vector}`, of C type `kind`.

    fma: the C text of x * y + z from three C texts.
    """

    def __init__(self, rows: int, vectors: int, kind: str, fma: Callable[[str, str, str], str] = _fma) -> None:
        self.rows, self.vectors, self.kind, self.fma = range(rows), range(vectors), kind, fma

    @property
    def sums(self) -> list[str]:
        """The names of the sums, row by row."""
        return [f"s{r}_{v}" for r in self.rows for v in self.vectors]

    def begin(self, values: Callable[[int, int], str] | None = None) -> str:
        """Statements that declare the sums, with the C texts `values(row, vector)`, or zeros."""
        values = values or (lambda row, vector: f"({self.kind})(0)")
        return "".join(f"{self.kind} s{r}_{v} = {values(r, v)};\n" for r in self.rows for v in self.vectors)

    def step(self, left: Callable[..., str], right: Sequence[str], rows: Iterable[int] | None = None, by_lane: bool = False) -> str:
        """Statements that add the outer product of `left(row)`, C texts of elements or of vectors, and the vectors `right`, C texts.

        rows: those of the tile that take part, or None for all. by_lane: whether each lane of the sums has an element of its own;
        `left(row, vector)` are then C texts of vectors.
        """
        text = "".join(f"const {self.kind} y{v} = {vector};\n" for v, vector in enumerate(right))
        for r in self.rows if rows is None else rows:
            added = "".join(f"s{r}_{v} = {self.fma(left(r, v) if by_lane else 'e', f'y{v}', f's{r}_{v}')};\n" for v in self.vectors)
            text += added if by_lane else f"{{ const {self.kind} e = ({self.kind})({left(r)});\n{added}}}\n"
        return text

    def each(self, statement: Callable[[int, int, str], str]) -> str:
        """The statements `statement(row, vector, name)` of all sums."""
        return "".join(statement(r, v, f"s{r}_{v}") for r in self.rows for v in self.vectors)
