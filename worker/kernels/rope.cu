// Rotary positions: the two halves of a head are pairs (a, b) -> (a cos - b sin, b cos + a sin).
//
// rope_table makes cos and sin once a step, for all layers; rope turns q and k, stores k and v in their pages and
// normalises the heads of q and k before that where the family wants it; rope_shift turns keys that lie there.
#include "device.cuh"

// Angle = position * frequency in float; its sine by sincospi, which needs no table for large arguments.
__device__ __forceinline__ float2 turn_of(float angle, float factor) {
  const double turns = double(angle) * 0.318309886183790671538;  // in half turns
  const float rest = float(turns - 2.0 * floor(turns * 0.5));
  float sine, cosine;
  sincospif(rest, &sine, &cosine);
  return make_float2(cosine * factor, sine * factor);
}

// out: float2 {cos, sin} [num_tokens, half]; frequencies: float [half]. Grid ceil(num_tokens * half / 128).
__global__ void __launch_bounds__(128)
rope_table(float2* out, const int* positions, const float* frequencies, float factor, int num_tokens, int half) {
  wait_for_predecessor();
  launch_successor();
  const int i = blockIdx.x * 128 + threadIdx.x;
  if (i < num_tokens * half) out[i] = turn_of(float(positions[i / half]) * frequencies[i % half], factor);
}

struct Heads {
  int num_heads, num_kv_heads, page_shift;  // pages of 1 << page_shift tokens
  float eps;
};

// Where the head of a cell's key or value begins.
__device__ __forceinline__ uint64_t place_of(int cell, int kv_head, int head_dim, const Heads& heads) {
  const uint64_t page = cell >> heads.page_shift, offset = cell & ((1 << heads.page_shift) - 1);
  return (((page * heads.num_kv_heads + kv_head) << heads.page_shift) + offset) * head_dim;
}

// qkv: T [num_tokens, (heads + 2 kv heads) D]; q: T [num_tokens, heads, D]; cells: int [num_tokens], page * page_size +
// offset; pages as in paged_attention.cu; q_weight, k_weight: float [D] or null. Grid (num_tokens, ceil(heads of qkv /
// 4)), 128 threads: a warp a head.
template <class T, int D>
__global__ void __launch_bounds__(128)
rope(T* q, T* keys, T* values, const T* qkv, const float2* table, const int* cells, const float* q_weight,
     const float* k_weight, Heads heads) {
  constexpr int HALF = D / 2, PER_LANE = (HALF + 31) / 32;
  const int lane = threadIdx.x & 31, head = blockIdx.y * 4 + (threadIdx.x >> 5), token = blockIdx.x;
  const int num_turned = heads.num_heads + heads.num_kv_heads, all = num_turned + heads.num_kv_heads;
  wait_for_predecessor();
  launch_successor();
  if (head >= all) return;
  const T* from = qkv + (uint64_t(token) * all + head) * D;
  const bool is_query = head < heads.num_heads, is_value = head >= num_turned;
  T* to = q + (uint64_t(token) * heads.num_heads + head) * D;
  if (!is_query) {
    const int kv_head = head - (is_value ? num_turned : heads.num_heads);
    to = (is_value ? values : keys) + place_of(cells[token], kv_head, D, heads);
  }
  float a[PER_LANE], b[PER_LANE], squares = 0.f;
#pragma unroll
  for (int i = 0; i < PER_LANE; i++) {
    const int place = lane + i * 32;
    a[i] = place < HALF ? to_float(from[place]) : 0.f;
    b[i] = place < HALF ? to_float(from[place + HALF]) : 0.f;
    squares += a[i] * a[i] + b[i] * b[i];
  }
  const float* weight = is_value ? nullptr : is_query ? q_weight : k_weight;
  if (weight) {
    const float scale = 1.f / sqrtf(warp_sum(squares) / float(D) + heads.eps);
#pragma unroll
    for (int i = 0; i < PER_LANE; i++) {
      const int place = lane + i * 32;
      if (place >= HALF) continue;
      a[i] *= scale * weight[place];
      b[i] *= scale * weight[place + HALF];
    }
  }
#pragma unroll
  for (int i = 0; i < PER_LANE; i++) {
    const int place = lane + i * 32;
    if (place >= HALF) continue;
    float2 turn = make_float2(1.f, 0.f);
    if (!is_value) turn = table[uint64_t(token) * HALF + place];
    to[place] = from_float<T>(a[i] * turn.x - b[i] * turn.y);
    to[place + HALF] = from_float<T>(b[i] * turn.x + a[i] * turn.y);
  }
}

// Turn the keys of cells[blockIdx.x], all heads, by `delta` positions. 32 threads.
template <class T, int D>
__global__ void __launch_bounds__(32)
rope_shift(T* keys, const int* cells, const float* frequencies, int delta, Heads heads) {
  constexpr int HALF = D / 2;
  wait_for_predecessor();
  launch_successor();
  const int cell = cells[blockIdx.x];
  for (int i = threadIdx.x; i < heads.num_kv_heads * HALF; i += 32) {
    const int head = i / HALF, place = i % HALF;
    T* key = keys + place_of(cell, head, D, heads);
    const float2 turn = turn_of(float(delta) * frequencies[place], 1.f);
    const float a = to_float(key[place]), b = to_float(key[place + HALF]);
    key[place] = from_float<T>(a * turn.x - b * turn.y);
    key[place + HALF] = from_float<T>(b * turn.x + a * turn.y);
  }
}
