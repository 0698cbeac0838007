// The arguments of the operators around the linears, in the order in which `backends/cpu.py`
// records them. Activations are float32 and contiguous.
#pragma once
#include "types.h"

namespace millrace {

// out[t] = table[token_ids[t]].
struct EmbeddingArguments {
  const uint8_t* table;  // [vocabulary, width], as it lies in the checkpoint
  float* out;            // [rows, width]
  int64_t width;
  Format format;
};

// out[r] = x[rows[r]], `rows` being those of the step whose logits, or states, are wanted.
struct TakeRowsArguments {
  const float* x;  // [tokens, width]
  float* out;      // [rows, width]
  int64_t width;
};

struct RmsNormArguments {
  const float* x;       // [rows, width]
  const float* weight;  // [width]
  float* out;           // [rows, width]
  int64_t width;
  double eps;
};

// sum = x + residual; out = rms_norm(sum)
struct AddRmsNormArguments {
  const float* x;         // [rows, width]
  const float* residual;  // [rows, width]
  const float* weight;    // [width]
  float* out;             // [rows, width]
  float* sum;             // [rows, width]
  int64_t width;
  double eps;
};

constexpr int64_t MAX_HEAD_DIM = 256;

// A block of a cache is [num_kv_heads] parts of what attention reads in one go. Keys lie as it
// multiplies them, input by input for all keys of the block: [head_dim / 2][block_size][2] in bf16,
// where a pair of inputs of sixteen keys is a line, [head_dim][block_size] in float32. Values lie
// [block_size][head_dim]; of bf16 each whole run of 32 is sixteen words of output i beside 16 + i.
struct Block {
  int64_t size;  // cells
  int64_t num_kv_heads, head_dim;

  int64_t part(int64_t block, int64_t kv_head) const {
    return (block * num_kv_heads + kv_head) * size * head_dim;
  }
};

// cos, then sin, of every token's position times the frequencies; for all layers of a step.
struct RotationArguments {
  const float* frequencies;  // [head_dim / 2], radians per position
  float* out;                // [tokens, head_dim]
  int64_t head_dim;
  double factor;             // of cos and sin
};

// Rotate q and k, store k and v in the cache, write q.
struct RopeArguments {
  const float* qkv;    // [tokens, (num_heads + 2 num_kv_heads) head_dim]
  float* q;            // [tokens, num_heads, head_dim]
  uint8_t* keys;       // [num_blocks] of Block
  uint8_t* values;
  int64_t num_heads;
  int64_t num_kv_heads;
  int64_t head_dim;
  Format cache_format;  // F32 or BF16
  const float* turns;   // [tokens, head_dim], of a rotation
};

// out = qkv with every head of q and k rms-normalised.
struct HeadNormArguments {
  const float* qkv;       // [tokens, (num_heads + 2 num_kv_heads) head_dim]
  const float* q_weight;  // [head_dim]
  const float* k_weight;
  float* out;             // as qkv
  int64_t num_heads;
  int64_t num_kv_heads;
  int64_t head_dim;
  double eps;
};

// Turn the stored keys of some cells by `delta` positions. Run by itself: the step's tokens are the
// cells, and its `cells` name them.
struct RopeShiftArguments {
  uint8_t* keys;
  int64_t num_kv_heads;
  int64_t head_dim;
  Format cache_format;
  const float* frequencies;
  int64_t delta;
};

struct AttentionArguments {
  const float* q;         // [tokens, num_heads, head_dim]
  const uint8_t* keys;    // as above
  const uint8_t* values;
  float* out;             // [tokens, num_heads head_dim]
  int64_t num_heads;
  int64_t num_kv_heads;
  int64_t head_dim;
  Format cache_format;
  int64_t window;         // a token sees the last `window` positions, its own included; 0 = all
  uint8_t* scratch;       // ATTENTION_SCRATCH bytes
};

struct SiluMulArguments {
  const float* gate_up;  // [tokens, 2 width], gate beside up
  float* out;            // [tokens, width]
  int64_t width;
};

}  // namespace millrace
