// Rotary positions: cos and sin once a step, then every layer's turn and its write to the cache.
#include <cmath>

#include "operands.h"
#include "program.h"

namespace millrace {

// cos, then sin, of the angles of one position: float32 as the models were trained, rounded from
// double precision.
static void write_turn(float* turn, const float* frequencies, int64_t head_dim, int64_t position,
                       double factor) {
  int64_t half = head_dim / 2;
  for (int64_t i = 0; i < half; i++) {
    double angle = float(position) * frequencies[i];
    turn[i] = float(cos(angle)) * float(factor);
    turn[half + i] = float(sin(angle)) * float(factor);
  }
}

static void rotation(const Run& run, const Op& op) {
  auto a = op.as<RotationArguments>();
  each_row(run, op, [&](int64_t t) {
    write_turn(a.out + t * a.head_dim, a.frequencies, a.head_dim, run.step.positions[t], a.factor);
  });
}

}  // namespace millrace

#define KERNEL_BODY "rope_body.h"
#include "each_level.h"

namespace millrace {

const Levels rotation_kernels(rotation);
const Levels rope_kernels = EVERY_LEVEL(rope);
const Levels rope_shift_kernels = EVERY_LEVEL(rope_shift);

}  // namespace millrace
