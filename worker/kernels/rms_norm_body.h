// RMS norms, once per level. The mean is one sum over a row, in an order that depends on its width
// alone: four chains of lanes in turn, added, then the tree of `sum`.

inline Lanes load_row(const float* x, int64_t k, int64_t width) {
  return k + 16 <= width ? load(x + k) : load_part(x + k, width - k, 0.0f);
}
inline void store_row(float* out, int64_t k, int64_t width, Lanes a) {
  k + 16 <= width ? store(out + k, a) : store_part(out + k, a, width - k);
}

// 1 / sqrt(mean(x²) + eps)
inline float inverse_rms(const float* x, int64_t width, double eps) {
  Lanes chains[4] = {zero(), zero(), zero(), zero()};
  for (int64_t k = 0; k < width; k += 64)
    for (int64_t c = 0; c < 4 && k + c * 16 < width; c++) {
      Lanes a = load_row(x, k + c * 16, width);
      chains[c] = fma(a, a, chains[c]);
    }
  float total = sum((chains[0] + chains[1]) + (chains[2] + chains[3]));
  return 1.0f / __builtin_sqrtf(total / float(width) + float(eps));
}

inline void norm_row(const float* x, const float* weight, float* out, int64_t width, double eps) {
  Lanes scale = splat(inverse_rms(x, width, eps));
  for (int64_t k = 0; k < width; k += 16)
    store_row(out, k, width, load_row(x, k, width) * scale * load_row(weight, k, width));
}

void rms_norm(const Run& run, const Op& op) {
  auto a = op.as<RmsNormArguments>();
  each_row(run, op, [&](int64_t t) {
    norm_row(a.x + t * a.width, a.weight, a.out + t * a.width, a.width, a.eps);
  });
}

void add_rms_norm(const Run& run, const Op& op) {
  auto a = op.as<AddRmsNormArguments>();
  each_row(run, op, [&](int64_t t) {
    const float *x = a.x + t * a.width, *residual = a.residual + t * a.width;
    float* sum = a.sum + t * a.width;
    for (int64_t k = 0; k < a.width; k += 16)
      store_row(sum, k, a.width, load_row(x, k, a.width) + load_row(residual, k, a.width));
    norm_row(sum, a.weight, a.out + t * a.width, a.width, a.eps);
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
