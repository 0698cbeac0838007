// Ceilings for the benchmarks: how fast this machine reads memory and multiplies.
#include <cstdlib>

#include "levels.h"
#include "pool.h"
#include "tiles.h"
#include "types.h"

#define KERNEL_BODY "ceilings_body.h"
#include "each_level.h"

namespace millrace {

static constexpr int64_t PIECE = 4 << 20;

static float read_at(Level level, const uint8_t* from, int64_t bytes) {
#if defined(MILLRACE_X86_LEVELS)
  if (level >= Level::AVX512) return avx512::read_piece(from, bytes);
  if (level == Level::AVX2) return avx2::read_piece(from, bytes);
#endif
  (void)level;
  return portable::read_piece(from, bytes);
}

// `count` turns of the products of one thread, and the operations of each.
struct Multiply {
  float (*run)(int64_t count);
  int64_t operations;
};

static Multiply multiply_at(Level level, Format format) {
  constexpr int64_t FLOATS = 12 * 16 * 2;
#if defined(MILLRACE_X86_LEVELS)
  if (level == Level::AVX512_BF16) return {avx512::multiply_add_pairs, FLOATS * 2};
  if (level >= Level::AVX512) return {avx512::multiply_add, FLOATS};
  if (level == Level::AVX2) {
    if (format == Format::INT8) return {avx2::multiply_words, 6 * 16 * 2};
    if (format == Format::INT4) return {avx2::multiply_halves, 6 * 8 * 32 * 2};
    return {avx2::multiply_add, FLOATS};
  }
#endif
  (void)level, (void)format;
  return {portable::multiply_add, FLOATS};
}

#if defined(__x86_64__) || defined(MILLRACE_EMULATE_TILES)
#if defined(TILE_TARGET)
#define MAY_USE_TILES TILE_TARGET
#else
#define MAY_USE_TILES
#endif

// Two by two tiles, all four factors from the second cache: 4 * 2 * 16 * 16 * 32 operations a turn.
static MAY_USE_TILES void multiply_tiles(const uint8_t* factors, int64_t count) {
  constexpr int64_t STEPS = 256;  // 1 MiB of factors
  tiles_configure(FULL_TILES);
  tile_zero<0>(), tile_zero<1>(), tile_zero<2>(), tile_zero<3>();
  for (int64_t n = 0; n < count; n++) {
    const uint8_t* f = factors + n % STEPS * 4096;
    tile_load<4>(f, 64);
    tile_load<6>(f + 1024, 64);
    tile_product_bf16<0, 4, 6>();
    tile_load<7>(f + 2048, 64);
    tile_product_bf16<1, 4, 7>();
    tile_load<5>(f + 3072, 64);
    tile_product_bf16<2, 5, 6>();
    tile_product_bf16<3, 5, 7>();
  }
  tiles_release();
}
#endif

}  // namespace millrace

using namespace millrace;

#define EXPORT extern "C" __attribute__((visibility("default")))

// Read `bytes` from `from` with all threads; the result keeps the loads alive.
EXPORT float millrace_read(void* pool, int32_t level, const uint8_t* from, int64_t bytes) {
  float parts[64] = {};
  static_cast<Pool*>(pool)->each(ceil_div(bytes, PIECE), [&](int64_t i, int thread) {
    parts[thread % 64] += read_at(Level(level), from + i * PIECE, min_of(PIECE, bytes - i * PIECE));
  });
  float total = 0.0f;
  for (float part : parts) total += part;
  return total;
}

// Multiply with all threads what weights of `format` are multiplied with at AVX2, where each kind has a
// rate of its own; floats elsewhere. Returns the operations done. `factors`: 1 MiB per thread of bf16
// that are not zero, read at the AMX level only.
EXPORT int64_t millrace_multiply(void* pool, int32_t level, int64_t format, const uint8_t* factors,
                                 int64_t count) {
  Pool& threads = *static_cast<Pool*>(pool);
  int64_t pieces = threads.num_threads() * 4;
#if defined(__x86_64__) || defined(MILLRACE_EMULATE_TILES)
  if (Level(level) == Level::AMX) {
    threads.each(pieces, [&](int64_t, int thread) {
      multiply_tiles(factors + (int64_t(thread) << 20), count);
    });
    return pieces * count * 4 * 2 * 16 * 16 * 32;
  }
#endif
  (void)factors;
  Multiply multiply = multiply_at(Level(level), Format(format));
  float parts[64] = {};
  threads.each(pieces, [&](int64_t, int thread) { parts[thread % 64] += multiply.run(count); });
  return parts[0] == -1.0f ? 0 : pieces * count * multiply.operations;
}
