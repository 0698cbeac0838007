// Activations that products take from memory or from a shuffle. Included like `lanes.h`.
//
// A processor of this level reads twice a cycle and multiplies as often: with one panel, where a
// value that is read goes into a single product, reading weights too is more than it can do. Of many
// rows some are therefore read for four products at once, and shuffles spread them. Not on Zen 4, which
// multiplies once a cycle (8 rows of bf16 there: 5 % slower with shuffles); weights that go to the
// second cache are always its own, see `by_second_cache`.
#if LANES_LEVEL == 512

constexpr int MOST_SPREAD = 2;  // three and four: no faster
constexpr int spread_rows(int num_rows, int where) {
  return num_rows > 4 && where != SECOND_CACHE ? MOST_SPREAD : 0;
}

struct Fours {
  __m512i v;  // four times four bytes, in every quarter
};

inline Fours read_fours(const void* p) {
  Fours fours{_mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i*)p))};
  asm("" : "+v"(fours.v));  // or gcc 12 reads them again for every product
  return fours;
}

// Number `I` of the four, for all lanes.
template <int I>
inline __m512i spread(Fours fours) {
  return _mm512_shuffle_epi32(fours.v, _MM_PERM_ENUM(I * 0x55));
}

#endif
