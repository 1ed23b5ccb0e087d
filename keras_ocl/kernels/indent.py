"""Indentation of OpenCL C text: templates need not indent, and source printed beside a profile is readable."""

_INDENT = "  "
_CONTROL = ("for", "while", "if", "else")


def indented(text: str, depth: int = 1) -> str:
    """`text`, each line indented by the braces around it, and once more after a `for`, `while`, `if` or `else` without braces."""
    lines, inside, extra = [], [depth], 0
    for line in map(str.strip, text.splitlines()):
        if not line:
            continue
        closers = len(line) - len(line.lstrip("}"))
        level = inside[-closers] - 1 if closers else inside[-1] + extra
        lines.append(f"{_INDENT * level}{line}\n")
        if "{" in line or "}" in line:
            for character in line:
                if character == "{":
                    inside.append(level + 1)
                elif character == "}":
                    inside.pop()
        extra = extra + 1 if not line.endswith(("{", ";", "}")) and _controls(line) else 0
    return "".join(lines)


def _controls(line: str) -> bool:
    """Whether a line begins with the head of a statement for which another statement follows."""
    line = line.removeprefix("}").lstrip()
    end = next((k for k, character in enumerate(line) if not (character.isalnum() or character == "_")), len(line))
    return line[:end] in _CONTROL
