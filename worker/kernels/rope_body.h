// Rotary positions, once per level. Products and differences round one by one, as in the reference.

inline Lanes load_item(const float* p, int64_t count) {
  return count >= 16 ? load(p) : load_part(p, count, 0.0f);
}
inline Lanes load_item(const bf16* p, int64_t count) {
  if (count >= 16) return load_bf16(p);
  bf16 v[16] = {};
  memcpy(v, p, size_t(count) * 2);
  return load_bf16(v);
}
inline void store_item(float* p, Lanes a, int64_t count) {
  count >= 16 ? store(p, a) : store_part(p, a, count);
}
inline void store_item(bf16* p, Lanes a, int64_t count) {
  if (count >= 16) return store_bf16(p, a);
  bf16 v[16];
  store_bf16(v, a);
  memcpy(p, v, size_t(count) * 2);
}

// One head: halves are pairs, (a, b) → (a cos − b sin, b cos + a sin).
template <class From, class To>
void turn_head(const From* x, const float* turn, To* out, int64_t half) {
  for (int64_t k = 0; k < half; k += 16) {
    int64_t n = half - k;
    Lanes a = load_item(x + k, n), b = load_item(x + half + k, n);
    Lanes c = load_item(turn + k, n), s = load_item(turn + half + k, n);
    store_item(out + k, a * c - b * s, n);
    store_item(out + half + k, b * c + a * s, n);
  }
}

template <class Item>
void rope_token(const RopeArguments& a, const float* qkv, const float* turn, float* q,
                int64_t cell) {
  int64_t width = a.head_dim, half = width / 2;
  const float *k = qkv + a.num_heads * width, *v = k + a.num_kv_heads * width;
  Item* keys = (Item*)a.keys + cell * a.num_kv_heads * width;
  Item* values = (Item*)a.values + cell * a.num_kv_heads * width;
  for (int64_t h = 0; h < a.num_heads; h++) turn_head(qkv + h * width, turn, q + h * width, half);
  for (int64_t h = 0; h < a.num_kv_heads; h++)
    turn_head(k + h * width, turn, keys + h * width, half);
  for (int64_t i = 0; i < a.num_kv_heads * width; i += 16) {
    int64_t n = a.num_kv_heads * width - i;
    store_item(values + i, load_item(v + i, n), n);
  }
}

void rope(const Run& run, const Op& op) {
  auto a = op.as<RopeArguments>();
  each_row(run, op, [&](int64_t t) {
    const float* qkv = a.qkv + t * (a.num_heads + 2 * a.num_kv_heads) * a.head_dim;
    const float* turn = a.turns + t * a.head_dim;
    float* q = a.q + t * a.num_heads * a.head_dim;
    int64_t cell = run.step.cells[t];
    a.cache_format == Format::F32 ? rope_token<float>(a, qkv, turn, q, cell)
                                  : rope_token<bf16>(a, qkv, turn, q, cell);
  });
}

template <class Item>
void shift_cell(const RopeShiftArguments& a, const float* turn, int64_t cell) {
  Item* keys = (Item*)a.keys + cell * a.num_kv_heads * a.head_dim;
  for (int64_t h = 0; h < a.num_kv_heads; h++) {
    Item* head = keys + h * a.head_dim;
    turn_head(head, turn, head, a.head_dim / 2);
  }
}

void rope_shift(const Run& run, const Op& op) {
  auto a = op.as<RopeShiftArguments>();
  float turn[MAX_HEAD_DIM];
  write_turn(turn, a.frequencies, a.head_dim, a.delta, 1.0);
  each_row(run, op, [&](int64_t t) {
    a.cache_format == Format::F32 ? shift_cell<float>(a, turn, run.step.cells[t])
                                  : shift_cell<bf16>(a, turn, run.step.cells[t]);
  });
}
