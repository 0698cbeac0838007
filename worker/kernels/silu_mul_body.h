// Gated activation, once per level: out = g / (1 + e^-g) * u.

inline Lanes gated(Lanes g, Lanes u) {
  return g / (splat(1.0f) + exponential(zero() - g)) * u;
}

// `ahead`: how far what is gated next lies; it comes from memory, see `program.h`.
inline void gate(const float* g, const float* u, float* out, int64_t count, int64_t ahead,
                 bool past_caches) {
  int64_t k = 0;
  for (; k + 16 <= count; k += 16) {
    __builtin_prefetch(g + k + ahead, 0, SECOND_CACHE);
    __builtin_prefetch(u + k + ahead, 0, SECOND_CACHE);
    Lanes both = gated(load(g + k), load(u + k));
    past_caches ? store_past_caches(out + k, both) : store(out + k, both);
  }
  if (k == count) return;
  Lanes left = gated(load_part(g + k, count - k, 0.0f), load_part(u + k, count - k, 0.0f));
  store_part(out + k, left, count - k);
}

// Strips of all rows, as the linear after it takes them.
inline void gate_rows(const Run& run, const SiluMulArguments& a, int64_t rows) {
  int64_t vectors = ceil_div(a.width, 16);
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

inline void silu_mul(const Run& run, const Op& op) {
  gate_rows(run, op.as<SiluMulArguments>(), run.step.count(op.rows));
}
