"""An interpreter of the prelude's OpenCL C on NumPy arrays whose operations are as inexact as OpenCL 1.2 allows.

It takes the text for vectors: each register is an array of float32, int32 or uint32 (a first axis of WIDTH lanes, then any), a comparison
gives 0 or -1, `?:` selects. The text becomes Python, function by function.
"""

import re

import numpy as np

from keras_ocl.kernels.prelude import library
from tests.elementwise import ROWS

WIDTH = 16
LARGEST = float(np.finfo(np.float32).max)
# OpenCL's functions, and the units in the last place of float32 by which its full profile lets a result be off.
_ROUNDED = {"divide": np.divide} | {name: row.floats for name, row in ROWS.items() if row.opencl is not None}
_ULPS = {name: ROWS[name].opencl if name in ROWS else 2.5 for name in _ROUNDED}
_EXACT = {"fabs": np.abs, "rint": np.rint, "copysign": np.copysign, "max": np.maximum, "min": np.minimum, "clamp": np.clip}
_EXACT |= {name: getattr(np, name) for name in ("floor", "ceil", "trunc", "fmax", "fmin")}
_TOKEN = re.compile(r"0x[\da-fA-F.]+p[-+]?\d+f?|0x[\da-fA-F]+u?|\d+\.?\d*(?:e[-+]?\d+)?[fu]?|\w+|[-+*/|&^<>=!]=|<<=?|>>=?|&&|\|\||\+\+|\S")
_TYPE = re.compile(r"(const )?(u?char|u?short|u?int|half|float)\d*$")
_LEVELS = [["||"], ["&&"], ["|"], ["^"], ["&"], ["==", "!="], ["<", ">", "<=", ">="], ["<<", ">>"], ["+", "-"], ["*", "/", "%"]]
_ASSIGNMENTS = {"=", "+=", "-=", "*=", "^=", "&=", "|=", ">>=", "<<="}


class Union:
    """`union { T all; E lane[N]; }`."""

    def __setattr__(self, name, value):
        object.__setattr__(self, name, np.array(value))

    @property
    def lane(self):
        return self.all


class Machine:
    """Runs helper functions.

    Args:
        error: the error of each inexact operation in the units that are allowed, a function of its shape: 1 is the greatest value allowed.
        flush: whether denormal numbers are read and written as 0.
        joins: whether mad() rounds its product.
    """

    def __init__(self, error=np.zeros, flush=False, joins=True):
        self._error, self._flush, self._joins = error, flush, joins
        self._functions, self._asked = {}, 0

    def call(self, name, *operands):
        """The result of the helper function `name`, such as "rem_float_16"."""
        if name not in self._functions:
            namespace = {"machine": self, "np": np}
            exec(_translated(library.helper(name).text), namespace)  # noqa: S102 (of our own text)
            self._functions[name] = namespace[name]
        with np.errstate(all="ignore"):
            return self._functions[name](*operands)

    def evaluate(self, text, **operands):
        """The value of an expression on registers of these names."""
        with np.errstate(all="ignore"):
            return eval(_Parser(text).expression(), {"machine": self, "np": np, **operands})  # noqa: S307 (of our own text)

    def __getattr__(self, name):
        if name.startswith("f_"):
            name = name[2:]
            if name in _EXACT:
                return lambda *operands: _EXACT[name](*map(self._zeros, operands))
            if name in _ROUNDED:
                return lambda *operands: self._inexact(name, operands)
            return lambda *operands: self.call(name, *operands)
        raise AttributeError(name)

    def _zeros(self, x):
        if not self._flush or np.asarray(x).dtype != np.float32:
            return x
        return np.where(np.abs(x) < np.float32(2.0**-126), np.copysign(np.float32(0), x), x)

    def _inexact(self, name, operands):
        exact = np.asarray(_ROUNDED[name](*[np.asarray(self._zeros(x), np.float64) for x in operands]))
        unit = np.ldexp(1.0, np.frexp(exact)[1] - 24)
        normal = np.isfinite(exact) & (np.abs(exact) >= 2.0**-126)
        found = np.where(normal, exact + self._error(exact.shape) * (_ULPS[name] - 0.5) * unit, exact)
        found = np.where(np.abs(exact) <= LARGEST, np.clip(found, -LARGEST, LARGEST), exact).astype(np.float32)
        if name in ("sin", "cos", "tanh", "erf"):  # their results leave -1 to 1 nowhere
            found = np.clip(found, -1, 1)
        return self._zeros(found)

    def binary(self, op, a, b):
        """a op b, rounded to nearest."""
        a, b = self._zeros(a), self._zeros(b)
        floats = np.float32 in (np.asarray(a).dtype, np.asarray(b).dtype)
        if op in ("==", "!=", "<", ">", "<=", ">="):
            names = {"==": "equal", "!=": "not_equal", "<": "less", ">": "greater", "<=": "less_equal", ">=": "greater_equal"}
            return -getattr(np, names[op])(a, b).astype(np.int32)
        if op == "/" and floats:
            return self._inexact("divide", (a, b))
        names = {"+": "add", "-": "subtract", "*": "multiply", "&": "bitwise_and", "|": "bitwise_or", "^": "bitwise_xor", "%": "fmod"}
        names |= {"<<": "left_shift", ">>": "right_shift", "/": "floor_divide"}
        return self._zeros(getattr(np, names[op])(a, b))

    def select(self, mask, a, b):
        """mask ? a : b."""
        return np.where(np.asarray(mask) < 0, a, b)

    def cast(self, dtype, x):
        """(dtype)x or convert_dtype(x)."""
        return np.asarray(x).astype(dtype)

    def bits(self, dtype, x):
        """as_dtype(x)."""
        return np.asarray(x).view(dtype)

    union = staticmethod(Union)

    def f_any(self, x):
        self._asked += 1
        if self._asked > 1000:
            raise RecursionError("a loop does not end")
        return bool(np.any(np.asarray(x) < 0))

    def f_fma(self, a, b, c):
        a, b, c = (np.asarray(self._zeros(x), np.longdouble) for x in (a, b, c))
        product = a * b  # exact
        total = product + c
        lost = (product - (total - (total - product))) + (c - (total - product))
        even = np.fmod(np.frexp(total)[0] * np.longdouble(2) ** (np.finfo(np.longdouble).nmant + 1), 2) == 0
        odd = np.nextafter(total, np.where(lost > 0, np.inf, -np.inf).astype(np.longdouble))  # which rounds once more to what is nearest
        return self._zeros(np.where(even & (lost != 0), odd, total).astype(np.float32))

    def mad(self, a, b, c):
        """a * b + c; OpenCL lets mad() round the product or not."""
        return self.f_fma(a, b, c) if self._joins else self.binary("+", self.binary("*", a, b), c)

    @staticmethod
    def f_rotate(x, by):
        return x << by | x >> (np.uint32(32) - by)


class _Parser:
    """Recursive descent over the text's tokens; gives Python."""

    def __init__(self, text):
        self.tokens = _TOKEN.findall(re.sub(r"//.*", "", text))
        self.at = 0

    def peek(self, ahead=0):
        return self.tokens[self.at + ahead] if self.at + ahead < len(self.tokens) else ""

    def take(self, expected=None):
        token = self.peek()
        if expected is not None and token != expected:
            raise SyntaxError(f"{expected!r} expected at {' '.join(self.tokens[self.at : self.at + 9])}")
        self.at += 1
        return token

    def function(self):
        while self.peek(1) != "(":
            self.take()
        name, parameters = self.take(), []
        self.take("(")
        while self.peek() != ")":
            while self.peek(1) not in (",", ")"):
                self.take()
            parameters.append(self.take())
            if self.peek() == ",":
                self.take()
        self.take(")")
        return f"def {name}({', '.join(parameters)}):\n" + self.block("  ")

    def block(self, indent):
        if self.peek() != "{":
            return self.statement(indent)
        self.take("{")
        text = ""
        while self.peek() != "}":
            text += self.statement(indent)
        self.take("}")
        return text or f"{indent}pass\n"

    def statement(self, indent):
        token = self.peek()
        if token == "return":
            self.take()
            text = f"{indent}return {self.expression()}\n"
        elif token in ("if", "while"):
            self.take()
            self.take("(")
            text = f"{indent}{token} {self.expression()}:\n"
            self.take(")")
            return text + self.block(indent + "  ")
        elif token == "for":
            return self.loop(indent)
        elif token == "union":
            while self.take() != "}":
                pass
            text = "".join(f"{indent}{name} = machine.union()\n" for name in self.names())
        else:
            text = "".join(f"{indent}{line}\n" for line in self.simple())
        self.take(";")
        return text

    def names(self):
        while True:
            yield self.take()
            if self.peek() != ",":
                return
            self.take()

    def loop(self, indent):
        self.take("for")
        self.take("(")
        text = "".join(f"{indent}{line}\n" for line in self.simple())
        self.take(";")
        text += f"{indent}while {self.expression()}:\n"
        self.take(";")
        after = "".join(f"{indent}  {line}\n" for line in self.simple())
        self.take(")")
        return text + self.block(indent + "  ") + after

    def simple(self):
        """The lines of a declaration or an assignment."""
        if self.peek() == "const":
            self.take()
        declared = self.take() if _TYPE.match(self.peek()) and self.peek(1) != "(" else None
        lines = []
        while True:
            if self.peek() == "++":
                self.take()
                lines.append(f"{self.take()} += 1")
            else:
                target = self.postfix()
                operator = self.take() if self.peek() in _ASSIGNMENTS else None
                if operator == "=":
                    value = self.expression()
                    lines.append(f"{target} = {f'machine.cast({_dtype(declared)}, {value})' if declared else value}")
                elif operator:
                    lines.append(f"{target} = machine.binary({operator[:-1]!r}, {target}, {self.expression()})")
            if self.peek() != ",":
                return lines
            self.take()

    def expression(self):
        condition = self.level(0)
        if self.peek() != "?":
            return condition
        self.take()
        first = self.expression()
        self.take(":")
        return f"machine.select({condition}, {first}, {self.expression()})"

    def level(self, k):
        if k == len(_LEVELS):
            return self.unary()
        left = self.level(k + 1)
        while self.peek() in _LEVELS[k]:
            operator = self.take()
            right = self.level(k + 1)
            left = f"({left} {'and' if operator == '&&' else 'or'} {right})" if k < 2 else f"machine.binary({operator!r}, {left}, {right})"
        return left

    def unary(self):
        if self.peek() in ("-", "~"):
            return f"({self.take()}{self.unary()})"
        if self.peek() == "(" and _TYPE.match(self.peek(1)) and self.peek(2) == ")":
            self.take()
            dtype = _dtype(self.take())
            self.take()
            return f"machine.cast({dtype}, {self.unary()})"
        return self.postfix()

    def postfix(self):
        token = self.take()
        if token == "(":
            text = f"({self.expression()})"
            self.take(")")
        elif token[0].isdigit():
            text = _number(token)
        elif self.peek() == "(":
            self.take()
            operands = []
            while self.peek() != ")":
                operands.append(self.expression())
                if self.peek() == ",":
                    self.take()
            self.take(")")
            text = _call(token, ", ".join(operands))
        else:
            text = {"INFINITY": "np.float32(np.inf)", "NAN": "np.float32(np.nan)"}.get(token, token)
        while self.peek() in (".", "["):
            if self.take() == ".":
                text += f".{self.take()}"
            else:
                text += f"[{self.expression()}]"
                self.take("]")
        return text


def _call(name, operands):
    if name.startswith("mad_"):
        return f"machine.mad({operands})"
    prefix, _, target = name.partition("_")
    if prefix in ("as", "convert") and _TYPE.match(target):
        return f"machine.{'bits' if prefix == 'as' else 'cast'}({_dtype(target)}, {operands})"
    return f"machine.f_{name}({operands})"


def _dtype(ctype):
    name = re.sub(r"\d+$", "", ctype)
    return f"np.{ {'float': 'float32', 'int': 'int32', 'uint': 'uint32', 'ushort': 'uint16', 'uchar': 'uint8'}[name] }"


def _number(token):
    if "." not in token and "p" not in token and not (token.endswith("f") and not token.startswith("0x")):
        value = int(token.rstrip("u"), 0)
        return f"np.uint32({value})" if token.endswith("u") else str(value)
    value = float.fromhex(token.rstrip("f")) if token.startswith("0x") else float(token.rstrip("f"))
    return f"np.float32({value!r})"


def _translated(text):
    return _Parser(text).function()
