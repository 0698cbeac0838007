// Packing: rows of a checkpoint into panels. Runs at load, on whatever the compiler makes of it.
#include "linear.h"
#include "program.h"

namespace millrace {

// Rows as they lie in the checkpoint.
struct Source {
  const uint8_t* rows;
  Format format;  // F32, BF16 or F16
  int64_t num_rows;
  int64_t num_inputs;

  float at(int64_t row, int64_t k) const {
    int64_t i = row * num_inputs + k;
    switch (format) {
      case Format::F32: return ((const float*)rows)[i];
      case Format::BF16: return from_bf16(((const bf16*)rows)[i]);
      default: return from_f16(((const f16*)rows)[i]);
    }
  }
};

// Round to nearest, ties to even; overflow gives infinity.
static f16 to_f16(float value) {
  uint32_t bits = to_bits(value), sign = bits >> 16 & 0x8000;
  float size = from_bits(bits & 0x7fffffff);
  if (size != size) return f16(sign | 0x7e00);
  if (size >= 65520.0f) return f16(sign | 0x7c00);
  if (size < 0x1p-14f) return f16(sign | uint32_t(__builtin_rintf(size * 0x1p24f)));
  uint32_t rest = to_bits(size) - 0x38000000;
  return f16(sign | (rest + 0xfff + (rest >> 13 & 1)) >> 13);
}

// One panel of float formats; `count` of its 16 outputs exist.
static void pack_floats(const Source& s, int64_t row, int64_t count, Format to, int64_t padded,
                        uint8_t* panel) {
  memset(panel, 0, size_t(panel_bytes(to, padded)));
  for (int64_t n = 0; n < count; n++)
    for (int64_t k = 0; k < s.num_inputs; k++) {
      float value = s.at(row + n, k);
      switch (to) {
        case Format::F32: ((float*)panel)[k * PANEL + n] = value; break;
        case Format::F16: ((f16*)panel)[k * PANEL + n] = to_f16(value); break;
        default: ((bf16*)panel)[k / 2 * 2 * PANEL + n * 2 + k % 2] = to_bf16(value);
      }
    }
}

}  // namespace millrace

using namespace millrace;

// Pack rows 0..num_rows-1 of `rows` as outputs first..first+num_rows-1 of `weight`; `first` is a
// multiple of 16.
extern "C" __attribute__((visibility("default"))) void millrace_pack(
    void* pool, const uint8_t* rows, int64_t source_format, int64_t num_rows, int64_t num_inputs,
    uint8_t* weight, int64_t format, int64_t first) {
  Source source{rows, Format(source_format), num_rows, num_inputs};
  Format to = Format(format);
  int64_t padded = padded_inputs(to, num_inputs, 0), bytes = panel_bytes(to, padded);
  static_cast<Pool*>(pool)->each(ceil_div(num_rows, PANEL), [&](int64_t p, int) {
    int64_t row = p * PANEL;
    pack_floats(source, row, min_of(PANEL, num_rows - row), to, padded,
                weight + (first / PANEL + p) * bytes);
  });
}
