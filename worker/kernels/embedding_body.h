// Row gathers, once per level.

// What input k of a packed row is to be multiplied with.
inline float packed_scale(const EmbeddingArguments& a, int64_t row, int64_t k, int64_t padded) {
  if (a.format == Format::INT8) return ((const float*)a.scales)[row];
  if (a.format != Format::INT4) return 1.0f;
  int64_t group = row / PANEL * (padded / a.group) + k / a.group;
  return from_bf16(((const bf16*)a.scales)[group * PANEL + row % PANEL]);
}

// One row of a table that is the packed weight of a linear: output `row` of its panel.
inline void unpack_row(const EmbeddingArguments& a, int64_t row, float* out) {
  int64_t padded = padded_inputs(a.format, a.width, a.group), lane = row % PANEL;
  const uint8_t* panel = a.table + row / PANEL * panel_bytes(a.format, padded);
  for (int64_t k = 0; k < a.width; k++) 
    out[k] = packed_value(panel, a.format, lane, k) * packed_scale(a, row, k, padded);
}

inline void plain_row(const EmbeddingArguments& a, int64_t row, float* out) {
  int64_t start = row * a.width;
  for (int64_t k = 0; k < a.width; k++) {
    switch (a.format) {
      case Format::F32: out[k] = ((const float*)a.table)[start + k]; break;
      case Format::BF16: out[k] = from_bf16(((const bf16*)a.table)[start + k]); break;
      default: out[k] = from_f16(((const f16*)a.table)[start + k]);
    }
  }
}

void embedding(const Run& run, const Op& op) {
  auto a = op.as<EmbeddingArguments>();
  each_row(run, op, [&](int64_t t) {
    (a.packed ? unpack_row : plain_row)(a, run.step.token_ids[t], a.out + t * a.width);
  });
}

void take_rows(const Run& run, const Op& op) {
  auto a = op.as<TakeRowsArguments>();
  const int32_t* rows = op.rows == Rows::LOGITS ? run.step.logit_rows : run.step.state_rows;
  for (int64_t r = 0; r < run.step.count(op.rows); r++)
    memcpy(a.out + r * a.width, a.x + rows[r] * a.width, size_t(a.width) * 4);
}
