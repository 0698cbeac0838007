// Row gathers, once per level.

// One row of a table, as float32.
inline void table_row(const EmbeddingArguments& a, int64_t row, float* out) {
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
    table_row(a, run.step.token_ids[t], a.out + t * a.width);
  });
}

void take_rows(const Run& run, const Op& op) {
  auto a = op.as<TakeRowsArguments>();
  const int32_t* rows = op.rows == Rows::LOGITS ? run.step.logit_rows : run.step.state_rows;
  for (int64_t r = 0; r < run.step.count(op.rows); r++)
    memcpy(a.out + r * a.width, a.x + rows[r] * a.width, size_t(a.width) * 4);
}
