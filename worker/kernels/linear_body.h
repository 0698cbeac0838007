// The linear at one level: floats and integers.
#include "linear_float_body.h"
#include "linear_int_body.h"

void linear(const Run& run, const Op& op) {
  auto a = op.as<LinearArguments>();
  int64_t num_rows = run.step.count(op.rows);
  switch (a.format) {
    case Format::F32: return float_linear<F32Weights>(run, a, num_rows);
    case Format::BF16: return float_linear<Bf16Weights>(run, a, num_rows);
    case Format::F16: return float_linear<F16Weights>(run, a, num_rows);
    case Format::INT8: return int_linear<Int8Weights>(run, a, num_rows);
    case Format::INT4: return int_linear<Int4Weights>(run, a, num_rows);
  }
}

#if LANES_LEVEL == TILES_BESIDE
#include "linear_tiles_body.h"
#endif
