// What crosses from Python: operator records and the inputs of one step. `records.py` mirrors both.
//
// An operator is a kind, the count of rows it runs over (all tokens of the step, those whose logits
// are wanted, those whose final state is), and 64-bit words: addresses, sizes and doubles in the order of its own
// arguments struct. Buffers are planned before: a kernel allocates nothing and checks nothing that
// `records.py` has checked.
#pragma once
#include <cstdint>
#include <cstring>

namespace millrace {

using bf16 = uint16_t;
using f16 = uint16_t;

enum class Rows : int32_t { TOKENS, LOGITS, STATES };

enum class Kind : int32_t {
  LINEAR,
  EMBEDDING,
  TAKE_ROWS,
  RMS_NORM,
  ADD_RMS_NORM,
  ROPE,
  ATTENTION,
  SILU_MUL,
  HEAD_NORM,
  ROPE_SHIFT,
  ROTATION,
  COUNT
};

// How values are stored: plain arrays use the first three, packed weights all.
enum class Format : int64_t { F32, BF16, F16, INT8, INT4 };

struct Op {
  Kind kind;
  Rows rows;
  uint64_t words[14];

  // The words as the operator's own struct; memcpy is how C++ spells this cast.
  template <class Arguments>
  Arguments as() const {
    static_assert(sizeof(Arguments) <= sizeof(words));
    Arguments arguments;
    memcpy(&arguments, words, sizeof arguments);
    return arguments;
  }
};

// One step, as `worker/batch.py` gathers it; int32 arrays.
struct Step {
  int64_t num_tokens;
  int64_t num_logit_rows;
  int64_t num_state_rows;
  int64_t num_sequences;
  int64_t table_width;           // columns of block_tables
  int64_t block_size;            // cells of a block
  const int32_t* token_ids;      // [num_tokens]
  const int32_t* positions;      // [num_tokens], consecutive within a sequence
  const int32_t* cells;          // [num_tokens]: block * block_size + offset
  const int32_t* query_starts;   // [num_sequences + 1]
  const int32_t* block_tables;   // [num_sequences, table_width]
  const int32_t* logit_rows;     // [num_logit_rows]
  const int32_t* state_rows;     // [num_state_rows]

  int64_t count(Rows rows) const {
    if (rows == Rows::TOKENS) return num_tokens;
    return rows == Rows::LOGITS ? num_logit_rows : num_state_rows;
  }
};

inline float from_bits(uint32_t bits) {
  float value;
  memcpy(&value, &bits, sizeof value);
  return value;
}

inline uint32_t to_bits(float value) {
  uint32_t bits;
  memcpy(&bits, &value, sizeof bits);
  return bits;
}

inline float from_bf16(bf16 value) { return from_bits(uint32_t(value) << 16); }

// Round to nearest, ties to even; a NaN stays one.
inline bf16 to_bf16(float value) {
  uint32_t bits = to_bits(value);
  if ((bits & 0x7fffffff) > 0x7f800000) return bf16(bits >> 16 | 0x40);
  return bf16((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

inline float from_f16(f16 value) {
  uint32_t sign = uint32_t(value & 0x8000) << 16, rest = value & 0x7fff;
  if (rest >= 0x7c00) return from_bits(sign | 0x7f800000 | (rest & 0x3ff) << 13);
  if (rest >= 0x400) return from_bits(sign | ((rest << 13) + 0x38000000));
  return from_bits(sign | to_bits(float(rest) * 0x1p-24f));  // subnormal
}

constexpr int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }
inline int64_t min_of(int64_t a, int64_t b) { return a < b ? a : b; }
inline int64_t max_of(int64_t a, int64_t b) { return a > b ? a : b; }

}  // namespace millrace
