// out = gate / (1 + exp(-gate)) * up, with gate beside up.
#include "device.cuh"

// gate_up: T [gridDim.x, 2 width]; out: T [gridDim.x, width]. Grid (rows, ceil(width / 256)), 256 threads: the first
// direction alone has room for more than 65,535.
template <class T>
__global__ void __launch_bounds__(256) silu_mul(T* out, const T* gate_up, int width) {
  wait_for_predecessor();
  launch_successor();
  const int i = blockIdx.y * 256 + threadIdx.x;
  if (i >= width) return;
  const uint64_t row = uint64_t(blockIdx.x) * 2 * width;
  const float gate = to_float(gate_up[row + i]), up = to_float(gate_up[row + width + i]);
  out[uint64_t(blockIdx.x) * width + i] = from_float<T>(gate / (1.f + __expf(-gate)) * up);
}
