// Residual addition and RMS normalisation: sum = residual + x; out = sum / sqrt(mean(sum^2) + eps) * weight.
#include "device.cuh"

constexpr int THREADS = 256;

// residual: float [*, width]; x: float [*, width] or null; out: T [gridDim.x, width]. With `rows`, row i is row rows[i]
// of residual and x, and the sum is not kept; without, it replaces the residual. A thread's share of a row is fixed.
template <class T>
__global__ void __launch_bounds__(THREADS)
add_rms_norm(T* out, float* residual, const float* x, const float* weight, const int* rows, int width, float eps) {
  SHARED_ARRAY(float, parts, THREADS / 32);
  wait_for_predecessor();
  launch_successor();
  const uint64_t start = uint64_t(rows ? rows[blockIdx.x] : int(blockIdx.x)) * width;
  float squares = 0.f;
  for (int i = threadIdx.x; i < width; i += THREADS) {
    float v = residual[start + i];
    if (x) {
      v += x[start + i];
      if (!rows) residual[start + i] = v;
    }
    squares = __fmaf_rn(v, v, squares);
  }
  squares = warp_sum(squares);
  if ((threadIdx.x & 31) == 0) parts[threadIdx.x >> 5] = squares;
  __syncthreads();
  float total = 0.f;
#pragma unroll
  for (int i = 0; i < THREADS / 32; i++) total += parts[i];
  const float scale = 1.f / sqrtf(total / float(width) + eps);
  for (int i = threadIdx.x; i < width; i += THREADS) {
    float v = residual[start + i];
    if (x && rows) v += x[start + i];
    out[uint64_t(blockIdx.x) * width + i] = from_float<T>(v * scale * weight[i]);
  }
}
