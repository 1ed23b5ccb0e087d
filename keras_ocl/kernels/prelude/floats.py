"""OpenCL C templates of floating-point functions that OpenCL C lacks, or defines differently from NumPy.

The placeholders are those of integers.py, and `$F`, the suffix of a literal ("f" for float).
"""

import math


def horner(coefficients, variable):
    """C text of the polynomial with `coefficients`, lowest power first."""
    text = f"($T){coefficients[-1]!r}$F"
    for c in reversed(coefficients[:-1]):
        text = f"$mad({text}, {variable}, ($T){c!r}$F)"
    return text


BOTH = {
    # fma where it is an instruction (quirk separate_mad); elsewhere it may be a slow emulation.
    "mad": """$T $name($T a, $T b, $T c) {
#if defined(__FMA__) || defined(FP_FAST_FMAF)
  return fma(a, b, c);
#else
  return mad(a, b, c);
#endif
}
""",
    # For conversions to integers: saturating ones should give 0 for NaN (quirk nan_to_integers).
    "nan_to_zero": """$T $name($T x) {
  return (x != x) ? ($T)0.0$F : x;
}
""",
    "sign": """$T $name($T x) {
  return (x > 0.0$F) ? ($T)1.0$F : ((x < 0.0$F) ? ($T)-1.0$F : x);
}
""",
    # NaN if either is NaN. b is tested, not a, because the test of a constant b is folded away.
    "max": """$T $name($T a, $T b) {
  return ((a < b) | (b != b)) ? b : a;
}
""",
    "min": """$T $name($T a, $T b) {
  return ((a > b) | (b != b)) ? b : a;
}
""",
    "mod": """$T $name($T a, $T b) {
  $T r = $rem(a, b);
  r = ((r != 0.0$F) & ((r < 0.0$F) != (b < 0.0$F))) ? r + b : r;
  return (r == 0.0$F) ? copysign(r, b) : r;
}
""",
    # (a - rem(a, b)) / b, rounded to an integer: floor(a / b) alone is off by one where a / b rounds up to an integer. A float32 division
    # may be 2.5 ulp off, so its remainder is divided once more: the quotient is then the nearest number, except for one in a million beyond
    # 2^22 and for denormal divisors.
    "floor_div": """$T $name($T a, $T b) {
  $T r = $rem(a, b);
  $T n = a - r, q = n / b, e = fma(-q, b, n) / b;
  q = (fabs(e) < INFINITY) ? q + e : q;
  q = ((r != 0.0$F) & ((r < 0.0$F) != (b < 0.0$F))) ? q - 1.0$F : q;
  $T f = floor(q);
  f = (q - f > 0.5$F) ? f + 1.0$F : f;
  f = (q == 0.0$F) ? copysign(($T)0.0$F, a) * copysign(($T)1.0$F, b) : f;
  return (b == 0.0$F) ? a * copysign(($T)INFINITY, b) : f;
}
""",
    # A number as (bits of its mantissa, exponent): products in this form neither overflow nor underflow.
    "scaled": """${I}2 $name($T x) {
  int e;
  $T m = frexp(x, &e);
  return (${I}2)(as_$I(m), e);
}
""",
    "scaled_mul": """${I}2 $name(${I}2 a, ${I}2 b) {
  ${I}2 r = $scaled(as_$T(a.s0) * as_$T(b.s0));
  r.s1 = add_sat(r.s1, add_sat(a.s1, b.s1));
  return r;
}
""",
    "unscaled": """$T $name(${I}2 x) {
  return ldexp(as_$T(x.s0), convert_int_sat(x.s1));
}
""",
    "logistic": """$T $name($T x) {
  return 1.0$F / (1.0$F + exp(-x));
}
""",
    # The recurrence up to x = 10, where the asymptotic series is accurate, and reflection below 0.5; NaN at the poles below 0.
    "digamma": """$T $name($T a) {
  $T x = (a < 0.5$F) ? 1.0$F - a : a, s = ($T)0.0$F;
  for (int k = 0; k < 10; ++k) {
    s = (x < 10.0$F) ? s - 1.0$F / x : s;
    x = (x < 10.0$F) ? x + 1.0$F : x;
  }
  $T z = 1.0$F / (x * x);
  s += log(x) - 0.5$F / x - z * ("""
    + horner([1 / 12, -1 / 120, 1 / 252, -1 / 240, 1 / 132, -691 / 32760, 1 / 12], "z")
    + f""");
  $T r = {math.pi!r}$F * (a - rint(a));
  s = (a < 0.5$F) ? s - {math.pi!r}$F / tan(r) : s;
  s = (a == 0.0$F) ? -1.0$F / a : s;
  return ((a < 0.0$F) & (a == floor(a))) ? ($T)NAN : s;
}}
""",
    # Arguments are of $T2, complex numbers.
    "complex_mul": """${T}2 $name(${T}2 a, ${T}2 b) {
  return (${T}2)(a.x * b.x - a.y * b.y, a.x * b.y + a.y * b.x);
}
""",
    # Scaled by the larger part of the divisor (Smith's method), so that its square cannot overflow.
    "complex_div": """${T}2 $name(${T}2 a, ${T}2 b) {
  const int wide = fabs(b.x) >= fabs(b.y);
  const $T r = wide ? b.y / b.x : b.x / b.y;
  const $T s = 1.0$F / (wide ? b.x + b.y * r : b.x * r + b.y);
  return wide ? (${T}2)((a.x + a.y * r) * s, (a.y - a.x * r) * s) : (${T}2)((a.x * r + a.y) * s, (a.y * r - a.x) * s);
}
""",
    "complex_exp": """${T}2 $name(${T}2 a) {
  const $T e = exp(a.x);
  $T c, s = sincos(a.y, &c);  // which an optimiser makes of both, with other bits
  return (a.y == 0.0$F) ? (${T}2)(e, a.y) : (${T}2)(e * c, e * s);
}
""",
}

_I0_SERIES = [1.0 / math.factorial(k) ** 2 for k in range(24)]
_I1_SERIES = [0.5 / (math.factorial(k) * math.factorial(k + 1)) for k in range(24)]

# Polynomials in -log((1 - x)(1 + x)) near the middle and in its square root towards the ends (the split of M. Giles, "Approximating the
# erfinv function"; coefficients fitted here by reweighted least squares, relative error below 1e-7).
_ERF_INV_MIDDLE = [
    1.50140936,
    0.246640286,
    -0.00417738678,
    -0.00125274188,
    0.000218344439,
    -4.96334786e-06,
    -3.46270476e-06,
    4.66170664e-07,
    2.32326443e-08,
    -8.7910565e-09,
]
_ERF_INV_END = [
    2.832977,
    1.00167423,
    0.00943503756,
    -0.00762624453,
    0.0057655447,
    -0.00365653928,
    0.00129224027,
    8.25163418e-05,
    -0.000159774331,
]
_ERF_INV_FAR_END = [
    3.83978198,
    1.00950391,
    0.001285357,
    -0.000914467381,
    0.000271577471,
    -5.72250325e-05,
    8.13503031e-05,
    -6.70797737e-05,
    1.94595651e-05,
    -1.60503878e-06,
]

# exp(-x) sqrt(x) I0(x) for x > 8 in 16/x - 1, fitted likewise.
_I0_FLOAT = [
    4.0217650939969135e-01,
    3.3605555500197106e-03,
    1.3621740583607414e-04,
    1.1112774178984454e-05,
    1.4756275627130812e-06,
    3.6215568479389462e-07,
    1.0894075963682401e-07,
]
_I0_DOUBLE = [
    4.0217650944500810e-01,
    3.3605519836675643e-03,
    1.3621607438905973e-04,
    1.1143033812554466e-05,
    1.4838477141475779e-06,
    2.9735937326793543e-07,
    8.8719554657344207e-08,
    3.9331032178681554e-08,
    2.1572320375080789e-08,
    7.5232864527628578e-09,
    -6.8760382347659417e-09,
    -1.3291194625098966e-08,
    -4.9652699078094288e-09,
    7.2663191436339240e-09,
    6.4326084721607002e-09,
    -3.0461937638846527e-09,
    -4.4319254664400664e-09,
    1.0358095629931066e-09,
    2.0962332047235269e-09,
    -2.4985225800644112e-10,
    -6.2335729354704376e-10,
    3.0520510180826999e-11,
    8.6776181894979666e-11,
]
# exp(-x) sqrt(x) I1(x) likewise.
_I1_FLOAT = [
    3.8939845905965931e-01,
    -9.7495813703771406e-03,
    -2.1923712538181173e-04,
    -1.5003965466315158e-05,
    -1.8256907320109299e-06,
    -4.2103501534336316e-07,
    -1.2273217217053061e-07,
]
_I1_DOUBLE = [
    3.8939845902587233e-01,
    -9.7495771932356538e-03,
    -2.1923576383055959e-04,
    -1.5038547207281763e-05,
    -1.8349102765992574e-06,
    -3.4838537515058633e-07,
    -1.0001034424656082e-07,
    -4.3131808058230998e-08,
    -2.3397303736204782e-08,
    -8.4093083814437234e-09,
    6.8621446237175581e-09,
    1.3956851468266114e-08,
    5.5303978112920179e-09,
    -7.4369980992089060e-09,
    -6.8678995957670580e-09,
    3.0724485650962782e-09,
    4.6731433586836214e-09,
    -1.0443546558383686e-09,
    -2.1955375386758330e-09,
    2.5513446400863718e-10,
    6.4925888899330125e-10,
    -3.1787806535846548e-11,
    -8.9832647586819528e-11,
]


def _bessel(series, coefficients, odd=False):
    # Up to x = 8 the power series, whose terms are all positive. exp(x / 2) is multiplied in twice, as exp(x) would overflow earlier.
    value = "(x <= 8.0$F) ? small : large"
    return f"""$T $name($T a) {{
  $T x = fabs(a), t = 0.25$F * x * x, s = 16.0$F / x - 1.0$F, h = exp(0.5$F * x);
  $T small = {"x * " if odd else ""}({horner(series, "t")});
  $T large = h * (({horner(coefficients, "s")}) / sqrt(x)) * h;
  large = (x == ($T)INFINITY) ? x : large;
  return {f"copysign({value}, a)" if odd else value};
}}
"""


def _erf_inv_start(end, centre):
    return f"""  $T u = (1.0$F - x) * (1.0$F + x);
  $T w = -log(u), m = w - 2.5$F, e = sqrt(w) - {centre}$F;
  $T middle = {horner(_ERF_INV_MIDDLE, "m")};
  $T tail = {horner(end, "e")};
  $T y = ((w < 5.0$F) ? middle : tail) * x;
  y = (fabs(x) == 1.0$F) ? x * INFINITY : y;
"""


def _rem(mantissa_bits, bias):
    """The template of fmod by long division, most of a mantissa's bits per step, mostly one step. Remainders are exact, by fma.

    The quotient is rounded, not truncated: even if the division is off by some ulps, as OpenCL allows, the remainder stays below s.
    A negative remainder is recognised by its sign bit, since it may have been flushed to -0. An infinite divisor takes part in the
    loop, so that its result is chosen only once behind it (quirk loop_selected).
    """
    quotient_bits = mantissa_bits - 3
    steps = -(-(2 * bias + mantissa_bits) // quotient_bits) + 1
    tiny, raised, up = f"0x1p-{bias - 1}$F", f"0x1p{mantissa_bits + 1}$F", mantissa_bits + 1
    return f"""$T $name($T a, $T b) {{
  $T r = fabs(a), d = fabs(b);
  $I valid = (r < INFINITY) & (d > 0.0$F);
  r = valid ? r : ($T)0.0$F;
  d = valid ? d : ($T)1.0$F;
  $I up = d < {tiny} ? ($I){up} : ($I)0;
  $T m = d < {tiny} ? d * {raised} : d;
  $I low = (as_$I(m) >> {mantissa_bits}) - up;
  for (int step = 0; $ANY(r >= d) && step < {steps}; ++step) {{
    $I high = (as_$I(r < {tiny} ? r * {raised} : r) >> {mantissa_bits}) - (r < {tiny} ? ($I){up} : ($I)0);
    $I shift = max(high - low - ($I){quotient_bits}, ($I)0) - up;
    $I half_shift = shift >> 1;
    $T s = m * as_$T((half_shift + {bias}) << {mantissa_bits}) * as_$T((shift - half_shift + {bias}) << {mantissa_bits});
    $T n = rint(r / s), t = fma(-n, s, r);
    t = (as_$I(t) < 0) ? fma(1.0$F - n, s, r) : t;
    r = (r < d) ? r : t;
  }}
  return valid ? copysign(r, a) : ($T)NAN;
}}
"""


def _scaled_pair(function, far):
    """The template of `function` of two numbers, scaled so that no square or reciprocal overflows or is denormal.

    OpenCL C's are wrong otherwise where denormal numbers are flushed (quirk flushed_atan2, quirk inexact_hypot).
    """

    def scale(small, large):
        return f"(m < 1.0$F) ? ($T)0x1p{small}$F : ((m > 0x1p{far}$F) ? ($T)0x1p{large}$F : ($T)1.0$F)"

    return f"""$T $name($T a, $T b) {{
  $T m = fmax(fabs(a), fabs(b));
  $T s = {scale(far, -far)};
  $T y = {function}(a * s, b * s);
  return {f"y * ({scale(-far, far)})" if function == "hypot" else "y"};
}}
"""


FLOAT = {
    "rem": _rem(23, 127),
    "atan2": _scaled_pair("atan2", 64),
    "hypot": _scaled_pair("hypot", 64),
    # Scaled where the square of the result would be denormal (quirk flushed_rsqrt).
    "rsqrt": """$T $name($T x) {
  $T s = (x > 0x1p100f) ? ($T)0x1p-32f : ($T)1.0f;
  return rsqrt(x * (s * s)) * s;
}
""",
    # Denormal numbers that should be flushed become 0 (quirk flushed_pow). If denormals are kept, they are not equal to 0 here.
    "pow": """$T $name($T a, $T b) {
  return pow((a == 0.0f) ? copysign(($T)0.0f, a) : a, (b == 0.0f) ? ($T)0.0f : b);
}
""",
    "i0": _bessel(_I0_SERIES[:14], _I0_FLOAT),
    "i1": _bessel(_I1_SERIES[:14], _I1_FLOAT, odd=True),
    "erf_inv": "$T $name($T x) {\n" + _erf_inv_start(_ERF_INV_END, "3.0") + "  return y;\n}\n",
}

DOUBLE = {
    "rem": _rem(52, 1023),
    "atan2": _scaled_pair("atan2", 512),
    "hypot": _scaled_pair("hypot", 512),
    # By sincos, so that the compiler does not merge it with a sine (quirk merged_sincos).
    "cos": """$T $name($T x) {
  $T y;
  sincos(x, &y);
  return y;
}
""",
    # Lane by lane (quirk vector_pow). Zeros are treated as in float's pow.
    "pow": """$T $name($T a, $T b) {
  union { $T all; double lane[$N]; } x, y;
  x.all = (a == 0.0) ? copysign(($T)0.0, a) : a;
  y.all = (b == 0.0) ? ($T)0.0 : b;
  for (int i = 0; i < $N; ++i) x.lane[i] = pow(x.lane[i], y.lane[i]);
  return x.all;
}
""",
    "i0": _bessel(_I0_SERIES, _I0_DOUBLE),
    "i1": _bessel(_I1_SERIES, _I1_DOUBLE, odd=True),
    # One step of Halley's method, starting from the polynomials' value; erfc keeps the digits of 1 - |x|.
    "erf_inv": "$T $name($T x) {\n"
    + _erf_inv_start(_ERF_INV_FAR_END, "4.0")
    + """  $T z = fabs(y), a = fabs(x);
  $T error = (a < 0.5) ? erf(z) - a : (1.0 - a) - erfc(z);
  $T step = error * exp(z * z) * 0.886226925452758;
  $T better = copysign(z - step / (1.0 + z * step), x);
  return ((a > 0.0) & (a < 1.0)) ? better : y;
}
""",
}
