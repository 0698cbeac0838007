// Linear in float32, for models stored so: out[t, n] = scale[n] sum_k weight[n, k] x[t, k] + bias[n].
//
// A lane takes every 32nd input in order and the warp adds the lanes in a fixed tree: the same bits at every number of
// tokens. For parity with references, not for speed.
#include "device.cuh"

constexpr int TOKENS = 8;

// x: float [num_tokens, K]; weight: float or int8_t [N, K]; scale, bias: float [N] or null; out: float [num_tokens, N].
// Grid (ceil(N / 4), ceil(num_tokens / 8)), 128 threads: a warp an output.
template <class W>
__global__ void __launch_bounds__(128)
linear_f32(float* out, const float* x, const W* weight, const float* scale, const float* bias, int num_tokens, int K,
           int N) {
  const int lane = threadIdx.x & 31, n = blockIdx.x * 4 + (threadIdx.x >> 5), first = blockIdx.y * TOKENS;
  wait_for_predecessor();
  launch_successor();
  if (n >= N) return;
  float sum[TOKENS];
#pragma unroll
  for (int j = 0; j < TOKENS; j++) sum[j] = 0.f;
  for (int k = lane; k < K; k += 32) {
    const float w = to_float(weight[uint64_t(n) * K + k]);
#pragma unroll
    for (int j = 0; j < TOKENS; j++)
      if (first + j < num_tokens) sum[j] = __fmaf_rn(w, x[uint64_t(first + j) * K + k], sum[j]);
  }
#pragma unroll
  for (int j = 0; j < TOKENS; j++) {
    const float total = __fmul_rn(warp_sum(sum[j]), scale ? scale[n] : 1.f);
    if (lane == 0 && first + j < num_tokens) out[uint64_t(first + j) * N + n] = __fadd_rn(total, bias ? bias[n] : 0.f);
  }
}
