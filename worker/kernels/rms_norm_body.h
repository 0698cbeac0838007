// RMS norms, once per level. The mean is one sum over a row, in an order that depends on its width
// alone: four chains of lanes in turn, added, then the tree of `sum`.

inline Lanes load_row(const float* x, int64_t count) {
  return count >= 16 ? load(x) : load_part(x, count, 0.0f);
}
inline void store_row(float* out, Lanes a, int64_t count) {
  count >= 16 ? store(out, a) : store_part(out, a, count);
}

// out = x / sqrt(mean(x²) + eps) * weight. `first(k, n)` gives the n values of x from column k on and
// is asked once; `again(k, n)` gives the same afterwards.
template <class First, class Again>
void norm_row(First&& first, Again&& again, const float* weight, float* out, int64_t width,
              double eps, bool past_caches = false) {
  Lanes chains[4] = {zero(), zero(), zero(), zero()};
  auto add = [&](int64_t k, int64_t n, int c) __attribute__((always_inline)) {
    Lanes a = first(k, n);
    chains[c] = fma(a, a, chains[c]);
  };
  int64_t k = 0;
  for (; k + 64 <= width; k += 64)
#pragma GCC unroll 4
    for (int c = 0; c < 4; c++) add(k + c * 16, 16, c);
#pragma GCC unroll 4
  for (int c = 0; c < 4; c++, k += 16)
    if (k < width) add(k, width - k, c);
  float total = sum((chains[0] + chains[1]) + (chains[2] + chains[3]));
  Lanes scale = splat(1.0f / __builtin_sqrtf(total / float(width) + float(eps)));
  for (k = 0; k + 16 <= width; k += 16) {
    Lanes value = again(k, 16) * scale * load(weight + k);
    past_caches ? store_past_caches(out + k, value) : store(out + k, value);
  }
  if (k < width)
    store_row(out + k, again(k, width - k) * scale * load_row(weight + k, width - k), width - k);
}
inline void norm_row(const float* x, const float* weight, float* out, int64_t width, double eps) {
  auto read = [&](int64_t k, int64_t n) __attribute__((always_inline)) { return load_row(x + k, n); };
  norm_row(read, read, weight, out, width, eps);
}

void rms_norm(const Run& run, const Op& op) {
  auto a = op.as<RmsNormArguments>();
  each_row(run, op, [&](int64_t t) {
    norm_row(a.x + t * a.width, a.weight, a.out + t * a.width, a.width, a.eps);
  });
}

void add_rms_norm(const Run& run, const Op& op) {
  auto a = op.as<AddRmsNormArguments>();
  bool past_caches = go_past_caches(run, a.out, run.step.count(op.rows), a.width);
  each_row(run, op, [&](int64_t t) {
    const float *x = a.x + t * a.width, *residual = a.residual + t * a.width;
    float* sum = a.sum + t * a.width;
    auto read = [&](int64_t k, int64_t n) __attribute__((always_inline)) {
      Lanes total = load_row(x + k, n) + load_row(residual + k, n);
      store_row(sum + k, total, n);
      return total;
    };
    auto again = [&](int64_t k, int64_t n) __attribute__((always_inline)) {
      return load_row(sum + k, n);
    };
    norm_row(read, again, a.weight, a.out + t * a.width, a.width, a.eps, past_caches);
  });
}

void head_norm(const Run& run, const Op& op) {
  auto a = op.as<HeadNormArguments>();
  int64_t q_heads = a.num_heads, k_heads = a.num_kv_heads, width = a.head_dim;
  each_row(run, op, [&](int64_t t) {
    int64_t start = t * (q_heads + 2 * k_heads) * width;
    const float* x = a.qkv + start;
    float* out = a.out + start;
    for (int64_t h = 0; h < q_heads + k_heads; h++)
      norm_row(x + h * width, h < q_heads ? a.q_weight : a.k_weight, out + h * width, width, a.eps);
    int64_t v = (q_heads + k_heads) * width;
    memcpy(out + v, x + v, size_t(k_heads * width) * 4);
  });
}
