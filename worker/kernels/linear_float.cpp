// The packed linear over floats at every level, see `linear.h`.
#include "linear.h"

#include <type_traits>

#include "linear_walk.h"
#include "operands.h"
#include "program.h"
#include "tiles.h"

#define KERNEL_BODY "linear_float_body.h"
#include "each_level.h"

namespace millrace {

#if defined(MILLRACE_EMULATE_TILES)
const Levels float_linear_kernels =
    EVERY_LEVEL_AND(linear_floats, portable::linear_floats, portable::linear_float_tiles);
#elif defined(__x86_64__)
const Levels float_linear_kernels =
    EVERY_LEVEL_AND(linear_floats, avx512::linear_pairs, avx512::linear_float_tiles);
#else
const Levels float_linear_kernels = EVERY_LEVEL(linear_floats);
#endif

}  // namespace millrace
