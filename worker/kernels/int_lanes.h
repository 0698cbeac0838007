// Ints: sixteen sums of products of bytes, beside the Lanes of each level. Included like `lanes.h`.
// Weights are unsigned, activations signed; every product and sum is exact.

#if LANES_LEVEL == 512
using Activation = int8_t;
struct Ints {
  __m512i v;
};
struct Bytes {  // [16 outputs][4 inputs]
  __m512i v;
};
inline Ints splat(int32_t a) { return {_mm512_set1_epi32(a)}; }
inline Ints load_ints(const int32_t* p) { return {_mm512_loadu_si512(p)}; }
inline Ints add(Ints a, Ints b) { return {_mm512_add_epi32(a.v, b.v)}; }
inline Lanes to_lanes(Ints a) { return {_mm512_cvtepi32_ps(a.v)}; }
inline Bytes bytes(const uint8_t* line) { return {_mm512_loadu_si512(line)}; }
inline Bytes low_halves(const uint8_t* line) {
  return {_mm512_and_si512(_mm512_loadu_si512(line), _mm512_set1_epi8(15))};
}
inline Bytes high_halves(const uint8_t* line) {
  __m512i shifted = _mm512_srli_epi16(_mm512_loadu_si512(line), 4);
  return {_mm512_and_si512(shifted, _mm512_set1_epi8(15))};
}
inline void store_bytes(uint8_t* line, Bytes a) { _mm512_storeu_si512(line, a.v); }
// Weights less what makes them unsigned; of halves, 16 times as much.
inline Bytes signed_bytes(const uint8_t* line) {
  return {_mm512_xor_si512(_mm512_loadu_si512(line), _mm512_set1_epi8(-128))};
}
inline Bytes signed_halves(__m512i line) {  // the upper ones: (line & 0xf0) ^ 0x80
  return {_mm512_ternarylogic_epi32(line, _mm512_set1_epi8(-16), _mm512_set1_epi8(-128), 0x6a)};
}
inline Bytes signed_low_halves(const uint8_t* line) {
  return signed_halves(_mm512_slli_epi16(_mm512_loadu_si512(line), 4));
}
inline Bytes signed_high_halves(const uint8_t* line) {
  return signed_halves(_mm512_loadu_si512(line));
}
inline int32_t total(Ints a) { return _mm512_reduce_add_epi32(a.v); }
// sum[n] += weights[n][0..3] · x[0..3]. Of the intrinsic gcc 12 makes moves.
inline Ints dot(Ints sum, Bytes weights, __m512i inputs) {
  asm("vpdpbusd %2, %1, %0" : "+v"(sum.v) : "v"(weights.v), "v"(inputs));
  return sum;
}
inline Ints dot(Ints sum, Bytes weights, const Activation* x) {
  int32_t four;
  memcpy(&four, x, sizeof four);
  return dot(sum, weights, _mm512_set1_epi32(four));
}
// With the inputs read by the product itself.
inline Ints dot_read(Ints sum, Bytes weights, const Activation* x) {
  struct Four {
    Activation x[4];
  };
  asm("vpdpbusd %2%{1to16%}, %1, %0" : "+v"(sum.v) : "v"(weights.v), "m"(*(const Four*)x));
  return sum;
}
// Write 64 activations, rounded to whole numbers of a byte each, which fill a line; return `sum` with
// what they add up to. Packing works in quarters: the order puts those of one vector side by side.
inline Ints store_activations(Activation* to, const Lanes (&scaled)[4], Ints sum,
                              bool past_caches) {
  __m512i words[2];
  for (int i = 0; i < 2; i++)
    words[i] = _mm512_packs_epi32(_mm512_cvtps_epi32(scaled[2 * i].v),
                                  _mm512_cvtps_epi32(scaled[2 * i + 1].v));
  __m512i order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
  __m512i bytes = _mm512_packs_epi16(words[0], words[1]);
  __m512i line = _mm512_permutexvar_epi32(order, bytes);
  past_caches ? _mm512_stream_si512((__m512i*)to, line) : _mm512_storeu_si512(to, line);
  return dot(sum, Bytes{_mm512_set1_epi8(1)}, bytes);
}

#elif LANES_LEVEL == 256
// No instruction here multiplies bytes without saturation; words in pairs it is. Half bytes are small
// enough for the one that would saturate, see `linear_int_words_body.h`.
using Activation = int16_t;
struct Ints {
  __m256i v, w;
};
struct Bytes {  // inputs 0 and 2, and 1 and 3, as words
  __m256i even_v, odd_v, even_w, odd_w;
};
inline Ints splat(int32_t a) { return {_mm256_set1_epi32(a), _mm256_set1_epi32(a)}; }
inline Ints add(Ints a, Ints b) { return {_mm256_add_epi32(a.v, b.v), _mm256_add_epi32(a.w, b.w)}; }
inline Lanes to_lanes(Ints a) { return {_mm256_cvtepi32_ps(a.v), _mm256_cvtepi32_ps(a.w)}; }
inline Bytes in_words(__m256i v, __m256i w) {
  __m256i low = _mm256_set1_epi16(255);
  return {_mm256_and_si256(v, low), _mm256_srli_epi16(v, 8), _mm256_and_si256(w, low),
          _mm256_srli_epi16(w, 8)};
}
inline __m256i half_line(const uint8_t* p) { return _mm256_loadu_si256((const __m256i*)p); }
inline Bytes bytes(const uint8_t* line) { return in_words(half_line(line), half_line(line + 32)); }
inline int32_t total(Ints a) {
  __m256i eight = _mm256_add_epi32(a.v, a.w);
  __m128i four = _mm_add_epi32(_mm256_castsi256_si128(eight), _mm256_extracti128_si256(eight, 1));
  four = _mm_add_epi32(four, _mm_shuffle_epi32(four, 0x4e));
  return _mm_cvtsi128_si32(_mm_add_epi32(four, _mm_shuffle_epi32(four, 0xb1)));
}
// Of every four the even ones first: `Bytes` keeps weights in that order.
inline Ints store_activations(Activation* to, const Lanes (&scaled)[4], Ints sum, bool) {
  __m256i even_first = _mm256_setr_epi8(0, 1, 4, 5, 2, 3, 6, 7, 8, 9, 12, 13, 10, 11, 14, 15, 0, 1, 4,
                                        5, 2, 3, 6, 7, 8, 9, 12, 13, 10, 11, 14, 15);
  for (int i = 0; i < 4; i++) {
    __m256i quarters =
        _mm256_packs_epi32(_mm256_cvtps_epi32(scaled[i].v), _mm256_cvtps_epi32(scaled[i].w));
    __m256i words = _mm256_permute4x64_epi64(quarters, 0xd8);
    _mm256_storeu_si256((__m256i*)(to + 16 * i), _mm256_shuffle_epi8(words, even_first));
    sum.v = _mm256_add_epi32(sum.v, _mm256_madd_epi16(words, _mm256_set1_epi16(1)));
  }
  return sum;
}
// The same in bytes, in their own order.
inline Ints store_activations(int8_t* to, const Lanes (&scaled)[4], Ints sum, bool) {
  __m256i words[4], ones = _mm256_set1_epi16(1);
  for (int i = 0; i < 4; i++) {
    words[i] = _mm256_packs_epi32(_mm256_cvtps_epi32(scaled[i].v), _mm256_cvtps_epi32(scaled[i].w));
    sum.v = _mm256_add_epi32(sum.v, _mm256_madd_epi16(words[i], ones));
  }
  __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
  for (int i = 0; i < 2; i++) {
    __m256i bytes = _mm256_packs_epi16(words[2 * i], words[2 * i + 1]);
    _mm256_storeu_si256((__m256i*)(to + 32 * i), _mm256_permutevar8x32_epi32(bytes, order));
  }
  return sum;
}
// Sums by hand: gcc 12 makes all the products first, has no registers for them, and keeps sums in memory.
inline void add_ints(__m256i& sum, __m256i products) {
  asm("vpaddd %1, %0, %0" : "+x"(sum) : "x"(products));
}
inline void add_words(__m256i& sum, __m256i products) {
  asm("vpaddw %1, %0, %0" : "+x"(sum) : "x"(products));
}
inline Ints dot(Ints sum, const Bytes& weights, const Activation* x) {
  int32_t even, odd;
  memcpy(&even, x, sizeof even), memcpy(&odd, x + 2, sizeof odd);
  __m256i e = _mm256_set1_epi32(even), o = _mm256_set1_epi32(odd);
  add_ints(sum.v, _mm256_madd_epi16(weights.even_v, e));
  add_ints(sum.w, _mm256_madd_epi16(weights.even_w, e));
  add_ints(sum.v, _mm256_madd_epi16(weights.odd_v, o));
  add_ints(sum.w, _mm256_madd_epi16(weights.odd_w, o));
  return sum;
}

// Half a line: four inputs of sixteen outputs.
struct Halves {
  __m256i v, w;
};
// Two sums of each output.
struct Words {
  __m256i v, w;
};
inline Halves low_halves(const uint8_t* line) {
  __m256i low = _mm256_set1_epi8(15);
  return {_mm256_and_si256(half_line(line), low), _mm256_and_si256(half_line(line + 32), low)};
}
inline Halves high_halves(const uint8_t* line) {
  __m256i low = _mm256_set1_epi8(15);
  return {_mm256_and_si256(_mm256_srli_epi16(half_line(line), 4), low),
          _mm256_and_si256(_mm256_srli_epi16(half_line(line + 32), 4), low)};
}
inline Words pairs(Halves weights, const int8_t* x) {
  int32_t four;
  memcpy(&four, x, sizeof four);
  __m256i inputs = _mm256_set1_epi32(four);
  return {_mm256_maddubs_epi16(weights.v, inputs), _mm256_maddubs_epi16(weights.w, inputs)};
}
inline Words add(Words sum, Words products) {
  add_words(sum.v, products.v), add_words(sum.w, products.w);
  return sum;
}
inline Ints add_whole(Ints sum, Words words) {
  __m256i ones = _mm256_set1_epi16(1);
  return {_mm256_add_epi32(sum.v, _mm256_madd_epi16(words.v, ones)),
          _mm256_add_epi32(sum.w, _mm256_madd_epi16(words.w, ones))};
}

#else
using Activation = int8_t;
struct Ints {
  int32_t v[16];
};
struct Bytes {
  uint8_t v[64];
};
inline Ints splat(int32_t a) {
  Ints out;
  for (int i = 0; i < 16; i++) out.v[i] = a;
  return out;
}
inline Ints load_ints(const int32_t* p) {
  Ints out;
  memcpy(out.v, p, sizeof out.v);
  return out;
}
inline Ints add(Ints a, Ints b) {
  for (int i = 0; i < 16; i++) a.v[i] += b.v[i];
  return a;
}
inline Lanes to_lanes(Ints a) {
  Lanes out;
  for (int i = 0; i < 16; i++) out.v[i] = float(a.v[i]);
  return out;
}
inline Bytes bytes(const uint8_t* line) {
  Bytes out;
  memcpy(out.v, line, sizeof out.v);
  return out;
}
inline void store_bytes(uint8_t* line, const Bytes& a) { memcpy(line, a.v, sizeof a.v); }
inline int32_t total(const Ints& a) {
  int32_t sum = 0;
  for (int i = 0; i < 16; i++) sum += a.v[i];
  return sum;
}
inline Ints store_activations(Activation* to, const Lanes (&scaled)[4], Ints sum, bool) {
  constexpr float ROUND = 12582912.0f;  // 1.5 * 2^23: adding it rounds to an integer, ties to even
  for (int i = 0; i < 64; i++) {
    to[i] = Activation((scaled[i / 16].v[i % 16] + ROUND) - ROUND);
    sum.v[i % 16] += to[i];
  }
  return sum;
}
inline Bytes low_halves(const uint8_t* line) {
  Bytes out;
  for (int i = 0; i < 64; i++) out.v[i] = line[i] & 15;
  return out;
}
inline Bytes high_halves(const uint8_t* line) {
  Bytes out;
  for (int i = 0; i < 64; i++) out.v[i] = line[i] >> 4;
  return out;
}
inline Bytes signed_bytes(const uint8_t* line) {
  Bytes out;
  for (int i = 0; i < 64; i++) out.v[i] = line[i] ^ 0x80;
  return out;
}
inline Bytes signed_low_halves(const uint8_t* line) {
  Bytes out;
  for (int i = 0; i < 64; i++) out.v[i] = uint8_t(line[i] << 4) ^ 0x80;
  return out;
}
inline Bytes signed_high_halves(const uint8_t* line) {
  Bytes out;
  for (int i = 0; i < 64; i++) out.v[i] = (line[i] & 0xf0) ^ 0x80;
  return out;
}
inline Ints dot(Ints sum, const Bytes& weights, const Activation* x) {
  for (int i = 0; i < 16; i++)
    for (int j = 0; j < 4; j++) sum.v[i] += int32_t(weights.v[4 * i + j]) * x[j];
  return sum;
}
#endif
