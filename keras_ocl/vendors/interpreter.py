"""Runs kernels in LLVM IR (clang's for spir64) for one work-item, to find the addresses that it accesses.

Each function becomes a Python function. It computes integers in two's complement, and takes every float as zero, and every value from
memory other than the work-item's private memory. Results of OpenCL functions that are not integers are zero as well.
"""

import re
from collections import defaultdict
from dataclasses import dataclass
from functools import cache

ROUNDS = 4000  # basic blocks that one work-item may execute
KEPT = 48  # addresses kept per work-item and Site

_TYPE = r"(?:<\d+ x [a-z]\w*(?: addrspace\(\d+\))?>|\[\d+ x [^\]]*\](?:\])?|ptr(?: addrspace\(\d+\))?|[a-z]\w*)"
_ATTRIBUTE = r"(?:noundef|nonnull|signext|zeroext|immarg|align \d+|nocapture|readonly|writeonly|range\([^)]*\))"
_FLAG = r"(?:nuw|nusw|nsw|exact|disjoint|nneg|inbounds|fast|nnan|ninf|nsz|arcp|contract|afn|reassoc)"
_SIZES = {"half": 2, "bfloat": 2, "float": 4, "double": 8, "ptr": 8}
_FLOAT = re.compile(r"(?:<\d+ x )?(?:half|bfloat|float|double)\b")
_CODES = {"c": 1, "h": 1, "a": 1, "s": 2, "t": 2, "Dh": 2, "i": 4, "j": 4, "f": 4, "l": 8, "m": 8, "d": 8}
_WORK = {"get_local_id": "local", "get_group_id": "group_id", "get_local_size": "group", "get_num_groups": "groups"}
_COMPARE = {"eq": "==", "ne": "!=", "gt": ">", "ge": ">=", "lt": "<", "le": "<="}


class Unknown(ValueError):
    """An instruction that the interpreter does not know."""


class _Enough(Exception):
    """The work-item has run long enough."""


@dataclass(frozen=True)
class Item:
    """A work-item: its local id, its group id, the work-group size and the number of groups, each for three axes."""

    local: tuple
    group_id: tuple
    group: tuple
    groups: tuple


@dataclass(frozen=True)
class Site:
    """A load or store: (function's name, its number in that function), address space, whether it stores, bytes, line of the source."""

    place: tuple
    space: int
    store: bool
    nbytes: int
    line: int


class Program:
    """A module of LLVM IR.

    Args:
        text: the module's text.
    """

    def __init__(self, text):
        self._lines = {name: int(line) for name, line in re.findall(r"^(!\d+) = !DILocation\(line: (\d+)", text, re.M)}
        self._globals = {}
        for k, (name, space) in enumerate(re.findall(r"^(@[\w.]+) = .*?addrspace\((\d)\).*? (?:global|constant) ", text, re.M)):
            self._globals[name] = (int(space) << 60) + ((k + 1) << 32)
        self._bodies = {}  # name -> (number of arguments, text of the body)
        for found in re.finditer(r"^define (?P<head>[^\n]*)\{\n(?P<body>.*?)^\}", text, re.M | re.S):
            name, arguments = re.search(r"@([\w.]+)\((.*)\)", found["head"]).groups()
            self._bodies[name] = len(re.findall(r"%\d+", arguments)), found["body"]
        self._function = cache(self._translated)

    def run(self, kernel, arguments, item):
        """Site -> addresses, for one work-item that runs the kernel; each "global" or "local" argument gets an address range of its own."""
        state = _State(item, self._globals, self._function)
        values = [((1 if a == "global" else 3) << 60) + ((k + 1) << 40) if isinstance(a, str) else a for k, a in enumerate(arguments)]
        try:
            self._function(kernel)(state, *values)
        except _Enough:
            pass
        return state.sites

    def _translated(self, name):
        count, body = self._bodies[name]
        writer = _Writer(name, count, body, self._lines, self._bodies)
        scope = {"_Enough": _Enough, "Site": Site, "_wrap": _wrap, "_quotient": _quotient, "_each": _each}
        exec(writer.text(), scope)
        return scope["function"]


class _State:
    """The state of one work-item: its Item, its private memory, and the addresses that it accessed."""

    def __init__(self, item, globals_, function):
        self.item, self.globals, self.function = item, globals_, function
        self.sites, self.own, self._rounds, self._next = defaultdict(list), {}, 0, 1 << 20

    def round(self):
        self._rounds += 1
        if self._rounds > ROUNDS:
            raise _Enough

    def touch(self, site, address):
        found = self.sites[site]
        if len(found) < KEPT:
            found.append(address)

    def room(self, nbytes):
        self._next += -(-nbytes // 16) * 16
        return self._next - nbytes

    def id(self, function, axis):
        if function == "get_global_id":
            return self.item.group_id[axis] * self.item.group[axis] + self.item.local[axis]
        if function == "get_global_size":
            return self.item.groups[axis] * self.item.group[axis]
        return getattr(self.item, _WORK[function])[axis] if function in _WORK else 0


# ---- integers


def _wrap(x, bits):
    half = 1 << (bits - 1)
    return ((x + half) & ((1 << bits) - 1)) - half


def _quotient(a, b):
    return 0 if b == 0 else abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)


def _each(function, *operands):
    """Apply `function` to numbers, or to the elements of vectors."""
    if any(type(x) is tuple for x in operands):
        n = next(len(x) for x in operands if type(x) is tuple)
        return tuple(function(*(x[k] if type(x) is tuple else x for x in operands)) for k in range(n))
    return function(*operands)


def _size(kind):
    """Bytes of an LLVM type."""
    if found := re.fullmatch(r"<(\d+) x (.+)>", kind):
        n = int(found[1])
        return (4 if n == 3 else n) * _size(found[2])
    if found := re.fullmatch(r"\[(\d+) x (.+)\]", kind):
        return int(found[1]) * _size(found[2])
    if kind.startswith("i"):
        return -(-int(kind[1:]) // 8)
    return _SIZES[kind.partition(" ")[0]]


def _bits(kind):
    return int(re.search(r"i(\d+)", kind)[1])


def _space(kind):
    found = re.search(r"addrspace\((\d+)\)", kind)
    return int(found[1]) if found else 0


# ---- from instructions to Python


class _Writer:
    """Writes the text of a Python function for one function of the module."""

    def __init__(self, name, count, body, lines, known):
        self._name, self._count, self._lines, self._known = name, count, lines, known
        self._blocks, label = {}, str(count)
        for line in body.splitlines():
            line = line.split(" ; ")[0].rstrip()
            if found := re.match(r"([\w.]+):", line):
                label = found[1]
            elif line.strip():
                self._blocks.setdefault(label, []).append(line.strip())
        self._joined()
        self._number = {label: k for k, label in enumerate(self._blocks)}
        self._sites = 0

    def _joined(self):
        """Join instructions that are printed over several lines (switch)."""
        for label, lines in self._blocks.items():
            joined = []
            for line in lines:
                if joined and joined[-1].startswith("switch") and not joined[-1].endswith("]"):
                    joined[-1] += " " + line
                else:
                    joined.append(line)
            self._blocks[label] = joined

    def text(self):
        arguments = ", ".join(["state", *(f"v{k}" for k in range(self._count))])
        out = [f"def function({arguments}):", " block = 0", " while True:", "  state.round()"]
        for label, lines in self._blocks.items():
            out.append(f"  {'if' if self._number[label] == 0 else 'elif'} block == {self._number[label]}:")
            for line in lines:
                out += [f"   {statement}" for statement in self._instruction(label, line)]
        return "\n".join(out)

    def _instruction(self, label, line):
        debug = re.search(r", !dbg (!\d+)", line)
        self._line = self._lines.get(debug[1], 0) if debug else 0
        line = re.sub(r"(, ![a-z.]+ !\d+)+$", "", line)
        found = re.match(r"(?:%([\w.]+) = )?(?:(?:tail|musttail|notail) )?(\w+) ?(.*)", line)
        name, code, rest = found[1], found[2], found[3]
        if code == "phi":
            return []  # assigned where the branch is taken
        if code == "br":
            return self._branch(label, rest)
        if code == "switch":
            return self._switch(label, rest)
        if code == "ret":
            return ["return " + ("None" if rest == "void" else self._operand(*self._typed(rest)[:2]))]
        if code == "unreachable":
            return ["raise _Enough"]
        before, value = self._value(code, rest)
        return [*before, *([f"v{name} = {value}"] if name else [value] if value else [])]

    # ---- operands

    def _typed(self, text):
        """(type, operand, remaining text)."""
        found = re.match(rf"({_TYPE})(?: {_ATTRIBUTE})* ", text)
        if not found:
            raise Unknown(f"{self._name}: {text}")
        kind, rest = found[1], text[found.end() :]
        value, rest = self._split(rest)
        return kind, value, rest

    @staticmethod
    def _split(text):
        """(first operand, text after its comma)."""
        depth = 0
        for k, c in enumerate(text):
            depth += (c in "(<[{") - (c in ")>]}")
            if c == "," and depth == 0:
                return text[:k].strip(), text[k + 1 :].strip()
        return text.strip(), ""

    def _operand(self, kind, value):
        if value.startswith("%"):
            return f"v{value[1:]}"
        if value.startswith("@"):
            return f"state.globals[{value!r}]"
        if _FLOAT.match(kind):
            return "0.0"
        vector = re.match(r"<(\d+) x (.+)>", kind)
        if value in ("undef", "poison", "zeroinitializer", "null", "none"):
            return f"(0,) * {vector[1]}" if vector else "0"
        if vector:
            if splat := re.match(r"splat \(\w+ (.+)\)", value):
                return f"({splat[1]},) * {vector[1]}"
            parts = value.strip("<>").split(",")
            return "(" + " ".join(f"{self._operand(*p.strip().split(' ', 1))}," for p in parts) + ")"
        if value in ("true", "false"):
            return str(int(value == "true"))
        if "getelementptr" in value:
            found = re.match(r"getelementptr (?:inbounds )?(?:nuw )?\((.*)\)$", value)
            return self._pointer(found[1])
        return value

    def _pair(self, rest):
        """(type, first operand, second operand)."""
        kind, a, rest = self._typed(rest)
        return kind, self._operand(kind, a), self._operand(kind, self._split(rest)[0])

    # ---- control flow

    def _goto(self, label, target):
        target = target.removeprefix("%")
        names, values = [], []
        for line in self._blocks[target]:
            found = re.match(rf"%([\w.]+) = phi ({_TYPE}) (.*)", re.sub(r"(, ![a-z.]+ !\d+)+$", "", line))
            if found is None:
                break
            for value, source in re.findall(r"\[ (.+?), %([\w.]+) \]", found[3]):
                if source == label:
                    names.append(f"v{found[1]}")
                    values.append(self._operand(found[2], value))
        moved = f"{', '.join(names)} = {', '.join(values)}; " if names else ""
        return f"{moved}block = {self._number[target]}; continue"

    def _branch(self, label, rest):
        targets = re.findall(r"label (%[\w.]+)", rest)
        if len(targets) == 1:
            return [self._goto(label, targets[0])]
        kind, condition, _ = self._typed(rest)
        return [f"if {self._operand(kind, condition)}:", f" {self._goto(label, targets[0])}", self._goto(label, targets[1])]

    def _switch(self, label, rest):
        kind, value, rest = self._typed(rest)
        cases = re.findall(rf"{kind} (-?\d+), label (%[\w.]+)", rest)
        default = re.match(r"label (%[\w.]+)", rest)[1]
        tests = []
        for number, target in cases:
            tests += [f"if {self._operand(kind, value)} == {number}:", f" {self._goto(label, target)}"]
        return [*tests, self._goto(label, default)]

    # ---- values

    def _touch(self, address, space, store, nbytes):
        self._sites += 1
        site = f"Site(({self._name!r}, {self._sites}), {space}, {store}, {nbytes}, {self._line})"
        return [f"state.touch({site}, {address})"] if space else []

    def _pointer(self, rest):
        kind, rest = self._split(rest)
        space, base, rest = self._typed(rest)
        terms = [self._operand(space, base)]
        while rest:
            index_kind, index, rest = self._typed(rest)
            terms.append(f"{self._operand(index_kind, index)} * {_size(kind)}")
            if found := re.fullmatch(r"\[\d+ x (.+)\]|<\d+ x (.+)>", kind):
                kind = found[1] or found[2]
        return "(" + " + ".join(terms) + ")"

    def _value(self, code, rest):
        """(statements to run first, expression for the instruction's value)."""
        if code == "load":
            rest = rest.removeprefix("volatile ")
            kind, rest = self._split(rest)
            space, p, _ = self._typed(rest)
            address = self._operand(space, p)
            return self._touch(address, _space(space), False, _size(kind)), self._loaded(kind, address, _space(space))
        if code == "store":
            kind, value, rest = self._typed(rest.removeprefix("volatile "))
            space, p, _ = self._typed(rest)
            address = self._operand(space, p)
            own = "" if _space(space) else f"state.own[{address}] = {self._operand(kind, value)}"
            return self._touch(address, _space(space), True, _size(kind)), own
        if code == "getelementptr":
            return [], self._pointer(re.sub(rf"^({_FLAG} )+", "", rest))
        if code == "alloca":
            return [], f"state.room({_size(self._split(rest)[0])})"
        if code == "call":
            return self._call(rest)
        if code in ("atomicrmw", "cmpxchg"):
            found = re.search(r"(ptr addrspace\(\d+\)) (%[\w.]+|@[\w.]+)", rest)
            return self._touch(self._operand(found[1], found[2]), _space(found[1]), True, 4), "0"
        if code in ("fcmp", "fptosi", "fptoui", "extractvalue"):
            return [], "0"
        if code == "icmp":
            rest = rest.removeprefix("samesign ")
            how, rest = rest.split(" ", 1)
            kind, a, b = self._pair(rest)
            if how[0] == "u":
                mask = (1 << (64 if kind.startswith("ptr") else _bits(kind))) - 1
                return [], f"_each(lambda a, b: int(a & {mask} {_COMPARE[how[1:]]} b & {mask}), {a}, {b})"
            return [], f"_each(lambda a, b: int(a {_COMPARE[how.removeprefix('s')]} b), {a}, {b})"
        if code == "select":
            of, condition, rest = self._typed(re.sub(rf"^({_FLAG} )+", "", rest))
            kind, a, rest = self._typed(rest)
            operands = f"{self._operand(of, condition)}, {self._operand(kind, a)}, {self._operand(kind, self._typed(rest)[1])}"
            return [], "0.0" if _FLOAT.match(kind) else f"_each(lambda c, a, b: a if c else b, {operands})"
        return [], self._computed(code, rest)

    def _loaded(self, kind, address, space):
        if _FLOAT.match(kind):
            return "0.0"
        vector = re.match(r"<(\d+) x", kind)
        zero = f"(0,) * {vector[1]}" if vector else "0"
        return zero if space else f"state.own.get({address}, {zero})"

    def _computed(self, code, rest):
        rest = re.sub(rf"^({_FLAG} )+", "", rest)
        if code[0] == "f" and code in ("fadd", "fsub", "fmul", "fdiv", "frem", "fneg", "fpext", "fptrunc") or code in ("sitofp", "uitofp"):
            return "0.0"
        if code in ("freeze", "ptrtoint", "inttoptr", "addrspacecast"):
            kind, value, _ = self._typed(rest.split(" to ")[0])
            return self._operand(kind, value)
        if code in ("zext", "sext", "trunc", "bitcast"):
            source, target = rest.rsplit(" to ", 1)
            return self._converted(code, *self._typed(source)[:2], target)
        if code in ("insertelement", "extractelement", "shufflevector"):
            return self._element(code, rest)
        kind, a, b = self._pair(rest)
        bits = _bits(kind)
        mask = (1 << bits) - 1
        formula = {
            "add": "a + b", "sub": "a - b", "mul": "a * b", "and": "a & b", "or": "a | b", "xor": "a ^ b",
            "shl": "a << (b & 63)", "ashr": "a >> (b & 63)", "lshr": f"(a & {mask}) >> (b & 63)",
            "sdiv": "_quotient(a, b)", "srem": "a - b * _quotient(a, b)",
            "udiv": f"_quotient(a & {mask}, b & {mask})", "urem": f"(a & {mask}) % ((b & {mask}) or 1)",
        }.get(code)  # fmt: skip
        if formula is None:
            raise Unknown(f"{self._name}: {code} {rest}")
        return f"_each(lambda a, b: _wrap({formula}, {bits}), {a}, {b})" if bits > 1 else f"_each(lambda a, b: ({formula}) & 1, {a}, {b})"

    def _converted(self, code, kind, value, target):
        operand = self._operand(kind, value)
        if code == "bitcast":
            if _FLOAT.match(target):
                return "0.0"
            vector = re.match(r"<(\d+) x", target)
            return (f"(0,) * {vector[1]}" if vector else "0") if _FLOAT.match(kind) or ("<" in kind) != ("<" in target) else operand
        if code == "zext":
            return f"_each(lambda a: a & {(1 << _bits(kind)) - 1}, {operand})"
        if code == "sext":
            return f"_each(lambda a: -a, {operand})" if _bits(kind) == 1 else operand
        return f"_each(lambda a: a & 1, {operand})" if _bits(target) == 1 else f"_each(lambda a: _wrap(a, {_bits(target)}), {operand})"

    def _element(self, code, rest):
        kind, vector, rest = self._typed(rest)
        if _FLOAT.match(kind):
            return "0.0"
        vector = f"({self._operand(kind, vector)})"
        if code == "extractelement":
            return f"{vector}[{self._operand(*self._typed(rest)[:2])}]"
        if code == "insertelement":
            of, value, rest = self._typed(rest)
            index = self._operand(*self._typed(rest)[:2])
            return f"(*{vector}[:{index}], {self._operand(of, value)}, *{vector}[{index} + 1:])"
        _, other, rest = self._typed(rest)
        order = self._operand(*self._typed(rest)[:2])
        return f"tuple(({vector} + {self._operand(kind, other)})[k] for k in {order})"

    def _call(self, rest):
        found = re.search(r"@([\w.]+)\((.*)\)", rest)
        if found is None:
            raise Unknown(f"{self._name}: call {rest}")
        name, text = found.groups()
        result = re.match(rf"(?:(?:fastcc|spir_func|{_FLAG}|{_ATTRIBUTE}) )*(.*?) @", rest)[1]
        operands = []
        while text and not text.startswith(("metadata", "i1 immarg")):
            kind, value, text = self._typed(text)
            operands.append((kind, self._operand(kind, value)))
        values = [value for _, value in operands]
        if name in self._known:
            return [], f"state.function({name!r})(state, {', '.join(values)})"
        function = re.sub(r"^_Z\d+", "", name)
        if moved := re.match(r"(vloada?|vstorea?)(_half)?(\d*)(?:_rt[enpz])?(?=[mDP])", function):
            return self._vector(moved, function, values, result)
        if work := re.match(r"(get_\w+?)j$", function):
            return [], f"state.id({work[1]!r}, {values[0]})"
        if atomic := re.search(r"atom\w*?P[UV]*\d?AS(\d)", function):
            return self._touch(values[0], int(atomic[1]), True, 4), "0"
        return [], self._builtin(function, values, result)

    def _vector(self, moved, function, values, result):
        """A load or store of several elements."""
        kind, half, count = moved[1], moved[2], int(moved[3] or 1)
        code = re.search(r"P(?:U3AS(\d))?K?(Dh|[a-z])$", function)
        space, size = int(code[1] or 0), 2 if half else _CODES[code[2]]
        store = kind.startswith("vstore")
        offset, pointer = values[-2:] if not store else values[1:3]
        stride = 4 if count == 3 and kind.endswith("a") else count
        address = f"({pointer} + {offset} * {stride * size})"
        number = "0.0" if _FLOAT.match(result) or store else f"(0,) * {count}"
        return self._touch(address, space, store, count * size), "None" if store else number

    @staticmethod
    def _builtin(function, values, result):
        """The integer result of an OpenCL or LLVM function, as an expression; zero for unknown functions and other types."""
        if result == "void":
            return ""
        if _FLOAT.match(result):
            return "0.0"
        bits, base = _bits(result) if re.search(r"i\d", result) else 64, function.removeprefix("llvm.").partition(".")[0]
        mask = (1 << bits) - 1
        base = re.sub(r"(min|max|clamp|mad24|mul24|abs|mul_hi|rotate|select|convert_\w+?)(Dv\d+_)?[a-z]\w*$", r"\1", base)
        formula = {
            "min": "min(a)", "max": "max(a)", "smin": "min(a)", "smax": "max(a)", "umin": f"min(x & {mask} for x in a)",
            "umax": f"max(x & {mask} for x in a)", "clamp": "min(max(a[0], a[1]), a[2])", "mad24": "a[0] * a[1] + a[2]",
            "mul24": "a[0] * a[1]", "abs": "abs(a[0])", "mul_hi": f"(a[0] & {mask}) * (a[1] & {mask}) >> {bits}",
            "fshl": f"(a[0] << (a[2] % {bits})) | ((a[1] & {mask}) >> (({bits} - a[2]) % {bits}))",
        }.get(base)  # fmt: skip
        if base.startswith("convert_") and len(values) == 1:
            formula = "int(a[0])"
        if formula is None:
            vector = re.match(r"<(\d+) x", result)
            return f"(0,) * {vector[1]}" if vector else "0"
        return f"_each(lambda *a: _wrap({formula}, {bits}), {', '.join(values)})"
