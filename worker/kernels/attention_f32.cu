// Paged attention in float32, for models stored so; see paged_attention.cu for what it computes.
//
// A warp takes one token and query head and walks over the keys 32 at a time, at absolute positions, with a running
// maximum: a row's bits depend on its own tokens only. For parity with references, not for speed.
#include "device.cuh"

struct Shape {
  int num_heads, num_kv_heads, page_shift, max_pages, window;
  float scale_log2;
};

// q, out: float [num_tokens, heads, D]; owners: int [num_tokens], rows of `tables`. Grid (num_tokens, heads), 32 threads.
template <int D>
__global__ void __launch_bounds__(32)
attention_f32(float* out, const float* q, const float* keys, const float* values, const int* tables, const int* owners,
              const int* positions, Shape shape) {
  constexpr int PER_LANE = (D + 31) / 32;
  SHARED_ARRAY(float, query, D);
  const int lane = threadIdx.x, token = blockIdx.x, head = blockIdx.y;
  wait_for_predecessor();
  launch_successor();
  const int position = positions[token], kv_head = head / (shape.num_heads / shape.num_kv_heads);
  const int* table = tables + uint64_t(owners[token]) * shape.max_pages;
  const uint64_t row = (uint64_t(token) * shape.num_heads + head) * D;
  for (int d = lane; d < D; d += 32) query[d] = q[row + d];
  __syncthreads();
  float maximum = -INFINITY, sum = 0.f, total[PER_LANE];
#pragma unroll
  for (int i = 0; i < PER_LANE; i++) total[i] = 0.f;
  const int oldest = shape.window && position >= shape.window ? position - shape.window + 1 : 0;
  for (int first = oldest / 32 * 32; first <= position; first += 32) {
    const int mine = first + lane;
    const bool is_seen = mine >= oldest && mine <= position;
    uint64_t place = 0;
    float score = -INFINITY;
    if (is_seen) {
      const uint64_t page = table[mine >> shape.page_shift];
      place = (((page * shape.num_kv_heads + kv_head) << shape.page_shift) + (mine & ((1 << shape.page_shift) - 1))) * D;
      score = 0.f;
      for (int d = 0; d < D; d++) score = __fmaf_rn(query[d], keys[place + d], score);
      score *= shape.scale_log2;
    }
    const float both = fmaxf(maximum, warp_max(score)), keep = exp2f(maximum - both);
    const float weight = exp2f(score - both);
    sum = sum * keep + warp_sum(weight);
    maximum = both;
#pragma unroll
    for (int i = 0; i < PER_LANE; i++) total[i] *= keep;
    for (int other = 0; other < 32; other++) {
      const float w = __shfl_sync(ALL_LANES, weight, other);
      const uint64_t theirs = __shfl_sync(ALL_LANES, place, other);
      if (w == 0.f) continue;  // hidden: what lies there may be nan
#pragma unroll
      for (int i = 0; i < PER_LANE; i++)
        if (lane + i * 32 < D) total[i] = __fmaf_rn(w, values[theirs + lane + i * 32], total[i]);
    }
  }
#pragma unroll
  for (int i = 0; i < PER_LANE; i++)
    if (lane + i * 32 < D) out[row + lane + i * 32] = total[i] / sum;
}
