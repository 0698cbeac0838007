// Lanes: sixteen floats, the one vector that kernels are written in, at every level. Included once
// inside each level's namespace by `each_level.h`, so it has no guard and includes nothing.
//
// All operations round as IEEE 754 single precision does, and sums over lanes go down one fixed
// tree: a kernel written in Lanes gives the same bits at every level. Nothing is contracted
// (-ffp-contract=off): a fused multiply-add is one only where fma() is written.

#if LANES_LEVEL == 512
struct Lanes {
  __m512 v;
};
inline Lanes load(const float* p) { return {_mm512_loadu_ps(p)}; }
inline void store(float* p, Lanes a) { _mm512_storeu_ps(p, a.v); }
inline void store_past_caches(float* p, Lanes a) { _mm512_stream_ps(p, a.v); }
inline Lanes splat(float a) { return {_mm512_set1_ps(a)}; }
inline Lanes operator+(Lanes a, Lanes b) { return {_mm512_add_ps(a.v, b.v)}; }
inline Lanes operator-(Lanes a, Lanes b) { return {_mm512_sub_ps(a.v, b.v)}; }
inline Lanes operator*(Lanes a, Lanes b) { return {_mm512_mul_ps(a.v, b.v)}; }
inline Lanes operator/(Lanes a, Lanes b) { return {_mm512_div_ps(a.v, b.v)}; }
inline Lanes fma(Lanes a, Lanes b, Lanes c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }
// sum + a b, fused. In many sums at once gcc 12 makes moves of the intrinsic, not of the instruction.
inline Lanes add_product(Lanes sum, Lanes a, Lanes b) {
  asm("vfmadd231ps %2, %1, %0" : "+v"(sum.v) : "v"(a.v), "v"(b.v));
  return sum;
}
inline Lanes add_product(Lanes sum, const float& a, Lanes b) { return add_product(sum, splat(a), b); }
inline Lanes larger(Lanes a, Lanes b) { return {_mm512_max_ps(a.v, b.v)}; }
inline Lanes smaller(Lanes a, Lanes b) { return {_mm512_min_ps(a.v, b.v)}; }
inline Lanes magnitude(Lanes a) { return {_mm512_abs_ps(a.v)}; }
// Of magnitudes, in the order of their bits: what is no number is larger than all that are.
inline Lanes larger_magnitude(Lanes a, Lanes b) {
  return {_mm512_castsi512_ps(
      _mm512_max_epi32(_mm512_castps_si512(a.v), _mm512_castps_si512(b.v)))};
}
inline float largest_magnitude(Lanes a) {
  return from_bits(uint32_t(_mm512_reduce_max_epi32(_mm512_castps_si512(a.v))));
}
inline Lanes round_even(Lanes a) { return {_mm512_roundscale_ps(a.v, 8)}; }
// a · 2^n for whole n, -150 .. 128. Other levels take two steps: neither end is an exponent.
inline Lanes times_power(Lanes a, Lanes n) { return {_mm512_scalef_ps(a.v, n.v)}; }
inline Lanes load_bf16(const bf16* p) {
  __m512i wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i*)p));
  return {_mm512_castsi512_ps(_mm512_slli_epi32(wide, 16))};
}
inline Lanes load_f16(const f16* p) {
  return {_mm512_cvtph_ps(_mm256_loadu_si256((const __m256i*)p))};
}
inline Lanes even_bf16(const bf16* p) {
  return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_loadu_si512(p), 16))};
}
inline Lanes odd_bf16(const bf16* p) {
  __m512i high = _mm512_set1_epi32(int(0xffff0000));
  return {_mm512_castsi512_ps(_mm512_and_si512(_mm512_loadu_si512(p), high))};
}
// The words of the nearest bf16s in their upper halves; what is below is of no meaning.
inline __m512i words_of_bf16(Lanes a) {
  __m512i bits = _mm512_castps_si512(a.v);
  __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
  __m512i rounded = _mm512_add_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x7fff)), odd);
  __m512i quiet = _mm512_or_si512(bits, _mm512_set1_epi32(0x400000));
  __mmask16 nan = _mm512_cmp_ps_mask(a.v, a.v, _CMP_UNORD_Q);
  return _mm512_mask_mov_epi32(rounded, nan, quiet);
}
inline void store_bf16(bf16* p, Lanes a) {
  _mm256_storeu_si256((__m256i*)p, _mm512_cvtepi32_epi16(_mm512_srli_epi32(words_of_bf16(a), 16)));
}
inline void store_bf16_pairs(bf16* p, Lanes even, Lanes odd) {
  __m512i high = _mm512_and_si512(words_of_bf16(odd), _mm512_set1_epi32(int(0xffff0000)));
  _mm512_storeu_si512(p, _mm512_or_si512(_mm512_srli_epi32(words_of_bf16(even), 16), high));
}
inline Lanes nearest_bf16(Lanes a) {
  __m512i high = _mm512_set1_epi32(int(0xffff0000));
  return {_mm512_castsi512_ps(_mm512_and_si512(words_of_bf16(a), high))};
}
// 2^n, n being the low bits of what a sum with 1.5 · 2^23 has rounded to; -126 <= n <= 127.
inline Lanes power_of_low_bits(Lanes a) {
  __m512i e = _mm512_slli_epi32(_mm512_castps_si512(a.v), 23);
  return {_mm512_castsi512_ps(_mm512_add_epi32(e, _mm512_set1_epi32(127 << 23)))};
}
inline __m256 upper_half(Lanes a) { return _mm512_extractf32x8_ps(a.v, 1); }
inline __m256 lower_half(Lanes a) { return _mm512_castps512_ps256(a.v); }

#elif LANES_LEVEL == 256
struct Lanes {
  __m256 v, w;
};
inline Lanes load(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
inline void store(float* p, Lanes a) { _mm256_storeu_ps(p, a.v), _mm256_storeu_ps(p + 8, a.w); }
inline void store_past_caches(float* p, Lanes a) {
  _mm256_stream_ps(p, a.v), _mm256_stream_ps(p + 8, a.w);
}
inline Lanes splat(float a) { return {_mm256_set1_ps(a), _mm256_set1_ps(a)}; }
inline Lanes operator+(Lanes a, Lanes b) {
  return {_mm256_add_ps(a.v, b.v), _mm256_add_ps(a.w, b.w)};
}
inline Lanes operator-(Lanes a, Lanes b) {
  return {_mm256_sub_ps(a.v, b.v), _mm256_sub_ps(a.w, b.w)};
}
inline Lanes operator*(Lanes a, Lanes b) {
  return {_mm256_mul_ps(a.v, b.v), _mm256_mul_ps(a.w, b.w)};
}
inline Lanes operator/(Lanes a, Lanes b) {
  return {_mm256_div_ps(a.v, b.v), _mm256_div_ps(a.w, b.w)};
}
inline Lanes fma(Lanes a, Lanes b, Lanes c) {
  return {_mm256_fmadd_ps(a.v, b.v, c.v), _mm256_fmadd_ps(a.w, b.w, c.w)};
}
inline Lanes add_product(Lanes sum, Lanes a, Lanes b) { return fma(a, b, sum); }
// With a value read by the products themselves. Of twelve sums and the intrinsics gcc 12 writes some
// over the values, so that they wait for memory in every step (6 rows of bf16 on a Zen 2: 1.2 times).
inline Lanes add_product(Lanes sum, const float& a, Lanes b) {
  __m256 value;
  asm("vbroadcastss %3, %2\n\tvfmadd231ps %4, %2, %0\n\tvfmadd231ps %5, %2, %1"
      : "+x"(sum.v), "+x"(sum.w), "=&x"(value)
      : "m"(a), "x"(b.v), "x"(b.w));
  return sum;
}
inline Lanes larger(Lanes a, Lanes b) {
  return {_mm256_max_ps(a.v, b.v), _mm256_max_ps(a.w, b.w)};
}
inline Lanes smaller(Lanes a, Lanes b) {
  return {_mm256_min_ps(a.v, b.v), _mm256_min_ps(a.w, b.w)};
}
inline Lanes magnitude(Lanes a) {
  __m256 sign = _mm256_set1_ps(-0.0f);
  return {_mm256_andnot_ps(sign, a.v), _mm256_andnot_ps(sign, a.w)};
}
inline __m256 larger_bits(__m256 a, __m256 b) {
  return _mm256_castsi256_ps(_mm256_max_epi32(_mm256_castps_si256(a), _mm256_castps_si256(b)));
}
inline Lanes larger_magnitude(Lanes a, Lanes b) {
  return {larger_bits(a.v, b.v), larger_bits(a.w, b.w)};
}
inline float largest_magnitude(Lanes a) {
  __m256i eight = _mm256_castps_si256(larger_bits(a.v, a.w));
  __m128i four = _mm_max_epi32(_mm256_castsi256_si128(eight), _mm256_extracti128_si256(eight, 1));
  four = _mm_max_epi32(four, _mm_shuffle_epi32(four, 0x4e));
  return from_bits(uint32_t(_mm_cvtsi128_si32(_mm_max_epi32(four, _mm_shuffle_epi32(four, 0xb1)))));
}
inline Lanes round_even(Lanes a) { return {_mm256_round_ps(a.v, 8), _mm256_round_ps(a.w, 8)}; }
inline __m256 power(__m256i n) {
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(n, _mm256_set1_epi32(127)), 23));
}
inline __m256 times_power(__m256 a, __m256 n) {
  __m256i whole = _mm256_cvtps_epi32(n), half = _mm256_srai_epi32(whole, 1);
  return _mm256_mul_ps(_mm256_mul_ps(a, power(half)), power(_mm256_sub_epi32(whole, half)));
}
inline Lanes times_power(Lanes a, Lanes n) { return {times_power(a.v, n.v), times_power(a.w, n.w)}; }
inline __m256 widen_bf16(const bf16* p) {
  __m256i wide = _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i*)p));
  return _mm256_castsi256_ps(_mm256_slli_epi32(wide, 16));
}
inline Lanes load_bf16(const bf16* p) { return {widen_bf16(p), widen_bf16(p + 8)}; }
inline Lanes load_f16(const f16* p) {
  return {_mm256_cvtph_ps(_mm_loadu_si128((const __m128i*)p)),
          _mm256_cvtph_ps(_mm_loadu_si128((const __m128i*)(p + 8)))};
}
inline __m256i words(const bf16* p) { return _mm256_loadu_si256((const __m256i*)p); }
inline Lanes even_bf16(const bf16* p) {
  return {_mm256_castsi256_ps(_mm256_slli_epi32(words(p), 16)),
          _mm256_castsi256_ps(_mm256_slli_epi32(words(p + 16), 16))};
}
inline Lanes odd_bf16(const bf16* p) {
  __m256i high = _mm256_set1_epi32(int(0xffff0000));
  return {_mm256_castsi256_ps(_mm256_and_si256(words(p), high)),
          _mm256_castsi256_ps(_mm256_and_si256(words(p + 16), high))};
}
inline __m256i rounded_bf16(__m256 a) {
  __m256i bits = _mm256_castps_si256(a);
  __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
  __m256i rounded = _mm256_add_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x7fff)), odd);
  __m256i quiet = _mm256_or_si256(bits, _mm256_set1_epi32(0x400000));
  __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(a, a, _CMP_UNORD_Q));
  return _mm256_srli_epi32(_mm256_blendv_epi8(rounded, quiet, nan), 16);
}
inline void store_bf16(bf16* p, Lanes a) {
  __m256i packed = _mm256_packus_epi32(rounded_bf16(a.v), rounded_bf16(a.w));
  _mm256_storeu_si256((__m256i*)p, _mm256_permute4x64_epi64(packed, 0xd8));
}
inline __m256i bf16_pairs(__m256 even, __m256 odd) {
  return _mm256_or_si256(rounded_bf16(even), _mm256_slli_epi32(rounded_bf16(odd), 16));
}
inline void store_bf16_pairs(bf16* p, Lanes even, Lanes odd) {
  _mm256_storeu_si256((__m256i*)p, bf16_pairs(even.v, odd.v));
  _mm256_storeu_si256((__m256i*)(p + 16), bf16_pairs(even.w, odd.w));
}
inline __m256 nearest_bf16(__m256 a) {
  return _mm256_castsi256_ps(_mm256_slli_epi32(rounded_bf16(a), 16));
}
inline Lanes nearest_bf16(Lanes a) { return {nearest_bf16(a.v), nearest_bf16(a.w)}; }
inline __m256 power_of_low_bits(__m256 a) {
  __m256i e = _mm256_slli_epi32(_mm256_castps_si256(a), 23);
  return _mm256_castsi256_ps(_mm256_add_epi32(e, _mm256_set1_epi32(127 << 23)));
}
inline Lanes power_of_low_bits(Lanes a) { return {power_of_low_bits(a.v), power_of_low_bits(a.w)}; }
inline __m256 upper_half(Lanes a) { return a.w; }
inline __m256 lower_half(Lanes a) { return a.v; }

#else
struct Lanes {
  float v[16];
};
#define EACH_LANE(expression)                    \
  Lanes out;                                     \
  for (int i = 0; i < 16; i++) out.v[i] = (expression); \
  return out
inline Lanes load(const float* p) { EACH_LANE(p[i]); }
inline void store(float* p, Lanes a) { memcpy(p, a.v, sizeof a.v); }
inline void store_past_caches(float* p, Lanes a) { store(p, a); }
inline Lanes splat(float a) { EACH_LANE(a); }
inline Lanes operator+(Lanes a, Lanes b) { EACH_LANE(a.v[i] + b.v[i]); }
inline Lanes operator-(Lanes a, Lanes b) { EACH_LANE(a.v[i] - b.v[i]); }
inline Lanes operator*(Lanes a, Lanes b) { EACH_LANE(a.v[i] * b.v[i]); }
inline Lanes operator/(Lanes a, Lanes b) { EACH_LANE(a.v[i] / b.v[i]); }
// Where a fused multiply-add is a call, sixteen of them at every use were half of this level's code.
#if defined(__FP_FAST_FMAF)
#define IN_LINE inline
#else
#define IN_LINE [[gnu::noinline]] inline
#endif
IN_LINE Lanes fma(const Lanes& a, const Lanes& b, const Lanes& c) {
  EACH_LANE(__builtin_fmaf(a.v[i], b.v[i], c.v[i]));
}
#undef IN_LINE
inline Lanes add_product(Lanes sum, Lanes a, Lanes b) { return fma(a, b, sum); }
inline Lanes add_product(Lanes sum, const float& a, Lanes b) { return add_product(sum, splat(a), b); }
// As the x86 instructions: the second operand when either is not a number.
inline Lanes larger(Lanes a, Lanes b) { EACH_LANE(a.v[i] > b.v[i] ? a.v[i] : b.v[i]); }
inline Lanes smaller(Lanes a, Lanes b) { EACH_LANE(a.v[i] < b.v[i] ? a.v[i] : b.v[i]); }
inline Lanes magnitude(Lanes a) { EACH_LANE(__builtin_fabsf(a.v[i])); }
inline Lanes larger_magnitude(Lanes a, Lanes b) {
  EACH_LANE(to_bits(a.v[i]) > to_bits(b.v[i]) ? a.v[i] : b.v[i]);
}
inline float largest_magnitude(Lanes a) {
  uint32_t most = 0;
  for (float v : a.v) most = to_bits(v) > most ? to_bits(v) : most;
  return from_bits(most);
}
inline Lanes round_even(Lanes a) { EACH_LANE(__builtin_rintf(a.v[i])); }
inline Lanes times_power(Lanes a, Lanes n) {
  auto power = [](int32_t e) { return from_bits(uint32_t(e + 127) << 23); };
  EACH_LANE(a.v[i] * power(int32_t(n.v[i]) >> 1) * power(int32_t(n.v[i]) - (int32_t(n.v[i]) >> 1)));
}
inline Lanes load_bf16(const bf16* p) { EACH_LANE(from_bf16(p[i])); }
inline Lanes load_f16(const f16* p) { EACH_LANE(from_f16(p[i])); }
inline Lanes even_bf16(const bf16* p) { EACH_LANE(from_bf16(p[2 * i])); }
inline Lanes odd_bf16(const bf16* p) { EACH_LANE(from_bf16(p[2 * i + 1])); }
inline void store_bf16(bf16* p, Lanes a) {
  for (int i = 0; i < 16; i++) p[i] = to_bf16(a.v[i]);
}
inline void store_bf16_pairs(bf16* p, Lanes even, Lanes odd) {
  for (int i = 0; i < 16; i++) p[2 * i] = to_bf16(even.v[i]), p[2 * i + 1] = to_bf16(odd.v[i]);
}
inline Lanes nearest_bf16(Lanes a) { EACH_LANE(from_bf16(to_bf16(a.v[i]))); }
inline Lanes power_of_low_bits(Lanes a) { EACH_LANE(from_bits((to_bits(a.v[i]) << 23) + (127u << 23))); }
#undef EACH_LANE
#endif

inline Lanes zero() { return splat(0.0f); }

// Fold halves onto each other: 16 → 8 → 4 → 2 → 1.
#if LANES_LEVEL
#define FOLD(add8, add4)                                                      \
  __m256 eight = add8(lower_half(a), upper_half(a));                          \
  __m128 four = add4(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1)); \
  four = add4(four, _mm_movehl_ps(four, four));                               \
  return _mm_cvtss_f32(add4(four, _mm_movehdup_ps(four)))
inline float sum(Lanes a) { FOLD(_mm256_add_ps, _mm_add_ps); }
inline float largest(Lanes a) { FOLD(_mm256_max_ps, _mm_max_ps); }
#undef FOLD
#else
inline float sum(Lanes a) {
  for (int half = 8; half > 0; half /= 2)
    for (int i = 0; i < half; i++) a.v[i] += a.v[i + half];
  return a.v[0];
}
inline float largest(Lanes a) {
  for (int half = 8; half > 0; half /= 2)
    for (int i = 0; i < half; i++) a.v[i] = a.v[i] > a.v[i + half] ? a.v[i] : a.v[i + half];
  return a.v[0];
}
#endif

// The first `count` floats at p, the other lanes `fill`.
inline Lanes load_part(const float* p, int64_t count, float fill) {
  float v[16];
  for (int i = 0; i < 16; i++) v[i] = i < count ? p[i] : fill;
  return load(v);
}
inline void store_part(float* p, Lanes a, int64_t count) {
  float v[16];
  store(v, a);
  for (int64_t i = 0; i < count; i++) p[i] = v[i];
}

// e^(x - n ln 2): the reduction by ln 2 in two parts, then a polynomial of degree 6 (Cephes expf).
inline Lanes exponential_of_rest(Lanes x, Lanes n) {
  Lanes r = fma(n, splat(-0.693359375f), x);
  r = fma(n, splat(2.12194440e-4f), r);
  Lanes p = splat(1.9875691500e-4f);
  p = fma(p, r, splat(1.3981999507e-3f));
  p = fma(p, r, splat(8.3334519073e-3f));
  p = fma(p, r, splat(4.1665795894e-2f));
  p = fma(p, r, splat(1.6666665459e-1f));
  p = fma(p, r, splat(5.0000001201e-1f));
  return fma(p, r * r, r) + splat(1.0f);
}

// e^x, relative error below 2e-7; 0 below -87.4 (flushed), inf above 88.8, NaN stays.
inline Lanes exponential(Lanes x) {
  x = smaller(splat(89.0f), larger(splat(-104.0f), x));
  Lanes n = round_even(x * splat(1.44269504088896341f));
  return times_power(exponential_of_rest(x, n), n);
}

// The same for x <= 0, with half the work; never below e^-87, which adds nothing to a sum that 1 is
// part of. n is found by adding a number so large that only whole ones are left beside it.
inline Lanes exponential_of_negative(Lanes x) {
  constexpr float ROUNDS = 12582912.0f;  // 1.5 · 2^23
  x = larger(splat(-87.0f), x);
  Lanes low = fma(x, splat(1.44269504088896341f), splat(ROUNDS)), n = low - splat(ROUNDS);
  return exponential_of_rest(x, n) * power_of_low_bits(low);
}
