"""Indentation of OpenCL C text: templates need not indent, and source printed beside a profile is readable."""

import re

_INDENT = "  "
_CONTROL = re.compile(r"(}\s*)?(for|while|if|else)\b")


def indented(text: str, depth: int = 1) -> str:
    """`text`, each line indented by the braces around it, and once more after a `for`, `while`, `if` or `else` without braces."""
    lines, inside, extra = [], [depth], 0
    for line in map(str.strip, text.splitlines()):
        if not line:
            continue
        closers = len(line) - len(line.lstrip("}"))
        level = inside[-closers] - 1 if closers else inside[-1] + extra
        lines.append(f"{_INDENT * level}{line}\n")
        for brace in re.findall(r"[{}]", line):
            if brace == "{":
                inside.append(level + 1)
            else:
                inside.pop()
        alone = _CONTROL.match(line) and not line.endswith(("{", ";", "}"))
        extra = extra + 1 if alone else 0
    return "".join(lines)
