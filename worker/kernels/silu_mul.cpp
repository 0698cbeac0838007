// SiLU times.
#include "operands.h"
#include "program.h"

namespace millrace {

static constexpr int64_t SILU_PIECE = 4096;

}  // namespace millrace

#define KERNEL_BODY "silu_mul_body.h"
#include "each_level.h"

namespace millrace {

const Levels silu_mul_kernels = EVERY_LEVEL(silu_mul);

}  // namespace millrace
