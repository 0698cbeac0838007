// Rows of a table: out[i] = scale[ids[i]] * table[ids[i]].
#include "device.cuh"

// A negative id stands for a token that was drawn here and that the host has not read: ~id is its place among those
// drawn. A draw that failed is negative itself; its row goes on as token 0, and nobody looks at what becomes of it.
__device__ __forceinline__ int token_of(int id, const int* drawn) {
  if (id >= 0) return id;
  const int token = drawn[~id];
  return token < 0 ? 0 : token;
}

// table: W [V, width]; scale: float [V] or null; ids: int [gridDim.x]; out: float [gridDim.x, width]. 128 threads.
template <class W>
__global__ void __launch_bounds__(128)
embedding(float* out, const W* table, const float* scale, const int* ids, const int* drawn, int width) {
  wait_for_predecessor();
  launch_successor();
  const int id = token_of(ids[blockIdx.x], drawn);
  const W* row = table + uint64_t(id) * width;
  const float factor = scale ? scale[id] : 1.f;
  for (int i = threadIdx.x; i < width; i += 128) out[uint64_t(blockIdx.x) * width + i] = to_float(row[i]) * factor;
}

// Where inputs begin in a packed row, and in what order they lie: see linear.cu and widen.
template <class W>
__device__ __forceinline__ int place_of(int i, int half) {
  if constexpr (sizeof(W) == 2) return i / 32 * 512 + half * 256 + i % 32;
  return i / 32 * 512 + i % 32 / 8 * 16 + half * 8 + i % 8 / 4 * 4 + i % 2 * 2 + i / 2 % 2;
}

// The same from a table packed as a linear's weight (linear.cu), so that a tied head needs no second copy.
template <class W>
__global__ void __launch_bounds__(128)
embedding_packed(float* out, const W* table, const float* scale, const int* ids, const int* drawn, int width) {
  wait_for_predecessor();
  launch_successor();
  const int id = token_of(ids[blockIdx.x], drawn), half = id / 8 % 2;
  constexpr int STRIDE = sizeof(W) == 2 ? 32 : 64;  // from an output to the next
  const W* row = table + uint64_t(id / 16) * width * 16 + id % 8 * STRIDE;
  const float factor = scale ? scale[id] : 1.f;
  for (int i = threadIdx.x; i < width; i += 128)
    out[uint64_t(blockIdx.x) * width + i] = to_float(row[place_of<W>(i, half)]) * factor;
}
