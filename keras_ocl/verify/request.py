"""What is said between a verification and the processes of families: a request, and verdicts."""

import json
from dataclasses import dataclass

RIGHT, WRONG, REFUSED, CRASHED, HUNG = "right", "wrong", "refused", "crashed", "hung"


@dataclass(frozen=True)
class Request:
    """What a process is to do: the name of the device, the family, the names of families to keep out, whether few cases are enough, and
    whether other work comes first."""

    device: str
    family: str
    without: tuple[str, ...] = ()
    short: bool = False
    background: bool = False

    def text(self) -> str:
        """The request as one argument of a command line."""
        return json.dumps(vars(self))

    @classmethod
    def read(cls, text: str) -> "Request":
        """The Request that `text()` wrote."""
        return cls(**json.loads(text))
