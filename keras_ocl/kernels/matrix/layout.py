"""Which elements of a matrix the lanes of a wave hold, as data."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Layout:
    """Where a wave's lanes hold the elements of a matrix, as a linear layout (Zhou et al., "Linear Layouts", 2025).

    Each bit of a lane's number, and each of an element's number in the lane's fragment, moves the element by (lines, steps): the place of
    an element is the sum over the bits that are set. lane, element: those of all bits, the lowest first.
    """

    lane: tuple[tuple[int, int], ...]
    element: tuple[tuple[int, int], ...]

    @property
    def elements(self) -> int:
        """Elements of a lane's fragment."""
        return 1 << len(self.element)

    def place(self, lane: int, element: int) -> tuple[int, int]:
        """(line, step) of an element of a lane."""
        moves = [move for number, bits in ((lane, self.lane), (element, self.element)) for i, move in enumerate(bits) if number >> i & 1]
        return sum(line for line, _ in moves), sum(step for _, step in moves)

    def texts(self, element: int) -> tuple[str, str]:
        """C texts of (line, step) of an element of the lane `lane`, a C variable."""
        line, step = self.place(0, element)
        return _text([move[0] for move in self.lane], line), _text([move[1] for move in self.lane], step)

    def text(self, element: int, offset: Callable[[int, int], int]) -> str:
        """C text of the `offset` of an element of the lane `lane`, of its (line, step): a linear function of the bits of both."""
        return _text([offset(*move) for move in self.lane], offset(*self.place(0, element)))

    def run(self, axis: int) -> int:
        """Elements of a fragment from any multiple of this number on that are adjacent along an axis: 0 of lines, 1 of steps."""
        count = 1
        for move in self.element:
            if move[axis] != count or move[1 - axis]:
                break
            count *= 2
        return count


def _text(moves: Sequence[int], first: int) -> str:
    """C text of `first` plus what each bit of `lane` moves by."""
    terms, bit = [], 0
    while bit < len(moves):
        count = 1
        while bit + count < len(moves) and moves[bit + count] == moves[bit] << count:
            count += 1
        if moves[bit]:
            terms.append(f"(lane >> {bit} & {(1 << count) - 1})" + (f" * {moves[bit]}" if moves[bit] > 1 else ""))
        bit += count
    return " + ".join([*terms, *([str(first)] if first or not terms else [])])
