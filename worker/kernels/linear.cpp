// The packed linear at every level, see `linear.h`, and the gated activation, which it may end with.
#include "linear.h"

#include <type_traits>

#include "linear_walk.h"
#include "operands.h"
#include "program.h"
#include "tiles.h"

#define KERNEL_BODY "linear_body.h"
#include "each_level.h"

namespace millrace {

const Levels silu_mul_kernels = EVERY_LEVEL(silu_mul);

#if defined(MILLRACE_EMULATE_TILES)
const Levels linear_kernels = EVERY_LEVEL_AND(linear, portable::linear, portable::linear_tiles);
#elif defined(__x86_64__)
const Levels linear_kernels = EVERY_LEVEL_AND(linear, avx512::linear_pairs, avx512::linear_tiles);
#else
const Levels linear_kernels = EVERY_LEVEL(linear);
#endif

}  // namespace millrace
