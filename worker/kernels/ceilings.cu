// The most products a chip can do in a second, for benchmarks: matrix instructions over and over, on ones.
//
// A group of 128 threads multiplies [64, 16] by [16, 256] `rounds` times and adds: 32 sums of 4 in each thread, so that no
// instruction waits for another's result. mma is what the kernels here use, on every chip; wgmma is the fastest of Hopper.
#include "device.cuh"

constexpr uint32_t ONES = 0x3f803f80u;

__device__ __forceinline__ void store_total(float* out, const float (&d)[128]) {
  float total = 0.f;
#pragma unroll
  for (int i = 0; i < 128; i++) total += d[i];
  out[uint64_t(blockIdx.x) * 256 + threadIdx.x] = total;
}

// out: float [gridDim.x, 256], each 128 * 16 * rounds. 256 threads: two groups.
__global__ void __launch_bounds__(256, 1) matrix_rate_mma(float* out, int rounds) {
  float sum[32][4], d[128];
#pragma unroll
  for (int i = 0; i < 32; i++)
#pragma unroll
    for (int c = 0; c < 4; c++) sum[i][c] = 0.f;
  const uint32_t a[4] = {ONES, ONES, ONES, ONES};
  wait_for_predecessor();
  for (int round = 0; round < rounds; round++)
#pragma unroll
    for (int i = 0; i < 32; i++) mma<bf16>(sum[i], a, ONES, ONES);
#pragma unroll
  for (int i = 0; i < 128; i++) d[i] = sum[i / 4][i % 4];
  launch_successor();
  store_total(out, d);
}

// The same with the widest instruction of the chip it is compiled for; nothing where that is mma.
__global__ void __launch_bounds__(256, 1) matrix_rate_wgmma(float* out, int rounds) {
  wait_for_predecessor();
#ifdef HAS_WARPGROUP_MMA
  SHARED_ARRAY(bf16, ones, (64 + 256) * 16);
  for (int i = threadIdx.x; i < (64 + 256) * 16; i += 256) ones[i] = bf16{uint16_t(ONES)};
  __syncthreads();
  float d[128];
#pragma unroll
  for (int i = 0; i < 128; i++) d[i] = 0.f;
  warpgroup_start(d);
  for (int round = 0; round < rounds; round++) warpgroup_mma(d, ones, ones + 64 * 16);
  warpgroup_wait(d);
  store_total(out, d);
#endif
  launch_successor();
}
