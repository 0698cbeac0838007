// Paged attention.
#include "attention.h"

#include "linear_walk.h"
#include "program.h"
#include "tiles.h"

#define KERNEL_BODY "attention_body.h"
#include "each_level.h"

namespace millrace {

#if defined(MILLRACE_EMULATE_TILES)
const Levels attention_kernels =
    EVERY_LEVEL_AND(attention, portable::attention, portable::attention_tiles);
#elif defined(__x86_64__)
const Levels attention_kernels =
    EVERY_LEVEL_AND(attention, avx512::attention_pairs, avx512::attention_tiles);
#else
const Levels attention_kernels = EVERY_LEVEL(attention);
#endif

}  // namespace millrace
