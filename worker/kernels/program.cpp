// The library's door: open a set of threads, run a list of operators, close. Plain C for ctypes.
#include "program.h"

#include "linear.h"

#include <cstdlib>
#include <new>

#define EXPORT extern "C" __attribute__((visibility("default")))

namespace millrace {

static const Levels* kernels_of(Kind kind) {
  switch (kind) {
    case Kind::LINEAR: return &linear_kernels;
    case Kind::EMBEDDING: return &embedding_kernels;
    case Kind::TAKE_ROWS: return &take_rows_kernels;
    case Kind::RMS_NORM: return &rms_norm_kernels;
    case Kind::ADD_RMS_NORM: return &add_rms_norm_kernels;
    case Kind::HEAD_NORM: return &head_norm_kernels;
    case Kind::ROTATION: return &rotation_kernels;
    case Kind::ROPE: return &rope_kernels;
    case Kind::ROPE_SHIFT: return &rope_shift_kernels;
    case Kind::ATTENTION: return &attention_kernels;
    case Kind::SILU_MUL: return &silu_mul_kernels;
    default: return nullptr;
  }
}

// Tell the threads of the weights of the next linear from operator i on.
static void expect_linear(Pool& pool, const Op* ops, int64_t i, int64_t num_ops) {
  while (i < num_ops && ops[i].kind != Kind::LINEAR) i++;
  if (i == num_ops) return pool.expect(nullptr, 0);
  auto a = ops[i].as<LinearArguments>();
  int64_t panel = panel_bytes(a.format, padded_inputs(a.format, a.num_inputs, a.group));
  pool.expect(a.weight, ceil_div(a.num_outputs, PANEL) * panel);
}

}  // namespace millrace

using namespace millrace;

EXPORT int32_t millrace_highest_level() { return int32_t(highest_level()); }

// The operators this library has, as a set of bits; the Python side compares it with its own list.
EXPORT uint64_t millrace_kinds() {
  uint64_t found = 0;
  for (int32_t kind = 0; kind < int32_t(Kind::COUNT); kind++)
    if (kernels_of(Kind(kind))) found |= 1ull << kind;
  return found;
}

EXPORT void* millrace_open(int32_t num_threads) {
  void* memory = aligned_alloc(64, (sizeof(Pool) + 63) / 64 * 64);
  return memory ? new (memory) Pool(num_threads) : nullptr;
}

EXPORT void millrace_close(void* pool) {
  static_cast<Pool*>(pool)->~Pool();
  free(pool);
}

// Run the operators in order. Returns 0, or 1 + the number of the first whose kind is unknown.
EXPORT int64_t millrace_run(void* pool, int32_t level, const Op* ops, int64_t num_ops,
                            const Step* step) {
  FlushDenormals flush;
  Run run{*static_cast<Pool*>(pool), *step};
  expect_linear(run.pool, ops, 0, num_ops);
  for (int64_t i = 0; i < num_ops; i++) {
    const Levels* kernels = kernels_of(ops[i].kind);
    if (!kernels) return i + 1;
    if (ops[i].kind == Kind::LINEAR) expect_linear(run.pool, ops, i + 1, num_ops);
    if (step->count(ops[i].rows) > 0) kernels->at(Level(level))(run, ops[i]);
  }
  return 0;
}
