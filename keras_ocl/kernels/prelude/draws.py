"""OpenCL C templates of random draws by rejection sampling: each lane proposes until it accepts, with Threefry words of its own counter.

The placeholders are those of integers.py. `index` is the element's number, the counter's low word; the high word counts a draw's uniforms.
The bounds on proposals and terms only make the loops finite: the probability of reaching them is below 1e-30.
"""

BOTH = {
    # The logarithm of a gamma(alpha) variate for alpha > 0, else NaN. Marsaglia & Tsang, "A simple method for generating gamma variables"
    # (2000): d v with v = (1 + x / sqrt(9 d))^3 and d = alpha - 1/3; an alpha below 1 is raised by 1 and the variate multiplied by
    # u^(1 / alpha). Near y = 0 the log density ratio, x^2 / 2 + d (1 - v + log v), is computed by its series, as its terms cancel.
    "log_gamma_draw": """$T $name(uint key0, uint key1, uint$W index, $T alpha) {
  $I valid = alpha > 0.0$F, small = alpha < 1.0$F;
  $T d = (small ? alpha + 1.0$F : alpha) - 0.333333333333333333$F;
  $T c = 0.333333333333333333$F / sqrt(d), v = 1.0$F;
  $I open = valid & (alpha < INFINITY);
  for (uint word = 1; $ANY(open) && word < 129; word += 2) {
    $T x = 1.41421356237309505$F * $erf_inv(2.0$F * $uniform_draw(key0, key1, index, word) - 1.0$F);
    $T u = $uniform_draw(key0, key1, index, word + 1);
    $T y = c * x, w = 1.0$F + y;
    $I positive = w > 0.0$F;
    $T cube = positive ? w * w * w : ($T)1.0$F;
    $T series = -d * y * y * y * y * (0.75$F - y * (0.6$F - y * (0.5$F - y * (0.428571428571428571$F - y * 0.375$F))));
    $T bound = (fabs(y) < 0.05$F) ? series : 0.5$F * x * x + d * (1.0$F - cube + log(cube));
    $I accepted = open & positive & (log(u) < bound);
    v = accepted ? cube : v;
    open = accepted ? ($I)0 : open;
  }
  $T boost = log($uniform_draw(key0, key1, index, 129)) / alpha;
  $T y = log(d) + log(v) + (small ? boost : ($T)0.0$F);
  return valid ? y : ($T)NAN;
}
""",
    # The number of successes in floor(count) trials; NaN for negative or infinite counts and for invalid probabilities. A mean below 10 is
    # drawn by inversion, term after term; others by Hörmann's BTRS ("The generation of binomial random variates", 1993) and its constants.
    "binomial_draw": """$T $name(uint key0, uint key1, uint$W index, $T count, $T probability) {
  $T n = floor(count);
  $I flipped = probability > 0.5$F;
  $T p = flipped ? 1.0$F - probability : probability;
  $I valid = (n >= 0.0$F) & (n < INFINITY) & (p >= 0.0$F) & (p <= 0.5$F);
  n = valid ? n : ($T)0.0$F;
  p = valid ? p : ($T)0.0$F;
  $T q = 1.0$F - p, mean = n * p, rest = n * q;
  $I open = mean >= 10.0$F;
  $T k = open ? floor((n + 1.0$F) * p) : ($T)0.0$F;
  $T u = $uniform_draw(key0, key1, index, 0), odds = p / q;
  $T mass = open ? ($T)0.0$F : exp(n * log1p(-p));
  $I going = (mean < 10.0$F) & (u > mass) & (k < n);
  for (int term = 0; $ANY(going) && term < 128; ++term) {
    k = going ? k + 1.0$F : k;
    u = going ? u - mass : u;
    mass = going ? mass * odds * ((n - k + 1.0$F) / k) : mass;
    going = going & (u > mass) & (k < n) & ((k < mean) | (mass > ($T)1e-9$F));
  }
  $T deviation = sqrt(mean * q), b = 1.15$F + 2.53$F * deviation, a = -0.0873$F + 0.0248$F * b + 0.01$F * p;
  $T centre = mean + 0.5$F, quick = 0.92$F - 4.2$F / b, alpha = (2.83$F + 5.1$F / b) * deviation, mode = k;
  if ($ANY(open)) {
    $T top = $binomial_log_mass(mode, n, mean, rest);
    for (uint word = 1; $ANY(open) && word < 257; word += 2) {
      $T x = $uniform_draw(key0, key1, index, word) - 0.5$F, v = $uniform_draw(key0, key1, index, word + 1);
      $T edge = 0.5$F - fabs(x);
      $T t = floor((2.0$F * a / edge + b) * x + centre);
      $I inside = (t >= 0.0$F) & (t <= n);
      $T at = inside ? t : mode;
      $T w = v * alpha / (a / (edge * edge) + b);
      $I accepted = open & inside & (((edge >= 0.07$F) & (v <= quick)) | (log(w) <= $binomial_log_mass(at, n, mean, rest) - top));
      k = accepted ? t : k;
      open = accepted ? ($I)0 : open;
    }
  }
  k = flipped ? n - k : k;
  return valid ? k : ($T)NAN;
}
""",
    # log P(k successes in n), up to a constant, accurate for large n: Loader, "Fast and accurate computation of binomial probabilities"
    # (2000).
    "binomial_log_mass": """$T $name($T k, $T n, $T mean, $T rest) {
  $T d = k - mean;
  return -$log_stirling(k) - $log_stirling(n - k) - $deviance(k, mean, d) - $deviance(n - k, rest, -d);
}
""",
    # x log(x / mean) + mean - x, where d = x - mean.
    "deviance": """$T $name($T x, $T mean, $T d) {
  $T v = d / (x + mean), s = v * v;
  $T near = d * v + 2.0$F * x * v * s * (0.333333333333333333$F + s * (0.2$F + s * (0.142857142857142857$F + s * 0.111111111111111111$F)));
  $T far = (x > 0.0$F) ? x * log(x / mean) - d : mean;
  return (fabs(v) < 0.1$F) ? near : far;
}
""",
    # log(k!) - k log(k) + k by Stirling's series.
    "log_stirling": """$T $name($T k) {
  $T r = 1.0$F / k, s = r * r;
  $T tail = 0.00277777777777777778$F - s * (0.000793650793650793651$F - s * 0.000595238095238095238$F);
  $T series = r * (0.0833333333333333333$F - s * tail);
  return (k > 0.0$F) ? 0.5$F * log(6.28318530717958648$F * k) + series : ($T)0.0$F;
}
""",
}

# Uniform draws from the open interval (0, 1), symmetric about 1/2.
FLOAT = {
    "uniform_draw": """float$W $name(uint key0, uint key1, uint$W index, uint word) {
  return (convert_float$W($random_bits(key0, key1, index, word) >> 9) + 0.5f) * 0x1p-23f;
}
""",
}
DOUBLE = {
    "uniform_draw": """double$W $name(uint key0, uint key1, uint$W index, uint word) {
  double$W high = convert_double$W($random_bits(key0, key1, index, word) >> 6);
  return (high * 0x1p26 + convert_double$W($random_bits(~key0, key1, index, word) >> 6) + 0.5) * 0x1p-52;
}
""",
}
