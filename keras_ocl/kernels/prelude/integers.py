"""OpenCL C templates of integer arithmetic with NumPy's semantics, storage formats and random bits.

A template's text uses `$name` (the function), `$T` (register type), `$E` (its element), `$I` and `$U` (signed and unsigned
integers of the same lane size), `$P` (unsigned type wide enough for C's promotions not to overflow), `$B` (bits per lane),
`$N` (the width), `$W` (suffix of a type name: nothing for one lane) and `$M` (turns a mask of $I lanes into int lanes of 0/-1).
Any other placeholder is the name of a helper of the same type and width, or of one that exists for one type only: `$rem(a, b)`.
Comparisons give 0/1 for one lane and 0/-1 in vectors; `?:`, `&` and `|` on them have the same meaning in both.
"""

SIGNED = {
    # Division by 0 gives 0, and division by -1 the wrapped negation, as in NumPy; both could trap on a CPU.
    "div": """$T $name($T a, $T b) {
  $I zero = b == ($T)0, minus = b == ($T)-1;
  $T q = a / ((zero | minus) ? ($T)1 : b);
  return zero ? ($T)0 : (minus ? convert_$T(($U)0 - as_$U(a)) : q);
}
""",
    "floor_div": """$T $name($T a, $T b) {
  $I zero = b == ($T)0, minus = b == ($T)-1;
  $T d = (zero | minus) ? ($T)1 : b;
  $T q = a / d, r = a % d;
  q = ((r != ($T)0) & ((r ^ b) < ($T)0)) ? convert_$T(q - ($T)1) : q;
  return zero ? ($T)0 : (minus ? convert_$T(($U)0 - as_$U(a)) : q);
}
""",
    "mod": """$T $name($T a, $T b) {
  $I zero = b == ($T)0, minus = b == ($T)-1;
  $T r = a % ((zero | minus) ? ($T)1 : b);
  r += ((r != ($T)0) & ((r ^ b) < ($T)0)) ? b : ($T)0;
  return zero ? ($T)0 : r;
}
""",
    "rem": """$T $name($T a, $T b) {
  $I zero = b == ($T)0, minus = b == ($T)-1;
  $T r = a % ((zero | minus) ? ($T)1 : b);
  return zero ? ($T)0 : r;
}
""",
    "shift_right": """$T $name($T a, $T b) {
  return a >> as_$T(min(as_$U(b), ($U)($B - 1)));
}
""",
    # A negative exponent truncates the true power towards zero.
    "pow": """$T $name($T a, $T b) {
  $P r = ($P)1, x = convert_$P(as_$U(a)), e = convert_$P(as_$U(b));
  for (int k = 0; k < $B; ++k) {
    r = ((e & ($P)1) != ($P)0) ? r * x : r;
    x *= x;
    e >>= ($P)1;
  }
  $T unit = ((b & ($T)1) != ($T)0) ? a : convert_$T(a * a);
  unit = ((a == ($T)1) | (a == ($T)-1)) ? unit : ($T)0;
  return (b < ($T)0) ? unit : convert_$T(r);
}
""",
}

UNSIGNED = {
    "div": """$T $name($T a, $T b) {
  $I zero = b == ($T)0;
  return zero ? ($T)0 : convert_$T(a / (zero ? ($T)1 : b));
}
""",
    "rem": """$T $name($T a, $T b) {
  $I zero = b == ($T)0;
  return zero ? ($T)0 : convert_$T(a % (zero ? ($T)1 : b));
}
""",
    "shift_right": """$T $name($T a, $T b) {
  return (b < ($T)$B) ? convert_$T(a >> (b & ($T)($B - 1))) : ($T)0;
}
""",
    "pow": """$T $name($T a, $T b) {
  $P r = ($P)1, x = convert_$P(a), e = convert_$P(b);
  for (int k = 0; k < $B; ++k) {
    r = ((e & ($P)1) != ($P)0) ? r * x : r;
    x *= x;
    e >>= ($P)1;
  }
  return convert_$T(r);
}
""",
}
UNSIGNED["floor_div"] = UNSIGNED["div"]
UNSIGNED["mod"] = UNSIGNED["rem"]

BOTH = {
    "shift_left": """$T $name($T a, $T b) {
  return as_$T(($U)((as_$U(b) < ($U)$B) ? as_$U(a) << (as_$U(b) & ($U)($B - 1)) : ($U)0));
}
""",
}


def _format(exponent_bits, mantissa_bits, infinity, storage):
    """The templates round_, to_ and from_ of a float format with fewer bits than float32.

    round_ rounds a float register to the format's precision and range: to nearest even, also among the format's denormal numbers. A
    format without infinity turns numbers that are too large into NaN.
    """
    m = mantissa_bits
    bias = (1 << (exponent_bits - 1)) - 1
    drop = 23 - m
    largest_exponent = (1 << exponent_bits) - 1 - (1 if infinity else 0) - bias
    # Without infinity the all-ones exponent holds numbers, and only the all-ones mantissa is NaN.
    largest = ((largest_exponent + 127) << 23) | (((1 << m) - (1 if infinity else 2)) << drop)
    too_large = "0x7f800000u" if infinity else "0x7fc00000u"
    smallest_normal = (128 - bias) << 23
    magic = f"0x1p{24 - bias - m}f"
    storage_infinity = ((1 << exponent_bits) - 1) << m
    storage_nan = storage_infinity | (1 << (m - 1)) if infinity else (1 << (m + exponent_bits)) - 1
    sign_shift = 31 - (m + exponent_bits)
    round_ = f"""float$W $name(float$W x) {{
  uint$W sign = as_uint$W(x) & 0x80000000u, a = as_uint$W(x) & 0x7fffffffu;
  uint$W r = (a + {(1 << (drop - 1)) - 1:#x}u + ((a >> {drop}) & 1u)) & {0xFFFFFFFF ^ ((1 << drop) - 1):#x}u;
  uint$W tiny = as_uint$W((as_float$W(a) + {magic}) - {magic});
  r = (a < (uint$W){smallest_normal:#x}u) ? tiny : r;
  r = (r > (uint$W){largest:#x}u) ? (uint$W){too_large} : r;
  r = (a > (uint$W)0x7f800000u) ? (uint$W)0x7fc00000u : r;
  return as_float$W(r | sign);
}}
"""
    to = f"""{storage}$W $name(float$W x) {{
  uint$W b = as_uint$W($round_STEM(x)), a = b & 0x7fffffffu;
  uint$W tiny = convert_uint$W(as_float$W(a) * 0x1p{bias - 1 + m}f);
  uint$W r = (a < (uint$W){smallest_normal:#x}u) ? tiny : (a >> {drop}) - {(127 - bias) << m:#x}u;
  r = (a == (uint$W)0x7f800000u) ? (uint$W){storage_infinity:#x}u : r;
  r = (a > (uint$W)0x7f800000u) ? (uint$W){storage_nan:#x}u : r;
  return convert_{storage}$W(r | ((b & 0x80000000u) >> {sign_shift}));
}}
"""
    special = (
        f"r = ((v & {storage_infinity:#x}u) == (uint$W){storage_infinity:#x}u) ? (0x7f800000u | (v << {drop})) : r;"
        if infinity
        else f"r = (v == (uint$W){storage_nan:#x}u) ? (uint$W)0x7fc00000u : r;"
    )
    from_ = f"""float$W $name({storage}$W x) {{
  uint$W v = convert_uint$W(x) & {(1 << (m + exponent_bits)) - 1:#x}u;
  uint$W sign = (convert_uint$W(x) << {sign_shift}) & 0x80000000u;
  uint$W tiny = as_uint$W(convert_float$W(v) * 0x1p{1 - bias - m}f);
  uint$W r = (v < (uint$W){1 << m:#x}u) ? tiny : (v << {drop}) + {(127 - bias) << 23:#x}u;
  {special}
  return as_float$W(r | sign);
}}
"""
    return round_, to, from_


# Helpers that exist for one type only, by whole stem.
SINGLE = {
    # Rounds to nearest even on the upper 16 bits; a NaN stays a quiet NaN instead of rounding up to infinity.
    "to_bfloat16": """ushort$W $name(float$W x) {
  uint$W b = as_uint$W(x);
  uint$W r = (b + 0x7fffu + ((b >> 16) & 1u)) >> 16;
  return convert_ushort$W((x != x) ? ((b >> 16) | 0x40u) : r);
}
""",
    "from_bfloat16": """float$W $name(ushort$W x) {
  return as_float$W(convert_uint$W(x) << 16);
}
""",
    "round_bfloat16": """float$W $name(float$W x) {
  uint$W b = as_uint$W(x);
  uint$W r = b + 0x7fffu + ((b >> 16) & 1u);
  return as_float$W(((x != x) ? (b | 0x400000u) : r) & 0xffff0000u);
}
""",
    # Rounds to odd in float first, so that the second rounding, to float16, is to the nearest of the double.
    "double_to_float16": """float$W $name(double$W x) {
  float$W f = convert_float$W(x);
  int$W above = $M(fabs(convert_double$W(f)) > fabs(x)), exact = $M(convert_double$W(f) == x) | $M(x != x);
  int$W b = as_int$W(f) - (above ? (int$W)1 : (int$W)0);
  return $round_float16(exact ? f : as_float$W(b | 1));
}
""",
    # Threefry-2x32 with 20 rounds (Salmon et al. 2011); the first of the two words.
    "random_bits": """uint$W $name(uint key0, uint key1, uint$W low, uint high) {
  const uint k0 = key0, k1 = key1, k2 = 0x1BD11BDAu ^ key0 ^ key1;
  uint$W x = low + k0, y = (uint$W)(high + k1);
"""
    + "".join(
        f"  x += y; y = rotate(y, (uint$W){r}u); y ^= x;\n"
        + (f"  x += k{(i // 4 + 1) % 3}; y += k{(i // 4 + 2) % 3} + {i // 4 + 1}u;\n" if i % 4 == 3 else "")
        for i, r in enumerate([13, 15, 26, 6, 17, 29, 16, 24] * 2 + [13, 15, 26, 6])
    )
    + "  return x;\n}\n",
}

for _name, _args in {"float8_e4m3fn": (4, 3, False, "uchar"), "float8_e5m2": (5, 2, True, "uchar")}.items():
    for _prefix, _text in zip(("round", "to", "from"), _format(*_args), strict=True):
        SINGLE[f"{_prefix}_{_name}"] = _text.replace("STEM", _name)

SINGLE["round_float16"] = _format(5, 10, True, "ushort")[0]
# The built-in conversions applied to a register of bits, whose address is a multiple of its size (quirk aligned_halves).
SINGLE["to_float16"] = """ushort$W $name(float$W x) {
  ushort$W bits;
  vstore_half${W}_rte(x, 0, (half*)&bits);
  return bits;
}
"""
SINGLE["from_float16"] = """float$W $name(ushort$W bits) {
  return vload_half$W(0, (const half*)&bits);
}
"""

# The next number after x towards y in a 16-bit format: its bits plus or minus 1.
for _name in ("float16", "bfloat16"):
    SINGLE[f"nextafter_{_name}"] = f"""float$W $name(float$W x, float$W y) {{
  uint$W b = convert_uint$W($to_{_name}(x));
  uint$W r = ((y > x) == (x > 0.0f)) ? b + 1u : b - 1u;
  r = ((b & 0x7fffu) == (uint$W)0u) ? (((as_uint$W(y) >> 16) & 0x8000u) | 1u) : r;
  float$W near = $from_{_name}(convert_ushort$W(r));
  near = (x == y) ? y : near;
  return ((x != x) | (y != y)) ? x + y : near;
}}
"""
