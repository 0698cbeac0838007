// Copies of whole pages, keys and values of all layers.
#include "device.cuh"

// arena: [layers * 2][pages][chunks of 16 bytes]; copies: int {source, target} [gridDim.x]. Grid (copies, layers * 2).
// No page is the target of one copy and the source of another.
__global__ void __launch_bounds__(128) page_copy(uint4* arena, const int* copies, int num_pages, int chunks) {
  wait_for_predecessor();
  launch_successor();
  uint4* plane = arena + uint64_t(blockIdx.y) * num_pages * chunks;
  const uint4* source = plane + uint64_t(copies[blockIdx.x * 2]) * chunks;
  uint4* target = plane + uint64_t(copies[blockIdx.x * 2 + 1]) * chunks;
  for (int i = threadIdx.x; i < chunks; i += 128) target[i] = source[i];
}

// arena as above; out: [gridDim.x][layers * 2][chunks]; pages: int [gridDim.x]. Grid (pages, layers * 2).
__global__ void __launch_bounds__(128) page_gather(
    uint4* out, const uint4* arena, const int* pages, int num_pages, int chunks) {
  wait_for_predecessor();
  launch_successor();
  const uint4* source = arena + (uint64_t(blockIdx.y) * num_pages + pages[blockIdx.x]) * chunks;
  uint4* target = out + (uint64_t(blockIdx.x) * gridDim.y + blockIdx.y) * chunks;
  for (int i = threadIdx.x; i < chunks; i += 128) target[i] = source[i];
}

// The way back: in is what page_gather has given. No page is named twice.
__global__ void __launch_bounds__(128) page_scatter(
    uint4* arena, const uint4* in, const int* pages, int num_pages, int chunks) {
  wait_for_predecessor();
  launch_successor();
  const uint4* source = in + (uint64_t(blockIdx.x) * gridDim.y + blockIdx.y) * chunks;
  uint4* target = arena + (uint64_t(blockIdx.y) * num_pages + pages[blockIdx.x]) * chunks;
  for (int i = threadIdx.x; i < chunks; i += 128) target[i] = source[i];
}
