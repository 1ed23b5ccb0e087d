"""OpenCL C in which each access to global memory is checked: the text of kernels, rewritten before they are built.

Beside each pointer there are the begin and the end of the buffer it points into, as two numbers that are declared, assigned and passed on
where it is: those of a kernel's parameters come from the host. An access becomes `checked(address, bytes, begin, end, ...)`, which gives
the address back, or, where the access leaves the buffer, notes it and gives an address that does no harm.
What the rewriting does not understand raises NotUnderstood: no access goes unseen.
"""

import re
import zlib
from dataclasses import dataclass

_BLANK, _WORD = r"\s+|//[^\n]*|/\*.*?\*/|#[^\n]*", r'"[^"]*"|\w[\w.]*(?:(?<=[eE])[+-]\d+\w*)?'
_TOKEN = re.compile(rf"{_BLANK}|{_WORD}|<<=|>>=|[-+*/%&|^=!<>]=|\+\+|--|<<|>>|&&|\|\||.", re.S)
_CLOSING = {"(": ")", "[": "]", "{": "}"}
_VECTOR = re.compile(r"v(load|store)(a?)(_half)?(\d*)(?:_rt[ezpn])?$")
RECORDS = 64  # faults that are described; the others are counted
WORDS = 4  # of a record: the access's number, its place behind the buffer's begin, the bytes it takes, the buffer's bytes
SPARE = 2 + RECORDS * WORDS  # from here on lies what an access out of bounds gets instead
ELEMENTS = SPARE + 32  # of the array of faults, in numbers of 64 bits
HEAD = f"""__attribute__((noinline)) __global char* checked(
    const ulong place, const ulong bytes, const ulong begin, const ulong end, const uint access, __global ulong* faults) {{
  if (place >= begin && place + bytes <= end) return (__global char*)place;
  const uint k = atomic_inc((volatile __global uint*)faults);
  if (k < {RECORDS}) {{
    __global ulong* record = faults + 2 + k * {WORDS};
    record[0] = access;
    record[1] = place - begin;
    record[2] = bytes;
    record[3] = end - begin;
  }}
  return (__global char*)(faults + {SPARE});
}}
"""


class NotUnderstood(Exception):
    """A text with an access, or a pointer, that the rewriting does not know."""


@dataclass
class Kernel:
    """What is known of a rewritten kernel: `pointers` are the positions of its parameters that point to global memory.

    Their buffers' bytes follow behind its own `count` parameters, in the same order, and then the array of faults.
    """

    pointers: list
    count: int


class Group(list):
    """What stands in brackets; `open` is the bracket."""

    __hash__ = object.__hash__

    def __init__(self, open):
        super().__init__()
        self.open = open


def checked(source, texts, accesses):
    """(text, texts, Kernel) of a kernel and the texts that it needs; adds to `accesses`: number -> (kernel, buffer, access) in words."""
    functions = {}
    for text in texts:
        functions.update(_functions(_parsed(text)))
    # Kernels share a text that they need, so that it is rewritten the same for each of them.
    texts = [_Rewriter(functions, _title(text), accesses).program(text) for text in texts]
    rewriter = _Rewriter(functions, _title(source), accesses)
    source = rewriter.program(source)
    return source, (HEAD, *texts), rewriter.kernel


def _title(text):
    """A text's first line, without the marks of a comment."""
    return text.partition("\n")[0].removeprefix("// ")


def _parsed(text):
    stack = [Group("")]
    for token in _TOKEN.findall(text):
        if token in _CLOSING:
            stack.append(Group(token))
            stack[-2].append(stack[-1])
        elif token in (")", "]", "}"):
            if _CLOSING.get(stack[-1].open) != token:
                raise NotUnderstood(f"brackets: {text}")
            stack.pop()
        else:
            stack[-1].append(token)
    return stack[0]


def _printed(nodes):
    return "".join(n if isinstance(n, str) else f"{n.open}{_printed(n)}{_CLOSING[n.open]}" for n in nodes)


def _blank(node):
    return isinstance(node, str) and (node.isspace() or node.startswith(("//", "/*")))


def _is(node, open):
    return isinstance(node, Group) and node.open == open


def _split(nodes, separator=","):
    parts = [[]]
    for node in nodes:
        if node == separator:
            parts.append([])
        else:
            parts[-1].append(node)
    return parts


def _bare(nodes):
    """The nodes without blanks."""
    return [n for n in nodes if not _blank(n)]


def _pointed(words):
    """The element's type where the words declare a pointer to global memory or name its type, else None."""
    if "__global" not in words or "*" not in words:
        return None
    return " ".join(w for w in words[: words.index("*")] if w not in ("__global", "const", "restrict", "volatile"))


def _functions(nodes):
    """Name -> positions of pointers among the parameters, of functions that have such."""
    found = {}
    for name, _, parameters, _ in _definitions(nodes):
        pointers = [k for k, p in enumerate(_split(parameters)) if _pointed(_bare(p))]
        if pointers:
            found[name] = pointers
    return found


def _definitions(nodes):
    """(name, position of the name, parameters, body) of each function that is defined."""
    for k, node in enumerate(nodes):
        if _is(node, "{"):
            before = [j for j in range(k) if not _blank(nodes[j])]
            if len(before) > 1 and _is(nodes[before[-1]], "("):
                yield nodes[before[-2]], before[-2], nodes[before[-1]], node


class _Rewriter:
    def __init__(self, functions, title, accesses):
        self._functions, self._title, self._accesses = functions, title, accesses
        self.kernel = None

    def program(self, text):
        nodes = _parsed(text)
        for name, at, parameters, body in list(_definitions(nodes)):
            is_kernel = "__kernel" in nodes[:at]
            if is_kernel or name in self._functions:
                self._define(is_kernel, parameters, body)
        return _printed(nodes)

    def _define(self, is_kernel, parameters, body):
        scope, pointers, own, begins = {}, [], [], []
        parts = _split(parameters)
        for k, part in enumerate(parts):
            own.append(_printed(part))
            pointed = _pointed(_bare(part))
            if pointed is None:
                continue
            name = _bare(part)[-1]
            scope[name] = pointed
            pointers.append(k)
            if is_kernel:
                begins.append(f"const ulong {name}_begin = (ulong){name}, {name}_end = {name}_begin + {name}_bytes;\n")
            else:
                own[-1] += f", const ulong {name}_begin, const ulong {name}_end"
        if is_kernel:
            own += [f"const ulong {_bare(parts[k])[-1]}_bytes" for k in pointers]
            self.kernel = Kernel(pointers, len(parts))
        own = ", ".join([*own, "__global ulong* faults"])
        text = "".join(begins) + self._statements(body, scope)
        parameters[:], body[:] = [own], [text]

    def _statements(self, nodes, scope):
        """The text of a block."""
        text, statement, scope = [], [], dict(scope)
        for node in nodes:
            statement.append(node)
            if node == ";" or _is(node, "{"):
                text.append(self._statement(statement, scope))
                statement = []
        return "".join(text) + self._statement(statement, scope)

    def _statement(self, nodes, scope):
        """The text of a statement: what ends in a semicolon or a block, with the heads of loops and branches before it."""
        start = self._start(nodes)
        head, tail = nodes[:start], nodes[start:]
        text = self._expression(head, scope)
        bare = _bare(tail)
        if bare and bare[0] == "__global" or "__global" in bare[:2]:
            return text + self._declaration(tail, scope)
        if len(bare) > 2 and bare[1] == "=" and bare[0] in scope:
            value = [n for n in tail[tail.index("=") + 1 :] if n != ";"]
            begin, end = self._range(value, scope)
            return f"{text}{{ {bare[0]} = {self._expression(value, scope, True)}; {bare[0]}_begin = {begin}; {bare[0]}_end = {end}; }}"
        return text + self._expression(tail, scope)

    def _start(self, nodes):
        """Where the statement itself starts, behind `for (...)`, `if (...)`, `else`."""
        start, k = 0, 0
        while k < len(nodes):
            if _blank(nodes[k]) or nodes[k] in ("else", "do"):
                k += 1
            elif nodes[k] in ("for", "if", "while", "switch"):
                while not _is(nodes[k], "("):
                    k += 1
                k += 1
            else:
                break
            start = k
        return start

    def _declaration(self, nodes, scope):
        star = nodes.index("*")
        equals = nodes.index("=") if "=" in nodes else None
        if equals is None or len(_split(nodes[:equals])) > 1:
            raise NotUnderstood(_printed(nodes))
        name = _bare(nodes[star:equals])[-1]
        value = nodes[equals + 1 : -1]
        if "," in value:
            raise NotUnderstood(_printed(nodes))
        begin, end = self._range(value, scope)
        text = _printed(nodes[: equals + 1]) + self._expression(value, scope, True)
        scope[name] = _pointed(_bare(nodes[: star + 1]))
        return f"{text}; ulong {name}_begin = {begin}, {name}_end = {end};"

    def _range(self, nodes, scope):
        """(begin, end) of the buffer that a pointer's expression points into, as C text; None where it is no such pointer."""
        nodes = _bare(nodes)
        while len(nodes) == 1 and _is(nodes[0], "("):
            nodes = _bare(nodes[0])
        if "?" in nodes and ":" in nodes:
            at, other = nodes.index("?"), nodes.index(":")
            a, b = self._range(nodes[at + 1 : other], scope), self._range(nodes[other + 1 :], scope)
            if a is None or b is None or a == b:
                return a or b
            condition = self._expression(nodes[:at], scope)
            return tuple(f"({condition} ? {x} : {y})" for x, y in zip(a, b, strict=True))
        roots = list(dict.fromkeys(self._roots(nodes, scope)))
        if len(roots) > 1:
            raise NotUnderstood(_printed(nodes))
        return (f"{roots[0]}_begin", f"{roots[0]}_end") if roots else None

    def _roots(self, nodes, scope):
        """The pointers in an expression that are not what an access in it goes through."""
        nodes, found, behind = _bare(nodes), [], 0
        for k, node in enumerate(nodes):
            if k < behind:
                continue
            if self._starred(nodes, k):
                behind = self._primary(nodes, k + 1)
                continue
            before, following = nodes[k - 1] if k else None, nodes[k + 1] if k + 1 < len(nodes) else None
            if following in ("==", "!=", "+=", "-=", "++") or before in ("==", "!="):
                continue  # it is compared, or moves within what it points into
            if isinstance(node, str):
                if node in scope and not _is(following, "[") and not _is(following, "(") and before != ".":
                    found.append(node)
            elif node.open == "(" and not _is(following, "[") and not (isinstance(before, str) and _called(before)):
                found += self._roots(node, scope)
        return found

    def _type(self, nodes, scope):
        """The element's type of a pointer's expression."""
        nodes = _bare(nodes)
        while len(nodes) == 1 and _is(nodes[0], "("):
            nodes = _bare(nodes[0])
        if _is(nodes[0], "(") and _pointed(_bare(nodes[0])):
            return _pointed(_bare(nodes[0]))
        if "+" in nodes:
            first = nodes[: nodes.index("+")]
            if self._roots(first, scope):
                return self._type(first, scope)
        types = {scope[r] for r in self._roots(nodes, scope)}
        if len(types) != 1:
            raise NotUnderstood(_printed(nodes))
        return types.pop()

    def _expression(self, nodes, scope, pointer=False):
        """The text of what holds no declaration. pointer: whether it may be a pointer."""
        if not pointer and any(self._roots(part, scope) for part in _split(nodes, ";")):
            raise NotUnderstood(f"a pointer in {_printed(nodes)!r}")
        text, k = [], 0
        while k < len(nodes):
            part, k = self._operand(nodes, k, scope)
            text.append(part)
        return "".join(text)

    def _starred(self, nodes, k):
        """Whether the node is a star that reads what a pointer points to."""
        if nodes[k] != "*":
            return False
        before = next((n for n in reversed(nodes[:k]) if not _blank(n)), None)
        if before is None or before == "return":
            return True
        return isinstance(before, str) and not re.match(r"\w", before)

    def _primary(self, nodes, k):
        """The position behind the operand that begins at k: casts, then a name or what is in brackets."""
        while k < len(nodes) and _blank(nodes[k]):
            k += 1
        while k < len(nodes) and _is(nodes[k], "(") and _pointed(_bare(nodes[k])):
            k += 1
            while _blank(nodes[k]):
                k += 1
        return k + 1

    def _operand(self, nodes, k, scope):
        """(text, position behind it) of the node at k, or of the access that begins there."""
        node = nodes[k]
        after = next((j for j in range(k + 1, len(nodes)) if not _blank(nodes[j])), None)
        following = None if after is None else nodes[after]
        if self._starred(nodes, k):
            end = self._primary(nodes, k + 1)
            if self._roots(nodes[k + 1 : end], scope):
                operand = nodes[k + 1 : end]
                return self._access(operand, None, 1, scope, _printed(nodes[k:end])), end
        if isinstance(node, str):
            if node in scope and _is(following, "["):
                return self._access([node], following, 1, scope, _printed([node, following])), after + 1
            vector = _VECTOR.match(node)
            if vector and _is(following, "("):
                return self._vector(vector, following, scope), after + 1
            if node in self._functions and _is(following, "("):
                return self._call(node, following, scope), after + 1
            return node, k + 1
        if node.open == "(" and _is(following, "[") and self._roots(node, scope):
            return self._access([node], following, 1, scope, _printed([node, following])), after + 1
        if node.open == "{":
            return f"{{{self._statements(node, scope)}}}", k + 1
        before = next((n for n in reversed(nodes[:k]) if not _blank(n)), None)
        plain = node.open == "(" and not (isinstance(before, str) and _called(before))  # not the arguments of a function
        inner = self._statements(node, scope) if ";" in node else self._expression(node, scope, plain)
        return f"{node.open}{inner}{_CLOSING[node.open]}", k + 1

    def _access(self, pointer, index, width, scope, words, scale=1):
        """An lvalue: what lies at `index` behind the pointer."""
        pointed = self._type(pointer, scope)
        at = f" + ({self._expression(index, scope)})" if index is not None else ""
        return f"(*(__global {pointed}*){self._place(pointer, at, pointed, width, scope, words)})"

    def _place(self, pointer, at, pointed, width, scope, words):
        begin, end = self._range(pointer, scope)
        root = begin.removesuffix("_begin")
        number = zlib.crc32(f"{self._title}\0{words}".encode())
        self._accesses[number] = self._title, root, " ".join(words.split())
        place = f"(ulong)({self._expression(pointer, scope, True)}{at})"
        return f"checked({place}, {width} * sizeof({pointed}), {begin}, {end}, {number}u, faults)"

    def _vector(self, found, call, scope):
        arguments = _split(call)
        pointer, name = arguments[-1], found[0]
        if self._range(pointer, scope) is None:
            return f"{name}({', '.join(self._expression(a, scope, True) for a in arguments)})"
        pointed, width = self._type(pointer, scope), int(found[4] or 1)
        lanes = 4 if found[2] and width == 3 else width
        at = f" + ({self._expression(arguments[-2], scope)}) * {lanes}L"
        place = f"(__global {pointed}*){self._place(pointer, at, pointed, width, scope, f'{name}({_printed(call)})')}"
        value = [self._expression(a, scope) for a in arguments[:-2]]
        return f"{name}({', '.join([*value, '0', place])})"

    def _call(self, name, call, scope):
        arguments = []
        for k, part in enumerate(_split(call)):
            is_pointer = k in self._functions[name]
            arguments.append(self._expression(part, scope, is_pointer))
            if is_pointer:
                arguments += self._range(part, scope)
        return f"{name}({', '.join([*arguments, 'faults'])})"


def _called(name):
    """Whether a bracket behind this word holds the arguments of a function, whose result is no pointer."""
    return re.match(r"[A-Za-z_]\w*$", name) is not None and name != "return"
