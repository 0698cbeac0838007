// Who made the processor: where makers differ in what is fast, each gets what was measured on its own;
// and where memory is fetched to.
#pragma once
#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace millrace {

inline bool made_by_amd() {
#if defined(__x86_64__)
  unsigned a, b, c, d;
  return __get_cpuid(0, &a, &b, &c, &d) && b == 0x68747541 && c == 0x444d4163;  // "Auth", "cAMD"
#else
  return false;
#endif
}

inline const bool ON_AMD = made_by_amd();

// Zen 4, the first of AMD with vectors of 512 bits (Zen 3 of the same family has none): it takes them
// in halves, so that products last twice as long beside the same memory.
inline bool is_zen4() {
#if defined(__x86_64__)
  unsigned family, features, b, c, d, a;
  if (!__get_cpuid(1, &family, &b, &c, &d) || !__get_cpuid_count(7, 0, &a, &features, &c, &d))
    return false;
  return (family >> 8 & 15) + (family >> 20 & 255) == 25 && (features >> 16 & 1);  // AVX512F
#else
  return false;
#endif
}

inline const bool ON_ZEN4 = ON_AMD && is_zen4();

// Intel's with the tile unit, whose second cache is fast and third one is not.
inline bool has_tiles() {
#if defined(__x86_64__)
  unsigned a, b, c, d;
  return __get_cpuid_count(7, 0, &a, &b, &c, &d) && (d >> 24 & 1);  // AMX-TILE
#else
  return false;
#endif
}

inline const bool HAS_TILES = has_tiles();

// Where memory is fetched to, as __builtin_prefetch takes it. `ONCE` is the first cache, and nothing
// after it: for what is read once it leaves the others what they hold.
constexpr int ONCE = 0, SECOND_CACHE = 2, FIRST_CACHE = 3;

}  // namespace millrace
