// The packed linear, see `linear.h`: that of floats or that of integers, which are two files because
// compilers take half a minute over both.
#include "linear.h"

#include "operands.h"
#include "program.h"

namespace millrace {

template <Level LEVEL>
static void linear(const Run& run, const Op& op) {
  auto format = op.as<LinearArguments>().format;
  bool is_of_ints = format == Format::INT8 || format == Format::INT4;
  (is_of_ints ? int_linear_kernels : float_linear_kernels).at(LEVEL)(run, op);
}

const Levels linear_kernels = {linear<Level::PORTABLE>, linear<Level::AVX2>, linear<Level::AVX512>,
                               linear<Level::AVX512_BF16>, linear<Level::AMX>};

}  // namespace millrace
