// Gated activation, once per level: out = g / (1 + e^-g) * u.

// `ahead`: how far what is gated next lies; it comes from memory, see `program.h`.
inline void gate(const float* g, const float* u, float* out, int64_t count, int64_t ahead,
                 bool past_caches) {
  Lanes one = splat(1.0f);
  int64_t k = 0;
  for (; k + 16 <= count; k += 16) {
    __builtin_prefetch(g + k + ahead, 0, SECOND_CACHE);
    __builtin_prefetch(u + k + ahead, 0, SECOND_CACHE);
    Lanes a = load(g + k);
    Lanes gated = a / (one + exponential(zero() - a)) * load(u + k);
    past_caches ? store_past_caches(out + k, gated) : store(out + k, gated);
  }
  if (k == count) return;
  Lanes a = load_part(g + k, count - k, 0.0f);
  Lanes left = a / (one + exponential(zero() - a)) * load_part(u + k, count - k, 0.0f);
  store_part(out + k, left, count - k);
}

// Strips of all rows, as the linear after it takes them.
void silu_mul(const Run& run, const Op& op) {
  auto a = op.as<SiluMulArguments>();
  int64_t rows = run.step.count(op.rows), vectors = ceil_div(a.width, 16);
  int64_t size = 16 * strip_of(vectors, max_of(2, rows), run.pool.num_threads());
  bool past_caches = exceeds_caches(a.out, rows, a.width);
  run.pool.each(ceil_div(a.width, size), [&](int64_t piece, int) {
    int64_t k = piece * size, count = min_of(size, a.width - k);
    for (int64_t t = 0; t < rows; t++) {
      const float* row = a.gate_up + t * 2 * a.width + k;
      int64_t ahead = t + 1 < rows ? 2 * a.width : 0;
      gate(row, row + a.width, a.out + t * a.width + k, count, ahead, past_caches);
    }
  });
}
