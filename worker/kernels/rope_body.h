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

// A key between its place in a part (see `Block`) and a row; pairs of bf16 move as one word.
inline void scatter_key(const float* row, float* part, int64_t place, const Block& block) {
  for (int64_t k = 0; k < block.head_dim; k++) part[k * block.size + place] = row[k];
}
inline void scatter_key(const bf16* row, bf16* part, int64_t place, const Block& block) {
  for (int64_t k = 0; k < block.head_dim; k += 2) memcpy(part + k * block.size + place * 2, row + k, 4);
}
inline void gather_key(const float* part, float* row, int64_t place, const Block& block) {
  for (int64_t k = 0; k < block.head_dim; k++) row[k] = part[k * block.size + place];
}
inline void gather_key(const bf16* part, bf16* row, int64_t place, const Block& block) {
  for (int64_t k = 0; k < block.head_dim; k += 2) memcpy(row + k, part + k * block.size + place * 2, 4);
}

inline void store_run(float* p, Lanes a, Lanes b) { store(p, a), store(p + 16, b); }
inline void store_run(bf16* p, Lanes a, Lanes b) { store_bf16_pairs(p, a, b); }

template <class Item>
void store_value(const float* v, Item* out, int64_t width) {
  int64_t k = 0;
  for (; k + 32 <= width; k += 32) store_run(out + k, load(v + k), load(v + k + 16));
  for (; k < width; k += 16) store_item(out + k, load_item(v + k, width - k), width - k);
}

template <class Item>
void rope_token(const RopeArguments& a, const Block& block, const float* qkv, const float* turn,
                float* q, int64_t cell) {
  int64_t width = a.head_dim, half = width / 2, place = cell % block.size;
  const float *k = qkv + a.num_heads * width, *v = k + a.num_kv_heads * width;
  for (int64_t h = 0; h < a.num_heads; h++) turn_head(qkv + h * width, turn, q + h * width, half);
  for (int64_t h = 0; h < a.num_kv_heads; h++) {
    int64_t part = block.part(cell / block.size, h);
    Item row[MAX_HEAD_DIM];
    turn_head(k + h * width, turn, row, half);
    scatter_key(row, (Item*)a.keys + part, place, block);
    store_value(v + h * width, (Item*)a.values + part + place * width, width);
  }
}

void rope(const Run& run, const Op& op) {
  auto a = op.as<RopeArguments>();
  Block block{run.step.block_size, a.num_kv_heads, a.head_dim};
  each_row(run, op, [&](int64_t t) {
    const float* qkv = a.qkv + t * (a.num_heads + 2 * a.num_kv_heads) * a.head_dim;
    const float* turn = a.turns + t * a.head_dim;
    float* q = a.q + t * a.num_heads * a.head_dim;
    int64_t cell = run.step.cells[t];
    a.cache_format == Format::F32 ? rope_token<float>(a, block, qkv, turn, q, cell)
                                  : rope_token<bf16>(a, block, qkv, turn, q, cell);
  });
}

template <class Item>
void shift_cell(const RopeShiftArguments& a, const Block& block, const float* turn, int64_t cell) {
  for (int64_t h = 0; h < a.num_kv_heads; h++) {
    Item *part = (Item*)a.keys + block.part(cell / block.size, h), row[MAX_HEAD_DIM];
    gather_key(part, row, cell % block.size, block);
    turn_head(row, turn, row, a.head_dim / 2);
    scatter_key(row, part, cell % block.size, block);
  }
}

void rope_shift(const Run& run, const Op& op) {
  auto a = op.as<RopeShiftArguments>();
  Block block{run.step.block_size, a.num_kv_heads, a.head_dim};
  float turn[MAX_HEAD_DIM];
  write_turn(turn, a.frequencies, a.head_dim, a.delta, 1.0);
  each_row(run, op, [&](int64_t t) {
    int64_t cell = run.step.cells[t];
    a.cache_format == Format::F32 ? shift_cell<float>(a, block, turn, cell)
                                  : shift_cell<bf16>(a, block, turn, cell);
  });
}
