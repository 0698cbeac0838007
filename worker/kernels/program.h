// What a kernel is given, and how it is entered into the table of `program.cpp`.
#pragma once
#include "levels.h"
#include "maker.h"
#include "pool.h"
#include "types.h"

namespace millrace {

struct Run {
  Pool& pool;
  const Step& step;
};

using Kernel = void (*)(const Run&, const Op&);

// Of so few rows each thread takes one part, the same of every operator that is cut alike: what it has
// written it reads and writes again itself. A line that another thread had is slow to come, see below.
constexpr int64_t FEW_ROWS = 16;

// How many of `count` columns, or groups of them, a thread takes at a time, for all rows.
inline int64_t strip_of(int64_t count, int64_t num_rows, int64_t num_threads) {
  if (num_rows == 1) return count;  // less work than sharing it
  return ceil_div(count, num_rows <= FEW_ROWS ? num_threads : 4 * num_threads);
}

// Whether `num_bytes` that threads write for each other go past the caches. Into its own a thread must
// first take back each line that another has read: 28 ns where that one's core stands in another core
// complex of a Zen 4, 9 in the same; past them a line takes 2.5. To read it from memory takes 2 to 3,
// from the other complex as long, in the same 1. Not what is little: memory is slow to begin.
inline bool go_past_caches(const Run& run, int64_t num_bytes) {
  constexpr int64_t LEAST = 32 << 10;
  return ON_ZEN4 && run.pool.num_threads() > 1 && num_bytes >= LEAST;
}
// Only whole lines can.
inline bool are_whole_lines(const float* rows, int64_t width) {
  return uint64_t(rows) % 64 == 0 && width % 16 == 0;
}
// The same of rows of floats.
inline bool go_past_caches(const Run& run, const float* rows, int64_t num_rows, int64_t width) {
  return are_whole_lines(rows, width) && go_past_caches(run, num_rows * width * 4);
}
// Whether rows go past the caches because these do not hold them: a line is then written without being
// read first. Measured on the processors with tiles, and done there.
inline bool exceeds_caches(const float* rows, int64_t num_rows, int64_t width) {
  constexpr int64_t LEAST = 8 << 20;
  return HAS_TILES && are_whole_lines(rows, width) && num_rows * width * 4 >= LEAST;
}

// Call row(t) for every row the operator runs over. Of many rows a thread takes sixteen, so that the
// keys of a prompt's page are written by one.
template <class Row>
void each_row(const Run& run, const Op& op, Row&& row) {
  int64_t count = run.step.count(op.rows), threads = run.pool.num_threads();
  int64_t some = count <= FEW_ROWS ? ceil_div(count, threads) : min_of(16, count / (8 * threads));
  int64_t rows = max_of(2, some);
  run.pool.each(ceil_div(count, rows), [&](int64_t piece, int) {
    int64_t stop = min_of(count, (piece + 1) * rows);
    for (int64_t t = piece * rows; t < stop; t++) row(t);
  });
}

// One kernel at the five levels; a level without one of its own takes the one below.
struct Levels {
  Kernel portable, avx2, avx512, avx512_bf16, amx;

  // All five, or one for all: a level left out would be a null pointer that only its machines meet.
  constexpr Levels(Kernel portable, Kernel avx2, Kernel avx512, Kernel avx512_bf16, Kernel amx)
      : portable(portable), avx2(avx2), avx512(avx512), avx512_bf16(avx512_bf16), amx(amx) {}
  constexpr explicit Levels(Kernel all) : Levels(all, all, all, all, all) {}

  Kernel at(Level level) const {
    switch (level) {
      case Level::AMX: return amx;
      case Level::AVX512_BF16: return avx512_bf16;
      case Level::AVX512: return avx512;
      case Level::AVX2: return avx2;
      default: return portable;
    }
  }
};

#if defined(MILLRACE_X86_LEVELS)
#define EVERY_LEVEL_AND(name, pairs, amx) {portable::name, avx2::name, avx512::name, pairs, amx}
#define EVERY_LEVEL(name) EVERY_LEVEL_AND(name, avx512::name, avx512::name)
#else
#define EVERY_LEVEL_AND(name, pairs, amx) \
  {portable::name, portable::name, portable::name, pairs, amx}
#define EVERY_LEVEL(name) EVERY_LEVEL_AND(name, portable::name, portable::name)
#endif

// Each is defined in the file of its operator.
extern const Levels linear_kernels;
extern const Levels float_linear_kernels;
extern const Levels int_linear_kernels;
extern const Levels embedding_kernels;
extern const Levels take_rows_kernels;
extern const Levels rms_norm_kernels;
extern const Levels add_rms_norm_kernels;
extern const Levels head_norm_kernels;
extern const Levels rotation_kernels;
extern const Levels rope_kernels;
extern const Levels rope_shift_kernels;
extern const Levels attention_kernels;
extern const Levels silu_mul_kernels;

}  // namespace millrace
