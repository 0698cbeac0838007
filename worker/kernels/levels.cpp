// CPUID says what the processor can, XGETBV what the system saves on a context switch; both count.
#include "levels.h"

#if defined(__x86_64__) && defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace millrace {

#if defined(MILLRACE_EMULATE_TILES)

Level highest_level() { return Level::AMX; }

#elif defined(__x86_64__)

struct Registers {
  uint32_t a, b, c, d;
  bool has(uint32_t value, int bit) const { return value >> bit & 1; }
};

static Registers cpuid(uint32_t leaf, uint32_t subleaf) {
  Registers r;
  asm("cpuid" : "=a"(r.a), "=b"(r.b), "=c"(r.c), "=d"(r.d) : "a"(leaf), "c"(subleaf));
  return r;
}

static uint64_t saved_state() {
  uint32_t low, high;
  asm("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return low | uint64_t(high) << 32;
}

// Linux saves tiles only for a process that has asked for them.
static bool may_use_tiles() {
#if defined(__linux__)
  constexpr int ARCH_REQ_XCOMP_PERM = 0x1023, XFEATURE_XTILEDATA = 18;
  return syscall(SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA) == 0;
#else
  return false;
#endif
}

Level highest_level() {
  if (cpuid(0, 0).a < 7) return Level::PORTABLE;
  Registers basic = cpuid(1, 0), more = cpuid(7, 0);
  if (!basic.has(basic.c, 27)) return Level::PORTABLE;  // OSXSAVE: xgetbv itself
  uint64_t saved = saved_state();
  bool avx2 = (saved & 0x6) == 0x6 && basic.has(basic.c, 12) && basic.has(basic.c, 29) &&
              more.has(more.b, 5);  // FMA, F16C, AVX2
  if (!avx2) return Level::PORTABLE;
  bool avx512 = (saved & 0xe0) == 0xe0 && more.has(more.b, 16) && more.has(more.b, 17) &&
                more.has(more.b, 30) && more.has(more.b, 31) && more.has(more.c, 11);
  if (!avx512) return Level::AVX2;  // F, DQ, BW, VL, VNNI
  bool tiles = more.has(more.d, 22) && more.has(more.d, 24) && more.has(more.d, 25);
  if (tiles && (saved & 0x60000) == 0x60000 && may_use_tiles()) return Level::AMX;
  bool pairs = more.a >= 1 && cpuid(7, 1).has(cpuid(7, 1).a, 5);  // AVX512_BF16
  return pairs ? Level::AVX512_BF16 : Level::AVX512;
}

#else

Level highest_level() { return Level::PORTABLE; }

#endif

}  // namespace millrace
