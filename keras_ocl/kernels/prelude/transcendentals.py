"""Functions of float32 that replace OpenCL C's where those are slow or wrong on some implementation (quirk vector_erf).

Infinities, NaN and denormal results follow IEEE 754.

Exponentials, logarithms, sin and cos: the argument is reduced by a constant split into parts so short that their multiples are exact (Cody
and Waite); a polynomial follows, fitted by reweighted least squares to a relative error below 1e-8. Results are at most about 2 ulp off.
Adding 1.5 * 2^23 rounds to an integer and leaves that integer in the low bits.

tanh and erf: x P(x^2) / Q(x^2) up to the argument from which they round to 1. The quotient was fitted in the same way to a relative error
of 2e-8; of the float32 coefficients near its own, a random search chose those with the least error of the rounded result. Results are less
than 5 ulp off with a correctly rounded division, .7 ulp in the mean. They take half the time of formulas with an exponential.
"""

from keras_ocl.kernels.prelude.floats import horner

_EXP = [1.0, 1.0, 0.499999934, 0.166665204, 0.0416683908, 0.00836874525, 0.00138145402]
_EXPM1 = [0.5, 0.166666664, 0.0416663604, 0.00833338946, 0.00139406689, 0.000198458805]
_LOG = [0.333333317, -0.250008239, 0.200012312, -0.166232506, 0.142015676, -0.131611013, 0.127634753, -0.0763438523]
_TANH = ([1.0, 0.133810267, 0.00349558867, 2.06090917e-05, 1.33546934e-08], [1.0, 0.467143416, 0.025876986, 0.000328563532, 7.77656851e-07])
_ERF = (
    [2.14686394, 0.362269878, 0.100360319, 0.00716454117, 0.000542022579, 3.90052219e-06],
    [1.90260863, 0.955255091, 0.217105374, 0.0284806509, 0.00221186341, 7.24738347e-05],
)
_SIN = [-0.166666549, 0.00833217353, -0.000195166548]
_COS = [0.0416666467, -0.00138873614, 2.44377283e-05]

# Computes r and k with x = r + k ln 2; k is in the low bits of t.
_REDUCE_EXP = """  $T t = $mad(x, ($T)1.44269504f, ($T)12582912.0f);
  $T n = t - 12582912.0f;
  $T r = $mad(n, ($T)-3.1946183e-05f, $mad(n, ($T)-0x1.62ep-1f, x));
"""

# Computes r and k with x = r + k pi/2 for |x| < 8192; larger x are left to the built-in scalar function.
_REDUCE_SIN = """  $T t = $mad(x, ($T)0.636619772f, ($T)12582912.0f);
  $T n = t - 12582912.0f;
  $I k = as_$I(t);
  $T r = $mad(n, ($T)-0x1.444p-24f, $mad(n, ($T)-0x1.fb4p-12f, $mad(n, ($T)-0x1.92p+0f, x)));
  r = $mad(n, ($T)-2.563344e-12f, r);
  $T z = r * r;
"""
_SIN_POLYNOMIAL = f"$mad({horner(_SIN, 'z')} * z, r, r)"
_COS_POLYNOMIAL = f"$mad({horner([-0.5, *_COS], 'z')}, z, ($T)1.0f)"


def _periodic(name, body):
    """A template of sin or cos: `body` for arguments that reduce exactly, the built-in function lane by lane for others."""
    return f"""$T $name($T x) {{
{_REDUCE_SIN}{body}  if ($ANY(fabs(x) > 8192.0f)) {{
    union {{ $T all; float lane[$N]; }} u;
    u.all = x;
    for (int i = 0; i < $N; ++i) u.lane[i] = {name}(u.lane[i]);
    y = (fabs(x) > 8192.0f) ? u.all : y;
  }}
  return (fabs(x) < INFINITY) ? y : ($T)NAN;
}}
"""


def _saturating(coefficients, limit):
    """A template of an odd function that is 1 from `limit` on: a quotient of polynomials, which rounding may bring past 1."""
    above, below = (horner(c, "z") for c in coefficients)
    return f"""$T $name($T x) {{
  $T z = x * x;
  $T y = x * {above} / {below};
  return ((fabs(y) > 1.0f) | (fabs(x) > {limit}f)) ? copysign(($T)1.0f, x) : y;
}}
"""


FLOAT = {
    # k is added to the exponent's bits, even of a NaN; for a denormal result, a factor of 2^-64 is applied last.
    "exp": f"""$T $name($T a) {{
  $T x = (a < -104.0f) ? ($T)-104.0f : a;
{_REDUCE_EXP}  $I low = x < -87.0f;
  $I k = as_$I(t) + (low ? ($I)64 : ($I)0);
  $T y = as_$T(as_$I({horner(_EXP, "r")}) + (k << 23)) * (low ? ($T)0x1p-64f : ($T)1.0f);
  return (a <= 88.7228394f) ? y : a * INFINITY;
}}
""",
    "expm1": f"""$T $name($T a) {{
  $T x = (a > 89.0f) ? ($T)89.0f : a;
  x = (x < -25.0f) ? ($T)-25.0f : x;
{_REDUCE_EXP}  $T p = $mad({horner(_EXPM1, "r")} * r, r, r);
  $T s = as_$T(0x3f000000 + (as_$I(t) << 23));
  return (x == 0.0f) ? x : 2.0f * $mad(s, p, s - 0.5f);
}}
""",
    "log": f"""$T $name($T a) {{
  $I tiny = a < 0x1p-126f;
  $T x = tiny ? a * 0x1p23f : a;
  $I b = as_$I(x) - 0x3f3504f3;
  $T e = convert_$T(b >> 23) - (tiny ? ($T)23.0f : ($T)0.0f);
  $T f = as_$T((b & 0x7fffff) + 0x3f3504f3) - 1.0f;
  $T z = f * f;
  $T y = $mad({horner(_LOG, "f")} * f, z, e * 3.1946183e-05f);
  y = $mad(e, ($T)0x1.62ep-1f, $mad(($T)-0.5f, z, y) + f);
  y = (a < INFINITY) ? y : a;
  return (a > 0.0f) ? y : ((a == 0.0f) ? ($T)-INFINITY : ($T)NAN);
}}
""",
    # log of the rounded 1 + x, plus a correction for the rounding error.
    "log1p": """$T $name($T x) {
  $T u = 1.0f + x;
  $T y = $log(u) + (x - (u - 1.0f)) / u;
  return ((u == 1.0f) | (x == INFINITY)) ? x : ((u == 0.0f) ? ($T)-INFINITY : y);
}
""",
    "logistic": """$T $name($T x) {
  return 1.0f / (1.0f + $exp(-x));
}
""",
    "tanh": _saturating(_TANH, 9.0),
    "erf": _saturating(_ERF, 3.92),
    "sin": _periodic(
        "sin",
        f"""  $T y = ((k & 1) != ($I)0) ? {_COS_POLYNOMIAL} : {_SIN_POLYNOMIAL};
  y = as_$T(as_$I(y) ^ ((k & 2) << 30));
  y = (x == 0.0f) ? x : y;
""",
    ),
    "cos": _periodic(
        "cos",
        f"""  $T y = ((k & 1) != ($I)0) ? {_SIN_POLYNOMIAL} : {_COS_POLYNOMIAL};
  y = as_$T(as_$I(y) ^ (((k + 1) & 2) << 30));
""",
    ),
    "tan": """$T $name($T x) {
  return $sin(x) / $cos(x);
}
""",
}
