// RMS norms of rows and of heads.
#include "operands.h"
#include "program.h"

#define KERNEL_BODY "rms_norm_body.h"
#include "each_level.h"

namespace millrace {

const Levels rms_norm_kernels = EVERY_LEVEL(rms_norm);
const Levels add_rms_norm_kernels = EVERY_LEVEL(add_rms_norm);
const Levels head_norm_kernels = EVERY_LEVEL(head_norm);

}  // namespace millrace
