// The gated activation. A linear may end with it, see `linear.h`.
#include "operands.h"
#include "program.h"

#define KERNEL_BODY "silu_mul_body.h"
#include "each_level.h"

namespace millrace {

const Levels silu_mul_kernels = EVERY_LEVEL(silu_mul);

}  // namespace millrace
