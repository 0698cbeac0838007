// Packing: rows of a checkpoint into panels, at load.
#include "levels.h"
#include "linear.h"
#include "program.h"

namespace millrace {

// As `packed.py` fills it.
struct PackArguments {
  const uint8_t* rows;   // [num_rows, num_inputs] in `source_format`
  Format source_format;  // F32, BF16 or F16
  int64_t num_rows;
  int64_t num_inputs;
  uint8_t* weight;
  uint8_t* scales;
  Format format;
  int64_t group;
  int64_t first;         // the output that row 0 becomes: a multiple of 16
};

// Rows as they lie in the checkpoint.
struct Source {
  const uint8_t* rows;
  Format format;
  int64_t num_inputs;
};

// Round to nearest, ties to even; overflow gives infinity.
static inline f16 to_f16(float value) {
  uint32_t bits = to_bits(value), sign = bits >> 16 & 0x8000;
  float size = from_bits(bits & 0x7fffffff);
  if (size != size) return f16(sign | 0x7e00);
  if (size >= 65520.0f) return f16(sign | 0x7c00);
  if (size < 0x1p-14f) return f16(sign | uint32_t(__builtin_rintf(size * 0x1p24f)));
  uint32_t rest = to_bits(size) - 0x38000000;
  return f16(sign | (rest + 0xfff + (rest >> 13 & 1)) >> 13);
}

}  // namespace millrace

#define KERNEL_BODY "linear_pack_body.h"
#include "each_level.h"

using namespace millrace;

static void pack_at(Level level, const PackArguments& a, int64_t panel) {
#if defined(MILLRACE_X86_LEVELS)
  if (level >= Level::AVX512)
    return avx512::pack_panel(a, panel, level == Level::AVX512_BF16);
  if (level == Level::AVX2) return avx2::pack_panel(a, panel);
#endif
  (void)level;
  portable::pack_panel(a, panel);
}

extern "C" __attribute__((visibility("default"))) void millrace_pack(void* pool, int32_t level,
                                                                     const PackArguments* a) {
  FlushDenormals flush;  // as the other threads do: who packs a panel decides no bit
  static_cast<Pool*>(pool)->each(ceil_div(a->num_rows, PANEL), [&](int64_t panel, int) {
    pack_at(Level(level), *a, panel);
  });
}
