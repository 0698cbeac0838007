// Which instructions this machine has, and the state of the floating-point unit that makes all
// levels round alike.
#pragma once
#include "types.h"

#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

// Kernels are compiled for these levels; the emulator of tiles stands beside the portable one alone.
#if defined(__x86_64__) && !defined(MILLRACE_EMULATE_TILES)
#define MILLRACE_X86_LEVELS
#endif

namespace millrace {

enum class Level : int32_t { PORTABLE, AVX2, AVX512, AVX512_BF16, AMX };

// The highest level that processor and operating system both allow. Asks for AMX permission.
Level highest_level();

// While it lives, this thread flushes denormals, in and out, as the AMX tile unit always does, rounds to
// the nearest and traps nothing, whatever another library of the process has set: a thread takes over
// the state of the one that makes it.
class FlushDenormals {
 public:
#if defined(__x86_64__)
  FlushDenormals() : before_(_mm_getcsr()) { _mm_setcsr(0x9fc0); }
  ~FlushDenormals() { _mm_setcsr(before_); }

 private:
  unsigned before_;
#elif defined(__aarch64__)
  FlushDenormals() {
    asm volatile("mrs %0, fpcr" : "=r"(before_));
    asm volatile("msr fpcr, %0" : : "r"(uint64_t(1) << 24));
  }
  ~FlushDenormals() { asm volatile("msr fpcr, %0" : : "r"(before_)); }

 private:
  uint64_t before_;
#endif
};

}  // namespace millrace
