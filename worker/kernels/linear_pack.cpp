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

static float rounded(float value) { return (value + 12582912.0f) - 12582912.0f; }
static float clamped(float value, float low, float high) {
  return value < low ? low : value > high ? high : value;
}

// int8: one scale per output, the largest size becomes 127.
static void pack_int8(const Source& s, int64_t row, int64_t count, int64_t padded, uint8_t* panel,
                      float* scales) {
  memset(panel, 128, size_t(panel_bytes(Format::INT8, padded)));
  for (int64_t n = 0; n < PANEL; n++) scales[n] = 0.0f;
  for (int64_t n = 0; n < count; n++) {
    float most = 0.0f;
    for (int64_t k = 0; k < s.num_inputs; k++) {
      float size = __builtin_fabsf(s.at(row + n, k));
      most = size > most ? size : most;
    }
    scales[n] = most / 127.0f;
    float inverse = most > 1e-30f ? 127.0f / most : 0.0f;
    for (int64_t k = 0; k < s.num_inputs; k++) {
      float value = clamped(rounded(s.at(row + n, k) * inverse), -127.0f, 127.0f);
      panel[k / 4 * 4 * PANEL + n * 4 + k % 4] = uint8_t(int(value) + 128);
    }
  }
}

// Squared error of a group at this scale.
static float error_at(const float* values, int64_t count, float scale) {
  float inverse = scale != 0.0f ? 1.0f / scale : 0.0f, error = 0.0f;
  for (int64_t k = 0; k < count; k++) {
    float lost = clamped(rounded(values[k] * inverse), -8.0f, 7.0f) * scale - values[k];
    error += lost * lost;
  }
  return error;
}

// The bf16 scale of -8..7 that loses least, of a few: the extreme becomes -8 or -7, or is cut off a
// little so that all others get finer steps.
static float best_scale(const float* values, int64_t count) {
  constexpr float STEPS[] = {-8.0f, -7.0f, -8.4f, -8.9f, -9.5f, 7.0f};
  float extreme = 0.0f;
  for (int64_t k = 0; k < count; k++)
    if (__builtin_fabsf(values[k]) > __builtin_fabsf(extreme)) extreme = values[k];
  float best = 0.0f, least = error_at(values, count, 0.0f);
  for (float steps : STEPS) {
    float scale = from_bf16(to_bf16(extreme / steps)), error = error_at(values, count, scale);
    if (error < least) best = scale, least = error;
  }
  return best;
}

static void pack_int4(const Source& s, int64_t row, int64_t count, int64_t padded, int64_t group,
                      uint8_t* panel, bf16* scales) {
  memset(panel, 0x88, size_t(panel_bytes(Format::INT4, padded)));
  memset(scales, 0, size_t(padded / group * PANEL) * 2);
  float values[128];
  for (int64_t n = 0; n < count; n++)
    for (int64_t first = 0; first < s.num_inputs; first += group) {
      int64_t inputs = min_of(group, s.num_inputs - first);
      for (int64_t k = 0; k < inputs; k++) values[k] = s.at(row + n, first + k);
      float scale = best_scale(values, inputs), inverse = scale != 0.0f ? 1.0f / scale : 0.0f;
      scales[first / group * PANEL + n] = to_bf16(scale);
      for (int64_t i = 0; i < inputs; i++) {
        int64_t k = first + i;
        int value = int(clamped(rounded(values[i] * inverse), -8.0f, 7.0f)) + 8;
        uint8_t& both = panel[k / 8 * 4 * PANEL + n * 4 + k % 4];
        both = uint8_t(k % 8 < 4 ? (both & 0xf0) | value : (both & 0x0f) | value << 4);
      }
    }
}

}  // namespace millrace

using namespace millrace;

struct PackArguments {
  const uint8_t* rows;
  int64_t source_format;
  int64_t num_rows;
  int64_t num_inputs;
  uint8_t* weight;
  uint8_t* scales;
  int64_t format;
  int64_t group;
  int64_t first;  // the output that row 0 becomes: a multiple of 16
};

extern "C" __attribute__((visibility("default"))) void millrace_pack(void* pool,
                                                                     const PackArguments* a) {
  Source source{a->rows, Format(a->source_format), a->num_rows, a->num_inputs};
  Format to = Format(a->format);
  int64_t padded = padded_inputs(to, a->num_inputs, a->group), bytes = panel_bytes(to, padded);
  static_cast<Pool*>(pool)->each(ceil_div(a->num_rows, PANEL), [&](int64_t p, int) {
    int64_t row = p * PANEL, count = min_of(PANEL, a->num_rows - row), place = a->first / PANEL + p;
    uint8_t* panel = a->weight + place * bytes;
    if (to == Format::INT8)
      pack_int8(source, row, count, padded, panel, (float*)a->scales + place * PANEL);
    else if (to == Format::INT4)
      pack_int4(source, row, count, padded, a->group, panel,
                (bf16*)a->scales + place * (padded / a->group) * PANEL);
    else
      pack_floats(source, row, count, to, padded, panel);
  });
}
