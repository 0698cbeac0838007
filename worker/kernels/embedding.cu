// Rows of a table: out[i] = table[ids[i]].
#include "device.cuh"

// table: T [V, width]; ids: int [gridDim.x]; out: float [gridDim.x, width]. 128 threads.
template <class T>
__global__ void __launch_bounds__(128) embedding(float* out, const T* table, const int* ids, int width) {
  wait_for_predecessor();
  launch_successor();
  const T* row = table + uint64_t(ids[blockIdx.x]) * width;
  for (int i = threadIdx.x; i < width; i += 128) out[uint64_t(blockIdx.x) * width + i] = to_float(row[i]);
}

// The same from a table packed as a linear's weight (linear.cu), so that a tied head needs no second copy.
template <class T>
__global__ void __launch_bounds__(128) embedding_packed(float* out, const T* table, const int* ids, int width) {
  wait_for_predecessor();
  launch_successor();
  const int id = ids[blockIdx.x];
  const T* row = table + uint64_t(id / 16) * width * 16 + id / 8 % 2 * 256 + id % 8 * 32;
  for (int i = threadIdx.x; i < width; i += 128)
    out[uint64_t(blockIdx.x) * width + i] = to_float(row[i / 32 * 512 + i % 32]);
}
