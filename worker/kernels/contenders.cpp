// The sampler's one pass over a whole vocabulary.
#include "contenders.h"
#include "levels.h"

#define KERNEL_BODY "contenders_body.h"
#include "each_level.h"

using namespace millrace;

// Return how many tokens contend; only the first `room` of them are written.
extern "C" __attribute__((visibility("default"))) int64_t millrace_contenders(
    int32_t level, const ContendersArguments* a) {
#if defined(__x86_64__)
  if (Level(level) >= Level::AVX512) return avx512::contenders(*a);
  if (Level(level) == Level::AVX2) return avx2::contenders(*a);
#endif
  return portable::contenders(*a);
}
