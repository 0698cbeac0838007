// The packed linear at every level. See `linear.h`.
#include "linear.h"

#include "linear_walk.h"
#include "program.h"
#include "tiles.h"

namespace millrace {

// Small enough that a late thread costs little, whole groups of four streams.
static int64_t panels_per_piece(int64_t num_panels, int64_t num_threads) {
  int64_t even_share = num_panels / (num_threads * 8) / 4 * 4;
  return max_of(4, min_of(32, even_share));
}

}  // namespace millrace

#define KERNEL_BODY "linear_body.h"
#include "each_level.h"

namespace millrace {

#if defined(MILLRACE_EMULATE_TILES)
const Levels linear_kernels = EVERY_LEVEL_AND(linear, portable::linear_tiles);
#elif defined(__x86_64__)
const Levels linear_kernels = EVERY_LEVEL_AND(linear, avx512::linear_tiles);
#else
const Levels linear_kernels = EVERY_LEVEL(linear);
#endif

}  // namespace millrace
