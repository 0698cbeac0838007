// Products of bf16 pairs, where there is an instruction for them. Included like `lanes.h`, with it.
//
// `vdpbf16ps` is two links of a chain: it adds the product of the upper halves of its lanes, rounds,
// adds that of the lower halves and rounds again, all denormals flushed. So what a chain takes first
// stands in the upper half.
#if LANES_LEVEL == 512

// Two inputs that a chain takes one after the other.
struct InputPairs {
  using Input = uint32_t;
  static constexpr int64_t INPUTS = 2;  // of a chain, that one `Input` holds
  // sum + first x first weight + second x second weight
  static Lanes add(Lanes sum, __m512i inputs, Lanes weights) {
    asm("vdpbf16ps %2, %1, %0" : "+v"(sum.v) : "v"(weights.v), "v"(inputs));
    return sum;
  }
  static Lanes add(Lanes sum, uint32_t x, Lanes weights) {
    return add(sum, _mm512_set1_epi32(int(x)), weights);
  }
  // With the inputs read by the product itself.
  static Lanes add(Lanes sum, const uint32_t* x, Lanes weights) {
    asm("vdpbf16ps %2%{1to16%}, %1, %0" : "+v"(sum.v) : "v"(weights.v), "m"(*x));
    return sum;
  }
  // Sixteen inputs, rounded to bf16 before: of every four the even ones, then the odd ones.
  static void write(Lanes x, uint32_t* out) { _mm256_storeu_si256((__m256i*)out, words_of(x)); }
  static void write_past_caches(Lanes x, uint32_t* out) {
    _mm256_stream_si256((__m256i*)out, words_of(x));
  }

 private:
  static __m256i words_of(Lanes x) {
    __m256i words = _mm512_cvtepi32_epi16(_mm512_srli_epi32(_mm512_castps_si512(x.v), 16));
    return _mm256_shufflehi_epi16(_mm256_shufflelo_epi16(words, 0x72), 0x72);  // 2, 0, 3, 1
  }
};

inline Lanes joined(__m512i first, __m512i second) {
  return {_mm512_castsi512_ps(_mm512_mask_blend_epi16(0x55555555, first, second))};
}
// Of two lines of bf16 the even places side by side; or the odd ones.
inline Lanes even_pairs(const void* first, const void* second) {
  return joined(_mm512_slli_epi32(_mm512_loadu_si512(first), 16), _mm512_loadu_si512(second));
}
inline Lanes odd_pairs(const void* first, const void* second) {
  return joined(_mm512_loadu_si512(first), _mm512_srli_epi32(_mm512_loadu_si512(second), 16));
}

#endif

// One input, as a float.
struct FloatInputs {
  using Input = float;
  static constexpr int64_t INPUTS = 1;
  static Lanes add(Lanes sum, const float& x, Lanes weights) { return add_product(sum, x, weights); }
  static void write(Lanes x, float* out) { store(out, x); }
  static void write_past_caches(Lanes x, float* out) { store_past_caches(out, x); }
};
