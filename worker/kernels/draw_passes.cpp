// The sampler's passes over a whole vocabulary.
#include "draw_passes.h"
#include "levels.h"

#define KERNEL_BODY "draw_passes_body.h"
#include "each_level.h"

using namespace millrace;

#if defined(MILLRACE_X86_LEVELS)
#define AT_LEVEL(level, call)                               \
  (Level(level) >= Level::AVX512   ? avx512::call           \
   : Level(level) == Level::AVX2 ? avx2::call : portable::call)
#else
#define AT_LEVEL(level, call) (portable::call)
#endif
#define EXPORT extern "C" __attribute__((visibility("default")))

// Both return how many tokens they found; only the first `room` of them are written.

EXPORT int64_t millrace_contenders(int32_t level, const ContendersArguments* a) {
  return AT_LEVEL(level, contenders(*a));
}

EXPORT int64_t millrace_nucleus(int32_t level, NucleusArguments* a) {
  return AT_LEVEL(level, nucleus(*a));
}
