// Who made the processor: where makers differ in what is fast, each gets what was measured on its own.
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

}  // namespace millrace
