// Gated activation, once per level: out = g / (1 + e^-g) * u.

inline void gate(const float* g, const float* u, float* out, int64_t count) {
  Lanes one = splat(1.0f);
  int64_t k = 0;
  for (; k + 16 <= count; k += 16) {
    Lanes a = load(g + k);
    store(out + k, a / (one + exponential(zero() - a)) * load(u + k));
  }
  if (k == count) return;
  Lanes a = load_part(g + k, count - k, 0.0f);
  Lanes left = a / (one + exponential(zero() - a)) * load_part(u + k, count - k, 0.0f);
  store_part(out + k, left, count - k);
}

// Few rows are cut: one row of a decoding step is work for every thread.
void silu_mul(const Run& run, const Op& op) {
  auto a = op.as<SiluMulArguments>();
  int64_t rows = run.step.count(op.rows), cuts = ceil_div(2 * run.pool.num_threads(), rows);
  int64_t size = ceil_div(ceil_div(a.width, cuts), 16) * 16;
  cuts = ceil_div(a.width, size);
  run.pool.each(rows * cuts, [&](int64_t piece, int) {
    int64_t t = piece / cuts, k = piece % cuts * size;
    const float* row = a.gate_up + t * 2 * a.width + k;
    gate(row, row + a.width, a.out + t * a.width + k, min_of(size, a.width - k));
  });
}
