"""The instruction mix of a kernel's inner loop, read from the text of its machine code."""

import re
from dataclasses import dataclass

_LABEL = re.compile(r"^\s*(\.L\w+):")
_BRANCH = re.compile(r"\b(?:BRA|s_cbranch_\w+|s_branch)\b.*?(\.L\w+)")
_ADDRESS = re.compile(r"/\*[0-9a-f]+\*/")
_SKIPPED = re.compile(r"(?:s_(?:waitcnt\w*|delay_alu|nop|clause)|NOP)\b")  # instructions that compute nothing
_KINDS = (  # kind, pattern of NVIDIA's and AMD's mnemonics
    ("matrix", re.compile(r"[HIDQ]MMA|v_(?:wmma|mfma|smfmac)_")),
    ("fma", re.compile(r"(?:FFMA|HFMA|DFMA)|v_(?:dual_|pk_)?(?:fma|mad_f|mac_f)")),
    ("float", re.compile(r"(?:[FDH](?:ADD|MUL|MNMX|SET|SEL)|MUFU|F2|I2F|FRND)|v_\w+_f(?:16|32|64)")),
    ("memory", re.compile(r"(?:LD|ST|ATOM|RED)|(?:global|ds|buffer|flat|scratch|s_load)_")),
)


@dataclass(frozen=True)
class Mix:
    """Numbers of a loop's instructions: those of matrix units, fused multiply-adds, other float arithmetic, loads and stores, the rest
    (mostly integers)."""

    matrix: int = 0
    fma: int = 0
    float: int = 0
    memory: int = 0
    rest: int = 0

    @property
    def total(self):
        return self.matrix + self.fma + self.float + self.memory + self.rest

    def __str__(self):
        shares = (100 * n / max(1, self.total) for n in (self.matrix, self.fma, self.float, self.memory, self.rest))
        matrix, *others = shares
        text = "{:3.0f}% fma {:3.0f}% float {:3.0f}% memory {:3.0f}% rest".format(*others)
        return f"{matrix:3.0f}% matrix {text}" if self.matrix else text


def inner_loop(text):
    """The Mix of the longest innermost loop, or of all instructions if there is no loop.

    text: a kernel's assembly, as nvdisasm prints it for NVIDIA, or LLVM for AMD.
    """
    code, labels, loops = [], {}, []
    for line in text.splitlines():
        label = _LABEL.match(line)
        if label:
            labels[label[1]] = len(code)
            continue
        line = re.sub(r"^@!?U?P\w+\s+", "", _ADDRESS.sub("", line).strip().lstrip("{ "))
        if not re.match(r"[A-Za-z]\w*", line) or _SKIPPED.match(line):
            continue
        back = _BRANCH.search(line)
        # From behind the program's end, AMD's compiler returns to code that it has split off.
        if back and labels.get(back[1], len(code)) < len(code) and "s_endpgm" not in code[labels[back[1]] :]:
            loops.append((labels[back[1]], len(code) + 1))
        code += line.split(" :: ")  # AMD's dual-issue pairs
    inner = [a for a in loops if not any(a != b and a[0] <= b[0] and b[1] <= a[1] for b in loops)]
    start, end = max(inner, key=lambda loop: loop[1] - loop[0], default=(0, len(code)))
    counts = dict.fromkeys(Mix.__dataclass_fields__, 0)
    for line in code[start:end]:
        counts[next((kind for kind, known in _KINDS if known.match(line)), "rest")] += 1
    return Mix(**counts)
