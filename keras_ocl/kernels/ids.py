"""The ids of work-items: the names by which a kernel's body knows them, and how the head of the kernel computes them."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

Place = tuple[str, int]  # ("global", "group" or "local", a dimension of the grid): an id that a body asks for

GROUPS = tuple(("group", k) for k in range(3))  # the ids of a work-item's group
ITEMS = tuple(("global", k) for k in range(3))  # the global ids of a work-item


def name(place: Place) -> str:
    """The C name of an id."""
    return f"{place[0]}_{place[1]}"


def declared(place: Place, value: str = "") -> str:
    """The C declaration of an id, or of a parameter that holds it."""
    return f"const size_t {name(place)}{value and f' = {value}'}"


@dataclass(frozen=True)
class Fold:
    """How groups are numbered whose grid is folded into fewer dimensions, since the device launches no more groups along one.

    `number` is the C text of the group's number among all, of C type `ctype`, where `{0}` and `{1}` stand for the launch's own group ids;
    `counts` those of the numbers of groups along the first two dimensions, `sides` the work-items of a group.
    """

    ctype: str
    number: str
    counts: tuple[str, str]
    sides: tuple[int, ...]


@dataclass(frozen=True)
class Ids:
    """How a kernel computes its work-items' ids from those that the launch gives them.

    `first`: dict from a dimension to (C text of the number of the launch's first group along it, work-items of a group), of a kernel that
    is several launches. `fold`: of a folded grid.
    """

    first: Mapping[int, tuple[str, int]] = field(default_factory=dict)
    fold: Fold | None = None

    @property
    def plain(self) -> bool:
        """Whether ids are those that the launch gives."""
        return not self.first and self.fold is None

    def beginning(self, dimension: int, first: str, side: int) -> "Ids":
        """The Ids of a launch whose groups along `dimension`, of `side` work-items, begin with number `first` (C text)."""
        return replace(self, first={**self.first, dimension: (first, side)})

    def declarations(self, places: Iterable[Place], given: Mapping[Place, str] | None = None) -> str:
        """C declarations of ids. given: dict from a Place to its C text, instead of a work-item function; "": it is a parameter."""
        places, text, given = sorted(places), "", given or {}
        if self.fold is not None:
            fold, (first, second) = self.fold, self.fold.counts
            text = f"const {fold.ctype} launch = {fold.number.format(*(self._launched(place) for place in GROUPS[:2]))};\n"
            numbers = f"launch % {first}", f"launch / {first} % {second}", f"launch / {first} / {second}"
            given = dict(zip(GROUPS, numbers, strict=True))
            given |= {("global", k): f"group_{k} * {side} + {function(('local', k))}" for k, side in enumerate(fold.sides)}
            places = sorted({*GROUPS, *places}, reverse=True)  # groups before the items that are computed from them
        for place in places:
            value = given[place] if place in given else self._launched(place)
            text += f"{declared(place, value)};\n" if value else ""
        return text

    def _launched(self, place: Place) -> str:
        kind, k = place
        if kind == "local" or k not in self.first:
            return function(place)
        first, side = self.first[k]
        return f"{function(place)} + {first if kind == 'group' else f'{first} * {side}'}"


def function(place: Place) -> str:
    """C text of the work-item function that returns an id."""
    return f"get_{place[0]}_id({place[1]})"
