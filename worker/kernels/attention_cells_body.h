// How keys and values are read, once per level.

// A cache of float32: a pair of inputs of sixteen keys is two lines.
struct FloatCache : FloatInputs {
  using Item = float;
  static constexpr int64_t LINES = 2;
  static Lanes even(const uint32_t* pair) { return load((const float*)pair); }
  static Lanes odd(const uint32_t* pair) { return load((const float*)pair + 16); }
  static Lanes value(const float* p) { return load(p); }
  static Lanes value_part(const float* p, int64_t n) { return load_part(p, n, 0.0f); }
  static Lanes rounded(Lanes a) { return a; }
};

// A cache of bfloat16: a pair is one line of words.
struct Bf16Cache : FloatInputs {
  using Item = bf16;
  static constexpr int64_t LINES = 1;
  static Lanes even(const uint32_t* pair) { return even_bf16((const bf16*)pair); }
  static Lanes odd(const uint32_t* pair) { return odd_bf16((const bf16*)pair); }
  static Lanes value(const bf16* p) { return load_bf16(p); }
  static Lanes value_part(const bf16* p, int64_t n) {
    bf16 v[16] = {};
    memcpy(v, p, size_t(n) * 2);
    return load_bf16(v);
  }
  static Lanes rounded(Lanes a) { return nearest_bf16(a); }
};

// out[w][r] = rows[r][w] for sixteen rows of sixteen words.
inline void turn_words(const uint32_t* const* rows, int64_t start, uint32_t* out) {
#if LANES_LEVEL == 512
  __m512i a[16], b[16];
  for (int r = 0; r < 16; r++) a[r] = _mm512_loadu_si512(rows[r] + start);
  for (int r = 0; r < 16; r += 2) {
    b[r] = _mm512_unpacklo_epi32(a[r], a[r + 1]);
    b[r + 1] = _mm512_unpackhi_epi32(a[r], a[r + 1]);
  }
  for (int r = 0; r < 16; r += 4)
    for (int i = 0; i < 2; i++) {
      a[r + 2 * i] = _mm512_unpacklo_epi64(b[r + i], b[r + i + 2]);
      a[r + 2 * i + 1] = _mm512_unpackhi_epi64(b[r + i], b[r + i + 2]);
    }
  for (int i = 0; i < 4; i++) {
    __m512i low = _mm512_shuffle_i32x4(a[i], a[i + 4], 0x88);
    __m512i high = _mm512_shuffle_i32x4(a[i], a[i + 4], 0xdd);
    __m512i low2 = _mm512_shuffle_i32x4(a[i + 8], a[i + 12], 0x88);
    __m512i high2 = _mm512_shuffle_i32x4(a[i + 8], a[i + 12], 0xdd);
    _mm512_storeu_si512(out + i * 16, _mm512_shuffle_i32x4(low, low2, 0x88));
    _mm512_storeu_si512(out + (i + 4) * 16, _mm512_shuffle_i32x4(high, high2, 0x88));
    _mm512_storeu_si512(out + (i + 8) * 16, _mm512_shuffle_i32x4(low, low2, 0xdd));
    _mm512_storeu_si512(out + (i + 12) * 16, _mm512_shuffle_i32x4(high, high2, 0xdd));
  }
#elif LANES_LEVEL == 256
  for (int half = 0; half < 2; half++)
    for (int side = 0; side < 2; side++) {
      __m256i a[8], b[8];
      for (int r = 0; r < 8; r++)
        a[r] = _mm256_loadu_si256((const __m256i*)(rows[half * 8 + r] + start + side * 8));
      for (int r = 0; r < 8; r += 2) {
        b[r] = _mm256_unpacklo_epi32(a[r], a[r + 1]);
        b[r + 1] = _mm256_unpackhi_epi32(a[r], a[r + 1]);
      }
      for (int r = 0; r < 8; r += 4)
        for (int i = 0; i < 2; i++) {
          a[r + 2 * i] = _mm256_unpacklo_epi64(b[r + i], b[r + i + 2]);
          a[r + 2 * i + 1] = _mm256_unpackhi_epi64(b[r + i], b[r + i + 2]);
        }
      for (int i = 0; i < 4; i++) {
        uint32_t* line = out + (side * 8 + i) * 16 + half * 8;
        _mm256_storeu_si256((__m256i*)line, _mm256_permute2x128_si256(a[i], a[i + 4], 0x20));
        _mm256_storeu_si256((__m256i*)(line + 64),
                            _mm256_permute2x128_si256(a[i], a[i + 4], 0x31));
      }
    }
#else
  for (int w = 0; w < 16; w++)
    for (int r = 0; r < 16; r++) out[w * 16 + r] = rows[r][start + w];
#endif
}

// The keys of one group and head, each a part of its own, as a page holds them; keys that no row sees
// are zero.
template <class C>
void turn_keys(const SplitCells& cells, int64_t head, int64_t group, int64_t head_dim,
               uint32_t* panel) {
  alignas(64) static const uint32_t zeros[MAX_HEAD_DIM] = {};
  int64_t words = head_dim * int64_t(sizeof(typename C::Item)) / 4;
  int64_t unit = 16 * C::LINES, padded = ceil_div(words, unit) * unit;
  const uint32_t* rows[GROUP];
  for (int64_t r = 0; r < GROUP; r++) {
    int64_t j = group * GROUP + r;
    bool seen = j >= cells.begin && j < cells.end;
    rows[r] = seen ? (const uint32_t*)(cells.keys[j] + head * cells.head_bytes) : zeros;
  }
  int64_t w = 0;
  for (; w + 16 <= words; w += 16) turn_words(rows, w, panel + w * 16);
  for (; w < padded; w += 16) {
    alignas(64) uint32_t tail[GROUP][16] = {};
    const uint32_t* tails[GROUP];
    for (int64_t r = 0; r < GROUP; r++) {
      if (w < words) memcpy(tail[r], rows[r] + w, size_t(words - w) * 4);
      tails[r] = tail[r];
    }
    turn_words(tails, 0, panel + w * 16);
  }
}
