// Packing, once per level: plain loops that the compiler makes vectors of. No sum depends on how wide
// they are, so that a model is quantised alike everywhere.

// Inputs first..first+count-1 of one row as float32.
inline void read_inputs(const Source& s, int64_t row, int64_t first, int64_t count, float* out) {
  int64_t start = row * s.num_inputs + first;
  switch (s.format) {
    case Format::F32: memcpy(out, (const float*)s.rows + start, size_t(count) * 4); break;
    case Format::BF16:
      for (int64_t k = 0; k < count; k++) out[k] = from_bf16(((const bf16*)s.rows)[start + k]);
      break;
    default:
      for (int64_t k = 0; k < count; k++) out[k] = from_f16(((const f16*)s.rows)[start + k]);
  }
}

inline float rounded(float value) { return (value + 12582912.0f) - 12582912.0f; }

// What is not a number becomes `low`.
inline float clamped(float value, float low, float high) {
  return value > low ? (value < high ? value : high) : low;
}

// Where input k of output n stands in a panel of BF16.
inline int64_t place_of_bf16(int64_t k, int64_t n, bool for_pairs) {
  if (!for_pairs) return k / 2 * 2 * PANEL + n * 2 + k % 2;
  return (k / 4 * 2 + k % 2) * 2 * PANEL + n * 2 + 1 - k / 2 % 2;
}

// One panel of float formats; `count` of its 16 outputs exist.
void pack_floats(const Source& s, int64_t row, int64_t count, Format to, int64_t padded,
                 bool for_pairs, uint8_t* panel) {
  constexpr int64_t STRIP = 256;
  memset(panel, 0, size_t(panel_bytes(to, padded)));
  float values[STRIP];
  for (int64_t first = 0; first < s.num_inputs; first += STRIP)
    for (int64_t n = 0; n < count; n++) {
      int64_t inputs = min_of(STRIP, s.num_inputs - first);
      read_inputs(s, row + n, first, inputs, values);
      for (int64_t i = 0; i < inputs; i++) {
        int64_t k = first + i;
        switch (to) {
          case Format::F32: ((float*)panel)[k * PANEL + n] = values[i]; break;
          case Format::F16: ((f16*)panel)[k * PANEL + n] = to_f16(values[i]); break;
          default: ((bf16*)panel)[place_of_bf16(k, n, for_pairs)] = to_bf16(values[i]);
        }
      }
    }
}

// The larger size, as bits: what is not a number is above infinity, and no later size hides it.
inline uint32_t larger_size(uint32_t most, float value) {
  uint32_t size = to_bits(value) & 0x7fffffff;
  return size > most ? size : most;
}

// int8: one scale per output, the largest size becomes 127. It is not finite where a weight is not.
void pack_int8(const Source& s, int64_t row, int64_t count, int64_t padded, uint8_t* panel,
               float* scales) {
  constexpr int64_t STRIP = 256;
  memset(panel, 128, size_t(panel_bytes(Format::INT8, padded)));
  for (int64_t n = 0; n < PANEL; n++) scales[n] = 0.0f;
  float values[STRIP];
  for (int64_t n = 0; n < count; n++) {
    uint32_t size = 0;
    for (int64_t first = 0; first < s.num_inputs; first += STRIP) {
      int64_t inputs = min_of(STRIP, s.num_inputs - first);
      read_inputs(s, row + n, first, inputs, values);
      for (int64_t i = 0; i < inputs; i++) size = larger_size(size, values[i]);
    }
    float most = from_bits(size);
    scales[n] = most / 127.0f;
    float inverse = most > 1e-30f ? 127.0f / most : 0.0f;
    for (int64_t first = 0; first < s.num_inputs; first += STRIP) {
      int64_t inputs = min_of(STRIP, s.num_inputs - first);
      read_inputs(s, row + n, first, inputs, values);
      for (int64_t i = 0; i < inputs; i++) {
        int64_t k = first + i;
        float value = clamped(rounded(values[i] * inverse), -127.0f, 127.0f);
        panel[k / 4 * 4 * PANEL + n * 4 + k % 4] = uint8_t(int(value) + 128);
      }
    }
  }
}

// Squared error of a group at this scale.
inline float error_at(const float* values, int64_t group, float scale) {
  float inverse = scale != 0.0f ? 1.0f / scale : 0.0f, errors[16] = {};
  for (int64_t k = 0; k < group; k += 16)
    for (int64_t i = 0; i < 16; i++) {
      float lost = clamped(rounded(values[k + i] * inverse), -8.0f, 7.0f) * scale - values[k + i];
      errors[i] += lost * lost;
    }
  for (int64_t half = 8; half > 0; half /= 2)
    for (int64_t i = 0; i < half; i++) errors[i] += errors[i + half];
  return errors[0];
}

// The bf16 scale of -8..7 that loses least, of a few: the extreme becomes -8 or -7, or is cut off a
// little so that all others get finer steps. Not a number where a weight is not finite.
inline float best_scale(const float* values, int64_t group) {
  constexpr float STEPS[] = {-8.0f, -7.0f, -8.4f, -8.9f, -9.5f};
  float extreme = 0.0f;
  uint32_t size = 0;
  for (int64_t k = 0; k < group; k++) size = larger_size(size, values[k]);
  if (size >= to_bits(__builtin_inff())) return __builtin_nanf("");
  for (int64_t k = 0; k < group; k++)
    if (__builtin_fabsf(values[k]) > __builtin_fabsf(extreme)) extreme = values[k];
  float best = 0.0f, least = error_at(values, group, 0.0f);
  for (float steps : STEPS) {
    float scale = from_bf16(to_bf16(extreme / steps)), error = error_at(values, group, scale);
    if (error < least) best = scale, least = error;
  }
  return best;
}

void pack_int4(const Source& s, int64_t row, int64_t count, int64_t padded, int64_t group,
               uint8_t* panel, bf16* scales) {
  memset(panel, 0x88, size_t(panel_bytes(Format::INT4, padded)));
  memset(scales, 0, size_t(padded / group * PANEL) * 2);
  for (int64_t n = 0; n < count; n++)
    for (int64_t first = 0; first < s.num_inputs; first += group) {
      float values[128] = {};
      uint8_t steps[128];
      read_inputs(s, row + n, first, min_of(group, s.num_inputs - first), values);
      float scale = best_scale(values, group), inverse = scale != 0.0f ? 1.0f / scale : 0.0f;
      scales[first / group * PANEL + n] = to_bf16(scale);
      for (int64_t i = 0; i < group; i++)
        steps[i] = uint8_t(int(clamped(rounded(values[i] * inverse), -8.0f, 7.0f)) + 8);
      for (int64_t i = 0; i < group; i += 8) {
        uint8_t* line = panel + (first + i) / 8 * 4 * PANEL + n * 4;
        for (int64_t j = 0; j < 4; j++) line[j] = uint8_t(steps[i + j] | steps[i + 4 + j] << 4);
      }
    }
}

void pack_panel(const PackArguments& a, int64_t p, bool for_pairs = false) {
  Source source{a.rows, a.source_format, a.num_inputs};
  int64_t padded = padded_inputs(a.format, a.num_inputs, a.group);
  int64_t row = p * PANEL, count = min_of(PANEL, a.num_rows - row), place = a.first / PANEL + p;
  uint8_t* panel = a.weight + place * panel_bytes(a.format, padded);
  if (a.format == Format::INT8)
    pack_int8(source, row, count, padded, panel, (float*)a.scales + place * PANEL);
  else if (a.format == Format::INT4)
    pack_int4(source, row, count, padded, a.group, panel,
              (bf16*)a.scales + place * (padded / a.group) * PANEL);
  else
    pack_floats(source, row, count, a.format, padded, for_pairs, panel);
}
