// The packed linear over integers at every level, see `linear.h`.
#include "linear.h"

#include <type_traits>

#include "linear_walk.h"
#include "operands.h"
#include "program.h"
#include "tiles.h"

#define KERNEL_BODY "linear_int_body.h"
#include "each_level.h"

namespace millrace {

#if defined(MILLRACE_EMULATE_TILES)
const Levels int_linear_kernels =
    EVERY_LEVEL_AND(linear_ints, portable::linear_ints, portable::linear_int_tiles);
#elif defined(__x86_64__)
const Levels int_linear_kernels =
    EVERY_LEVEL_AND(linear_ints, avx512::linear_ints, avx512::linear_int_tiles);
#else
const Levels int_linear_kernels = EVERY_LEVEL(linear_ints);
#endif

}  // namespace millrace
