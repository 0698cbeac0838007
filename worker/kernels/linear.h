// The packed linear: out[t] = weight @ x[t] + bias, one weight layout and one order of summation
// for every number of rows.
//
// Outputs stand in panels of 16, one per lane. A panel holds its inputs in order, filled up with
// zeros to whole blocks; `linear_pack.cpp` writes it:
//   F32, F16  [K][16]          one input after the other
//   BF16      [K / 2][16][2]   inputs in pairs: a line of 64 bytes, sixteen lines are a tile of AMX;
//             [K / 4][2][16][2]  for AVX512_BF16, inputs k + 2 and k, then k + 3 and k + 1: a chain takes
//                              those of a line one after the other, the upper one first
//   INT8      [K / 4][16][4]   unsigned, value + 128
//   INT4      [K / 8][16][4]   inputs k .. k + 3 in the low halves, k + 4 .. k + 7 in the high ones,
//                              unsigned, value + 8
//
// Floats: the canonical dot product is that of the AMX tile instruction. Of every 32 inputs the even
// and the odd ones form a chain of fused multiply-adds from zero each; the two are added, then added
// to the sum so far. BF16 rounds the activations to bf16 first.
//
// Integers: activations are quantised per row and group of inputs, in the same way whatever the
// number of rows; products and sums over a group are exact; the groups are added in order by fused
// multiply-adds in single precision.
#pragma once
#include "types.h"

namespace millrace {

constexpr int64_t PANEL = 16;
constexpr int64_t BLOCK = 32;         // inputs of a float block
constexpr int64_t MOST_GROUP = 256;   // inputs that share a scale

struct LinearArguments {
  const float* x;        // [rows, num_inputs]
  const uint8_t* weight; // packed panels
  const uint8_t* scales; // INT8: float32 [outputs]; INT4: bf16 [panels][groups][16]
  const float* bias;     // [outputs] of whole panels, or null
  float* out;            // [rows, num_outputs]
  uint8_t* scratch;      // `Shape.scratch_width` floats a row and `scratch_rest` bytes, see `packed.py`
  int64_t num_inputs;
  int64_t num_outputs;
  Format format;
  int64_t group;         // of integer formats: inputs that share a scale, 64, 128 or (INT8) 256
  float* gated;          // [rows, num_outputs / 2], or null: silu of the first half times the second;
                         // `out` may then stay as it is
  // Not of the record, decided at each run: what is written past the caches, see `program.h`.
  bool out_past_caches, inputs_past_caches;
};

constexpr int64_t padded_inputs(Format format, int64_t num_inputs, int64_t group) {
  int64_t unit = format == Format::INT8 || format == Format::INT4 ? group : BLOCK;
  return (num_inputs + unit - 1) / unit * unit;
}

// What one row of activations becomes for the integer formats, one array after the other: the values,
// `value_bytes` each (1, or 2 where the level multiplies words), a scale per group, and per group
// what the offset of the unsigned weights adds too much: the accumulators start from its negative.
// The rows of a tile stand side by side: [inputs / 64][rows][64], then [groups][rows] twice.
struct QuantisedRow {
  int64_t num_groups, values_bytes, stride;

  constexpr QuantisedRow(int64_t padded, int64_t group, int64_t value_bytes)
      : num_groups(padded / group),
        values_bytes(padded * value_bytes),
        stride((values_bytes + num_groups * 8 + 63) / 64 * 64) {}
};

// Bytes of one panel's weights for `inputs` inputs.
constexpr int64_t panel_bytes(Format format, int64_t inputs) {
  switch (format) {
    case Format::F32: return inputs * PANEL * 4;
    case Format::INT8: return inputs * PANEL;
    case Format::INT4: return inputs * PANEL / 2;
    default: return inputs * PANEL * 2;
  }
}

}  // namespace millrace
