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

// Zen 4, the first of AMD with vectors of 512 bits: it takes them in halves, so that products last
// twice as long beside the same memory.
inline bool is_family_25() {
#if defined(__x86_64__)
  unsigned a, b, c, d;
  return __get_cpuid(1, &a, &b, &c, &d) && (a >> 8 & 15) + (a >> 20 & 255) == 25;
#else
  return false;
#endif
}

inline const bool ON_ZEN4 = ON_AMD && is_family_25();

}  // namespace millrace
