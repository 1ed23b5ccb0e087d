"""Origins: the layer and the operation of Keras that an equation comes from, and whether it belongs to a gradient.

Origins are kept in traces, and in eager code within `kept_in_eager_code()`, for profiles. They do not influence computation: equal
nodes of different origins are merged and keep the first one's origin, and the text of a kernel does not show origins.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar, Token
from typing import NamedTuple


class Origin(NamedTuple):
    """Where equations come from.

    layer: path of Keras's name scopes, such as "sequential/conv2d"; "" outside of all. operation: the usual name of the operation, such as
    "Conv2D"; "" where Keras named none. gradient: whether the equations compute a gradient.
    """

    layer: str = ""
    operation: str = ""
    gradient: bool = False

    def differentiated(self) -> "Origin":
        """The origin of the equations that compute the gradient of this one's."""
        return self if self.gradient else Origin(self.layer, self.operation, True)

    def named(self, primitive: str) -> "Origin":
        """This origin; where Keras named no operation, with the name of this primitive as its operation."""
        return self if self.operation else self._replace(operation=operation_name(primitive))


NOWHERE = Origin()
current_origin = ContextVar("keras_ocl_origin", default=NOWHERE)


class scope:
    """Context in which recorded equations have the origin `origin`."""

    __slots__ = ("_origin", "_token")
    _token: Token[Origin]

    def __init__(self, origin: Origin) -> None:
        self._origin = origin

    def __enter__(self) -> None:
        self._token = current_origin.set(self._origin)

    def __exit__(self, *_: object) -> None:
        current_origin.reset(self._token)


_eager = 0  # number of open contexts in which eager code keeps origins


def kept_eagerly() -> bool:
    """Whether eager code keeps origins."""
    return _eager > 0


@contextmanager
def kept_in_eager_code() -> Iterator[None]:
    """Context in which eager code keeps origins too, in every thread."""
    global _eager
    _eager += 1
    try:
        yield
    finally:
        _eager -= 1


_ODD = {
    "matmul": "MatMul",
    "dot_general": "MatMul",
    "sub": "Subtract",
    "mul": "Multiply",
    "div": "Divide",
    "lstm": "LSTM",
    "gru": "GRU",
    "bidirectional_lstm": "BidirectionalLSTM",
    "bidirectional_gru": "BidirectionalGRU",
}


def operation_name(name: str) -> str:
    """The usual name of an operation: "max_pool" is "MaxPool"."""
    return _ODD.get(name) or "".join(part[:1].upper() + part[1:] for part in name.split("_"))
