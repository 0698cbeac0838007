// Linear: out[t, n] = sum_k weight[n, k] x[t, k] + bias[n], with tensor cores and weights of 16 bits, or of 8 with a
// scale: out[t, n] = scale[n] sum_k weight[n, k] x[t, k] + bias[n].
//
// One layout, one instruction and one split of K for every number of tokens, so that a token's bits depend on nothing
// but itself. Weights are the wide operand (16 outputs), tokens the narrow one (8). In a block of 32 inputs lane
// (g, t) holds inputs 8t .. 8t+7, of outputs g and g + 8 and of token g: two mma take them as they lie in memory.
// Packed weights are [N / 16][K / 32][2 halves][32 lanes][8 values]; a warp reads 1 KiB at a time. Those of 8 bits are
// [N / 16][K / 32][32 lanes][2 halves][8 values]: 512 bytes, which become the same fragments in registers, exactly.
// K falls into SEGMENTS contiguous parts of whole blocks, summed from zero each and then added in order:
// linear_decode gives each to a warp, linear_prefill takes them one after the other.
#pragma once
#include "device.cuh"

constexpr int SEGMENTS = 8;
constexpr int BLOCK_K = 32;

struct Segment { int first, last; };  // blocks of 32 inputs
__device__ __forceinline__ Segment segment_of(int index, int num_blocks) {
  return {num_blocks * index / SEGMENTS, num_blocks * (index + 1) / SEGMENTS};
}

template <class W>
constexpr int CHUNKS = 2;  // of 16 bytes that a lane holds of a tile's block
template <>
constexpr int CHUNKS<int8_t> = 1;

template <class T, class W>
__device__ __forceinline__ void unpack(const uint4 (&stored)[CHUNKS<W>], uint4& top, uint4& bottom) {
  if constexpr (CHUNKS<W> == 2) {
    top = stored[0];
    bottom = stored[1];
  } else {
    widen<T>(stored[0].x, top.x, top.y);
    widen<T>(stored[0].y, top.z, top.w);
    widen<T>(stored[0].z, bottom.x, bottom.y);
    widen<T>(stored[0].w, bottom.z, bottom.w);
  }
}

// AHEAD blocks of PARTS tiles, from block `start` on, as far as they come before `last`.
template <class W, int AHEAD, int PARTS>
__device__ __forceinline__ void fetch(uint4 (&stored)[AHEAD][PARTS][CHUNKS<W>], const uint4* tile, int start, int last,
                                      int num_blocks) {
#pragma unroll
  for (int a = 0; a < AHEAD; a++) {
    if (start + a >= last) continue;
#pragma unroll
    for (int p = 0; p < PARTS; p++)
#pragma unroll
      for (int c = 0; c < CHUNKS<W>; c++)
        stored[a][p][c] = load_stream(tile + ((uint64_t(p) * num_blocks + start + a) * CHUNKS<W> + c) * 32);
  }
}

template <class T>
__device__ __forceinline__ void multiply(float (&sum)[4], const uint4& top, const uint4& bottom, const uint4& x) {
  const uint32_t first[4] = {top.x, bottom.x, top.y, bottom.y}, second[4] = {top.z, bottom.z, top.w, bottom.w};
  mma<T>(sum, first, x.x, x.y);
  mma<T>(sum, second, x.z, x.w);
}

// What becomes of a sum: plain stores it as T or float, gated takes gate and up and stores silu(gate) * up.
enum Epilogue { PLAIN = 0, GATED = 1 };

__device__ __forceinline__ float silu(float x) { return x / (1.f + __expf(-x)); }

// The sum of output n with its scale and its bias, rounded alike wherever it stands.
template <class W>
__device__ __forceinline__ float finished(float sum, const float* scale, const float* bias, int n) {
  if constexpr (CHUNKS<W> == 1) return bias ? __fmaf_rn(sum, scale[n], bias[n]) : __fmul_rn(sum, scale[n]);
  return bias ? sum + bias[n] : sum;
}

// x: T [num_tokens, K]; out: Out [num_tokens, N / (gated ? 2 : 1)]; bias: float [N] or null;
// scale: float [N], null unless W is int8_t. In the gated form output tile i of the gate and output tile i of the up
// projection stand beside each other in `weight`.
// Grid (tiles of 16 outputs, ceil(num_tokens / (8 TOKEN_TILES))), SEGMENTS warps; K a multiple of 32, N of 16.
template <class T, class W, class Out, int TOKEN_TILES, int EPILOGUE>
__global__ void __launch_bounds__(SEGMENTS * 32)
linear_decode(Out* out, const T* x, const uint4* weight, const float* scale, const float* bias, int num_tokens, int K,
              int N) {
  constexpr int PARTS = EPILOGUE == GATED ? 2 : 1;
  constexpr int TOKENS = TOKEN_TILES * 8;
  constexpr int WIDTH = CHUNKS<W>;
  constexpr int AHEAD = TOKENS * PARTS == 64 && PARTS == 2 ? 4 : 8 / WIDTH;  // blocks on their way: 4 to 8 KiB a warp
  SHARED_ARRAY(float, partial, SEGMENTS * PARTS * 16 * TOKENS);
  const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31, g = lane >> 2, t = lane & 3;
  const int num_blocks = K / BLOCK_K, first_token = blockIdx.y * TOKENS;
  const Segment segment = segment_of(warp, num_blocks);
  const uint4* tile = weight + uint64_t(blockIdx.x) * PARTS * num_blocks * WIDTH * 32 + lane;
  float sum[PARTS][TOKEN_TILES][4];
#pragma unroll
  for (int p = 0; p < PARTS; p++)
#pragma unroll
    for (int j = 0; j < TOKEN_TILES; j++)
#pragma unroll
      for (int i = 0; i < 4; i++) sum[p][j][i] = 0.f;
  uint4 stored[AHEAD][PARTS][WIDTH];
  fetch<W>(stored, tile, segment.first, segment.last, num_blocks);  // weights are nobody's result
  wait_for_predecessor();
  launch_successor();
  for (int start = segment.first; start < segment.last; start += AHEAD) {
#pragma unroll
    for (int a = 0; a < AHEAD; a++) {
      if (start + a >= segment.last) continue;
      uint4 top[PARTS], bottom[PARTS];
#pragma unroll
      for (int p = 0; p < PARTS; p++) unpack<T, W>(stored[a][p], top[p], bottom[p]);
#pragma unroll
      for (int j = 0; j < TOKEN_TILES; j++) {
        const int token = first_token + j * 8 + g;
        uint4 v = make_uint4(0, 0, 0, 0);
        if (token < num_tokens)
          v = *reinterpret_cast<const uint4*>(x + uint64_t(token) * K + (start + a) * BLOCK_K + t * 8);
#pragma unroll
        for (int p = 0; p < PARTS; p++) multiply<T>(sum[p][j], top[p], bottom[p], v);
      }
    }
    fetch<W>(stored, tile, start + AHEAD, segment.last, num_blocks);
  }
#pragma unroll
  for (int p = 0; p < PARTS; p++)
#pragma unroll
    for (int j = 0; j < TOKEN_TILES; j++)
#pragma unroll
      for (int i = 0; i < 4; i++) {
        const int row = g + (i >> 1) * 8, column = j * 8 + t * 2 + (i & 1);
        partial[((warp * PARTS + p) * TOKENS + column) * 16 + row] = sum[p][j][i];
      }
  __syncthreads();
  for (int i = threadIdx.x; i < 16 * TOKENS; i += SEGMENTS * 32) {
    const int token = first_token + i / 16, row = i % 16;
    if (token >= num_tokens) continue;
    float total[PARTS];
#pragma unroll
    for (int p = 0; p < PARTS; p++) {
      total[p] = partial[p * TOKENS * 16 + i];
#pragma unroll
      for (int s = 1; s < SEGMENTS; s++) total[p] += partial[(s * PARTS + p) * TOKENS * 16 + i];
      total[p] = finished<W>(total[p], scale, bias, (blockIdx.x * PARTS + p) * 16 + row);
    }
    const float value = PARTS == 2 ? silu(total[0]) * total[PARTS - 1] : total[0];
    out[uint64_t(token) * (N / PARTS) + blockIdx.x * 16 + row] = from_float<Out>(value);
  }
}

// The same for many tokens: 128 outputs x 128 tokens a block, 8 warps of 64 x 32, STAGES blocks of 32 inputs in shared
// memory. Weight tiles are copied as they are packed; a row of tokens is 64 bytes, read without bank conflicts.
// Grid (ceil(N / 128), ceil(num_tokens / 128)), 256 threads, STAGES * STAGE_BYTES of dynamic shared memory.
constexpr int STAGES = 4;
template <class W>
constexpr int TILE_BYTES = CHUNKS<W> * 32 * 16;
template <class W>
constexpr int STAGE_BYTES = 8 * TILE_BYTES<W> + 128 * BLOCK_K * 2;

template <class W>
__device__ __forceinline__ void load_weights(char* stage, const uint4* weight, int block, int num_blocks, int N) {
#pragma unroll
  for (int i = 0; i < CHUNKS<W>; i++) {
    constexpr int SIZE = CHUNKS<W> * 32;
    const int chunk = threadIdx.x + i * 256, tile = blockIdx.x * 8 + chunk / SIZE;
    const bool exists = tile < N / 16;
    copy_async_16(stage + chunk * 16, weight + (uint64_t(exists ? tile : 0) * num_blocks + block) * SIZE + chunk % SIZE,
                  exists);
  }
}

template <class T, class W>
__device__ __forceinline__ void load_tokens(char* stage, const T* x, int block, int first_token, int num_tokens,
                                            int K) {
#pragma unroll
  for (int i = 0; i < 2; i++) {
    const int chunk = threadIdx.x + i * 256, token = first_token + chunk / 4;
    const bool exists = token < num_tokens;
    copy_async_16(stage + 8 * TILE_BYTES<W> + chunk * 16,
                  x + uint64_t(exists ? token : 0) * K + block * BLOCK_K + chunk % 4 * 8, exists);
  }
}

template <class T, class W, class Out, int EPILOGUE>
__global__ void __launch_bounds__(256, 1)
linear_prefill(Out* out, const T* x, const uint4* weight, const float* scale, const float* bias, int num_tokens, int K,
               int N) {
  constexpr int PARTS = EPILOGUE == GATED ? 2 : 1;
  DYNAMIC_SHARED(char, stages);
  const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31, g = lane >> 2, t = lane & 3;
  const int first_tile = (warp >> 2) * 4, first_column = (warp & 3) * 32;
  const int num_blocks = K / BLOCK_K, first_token = blockIdx.y * 128;
  float sum[4][4][4], total[4][4][4];
#pragma unroll
  for (int i = 0; i < 4; i++)
#pragma unroll
    for (int j = 0; j < 4; j++)
#pragma unroll
      for (int c = 0; c < 4; c++) sum[i][j][c] = total[i][j][c] = 0.f;
#pragma unroll
  for (int s = 0; s < STAGES - 1; s++)
    if (s < num_blocks) load_weights<W>(stages + s * STAGE_BYTES<W>, weight, s, num_blocks, N);  // nobody's result
  wait_for_predecessor();
#pragma unroll
  for (int s = 0; s < STAGES - 1; s++) {
    if (s < num_blocks) load_tokens<T, W>(stages + s * STAGE_BYTES<W>, x, s, first_token, num_tokens, K);
    copy_async_commit();
  }
  int segment = 0;
  for (int block = 0; block < num_blocks; block++) {
    copy_async_wait<STAGES - 2>();
    __syncthreads();  // the stage has landed for all, and nobody reads the one that is filled next
    if (const int next = block + STAGES - 1; next < num_blocks) {
      char* stage = stages + next % STAGES * STAGE_BYTES<W>;
      load_weights<W>(stage, weight, next, num_blocks, N);
      load_tokens<T, W>(stage, x, next, first_token, num_tokens, K);
    }
    copy_async_commit();
    while (block >= segment_of(segment, num_blocks).last) {
#pragma unroll
      for (int i = 0; i < 4; i++)
#pragma unroll
        for (int j = 0; j < 4; j++)
#pragma unroll
          for (int c = 0; c < 4; c++) {
            total[i][j][c] = segment ? total[i][j][c] + sum[i][j][c] : sum[i][j][c];
            sum[i][j][c] = 0.f;
          }
      segment++;
    }
    const uint4* tiles = reinterpret_cast<const uint4*>(stages + block % STAGES * STAGE_BYTES<W>);
    const uint4* tokens = tiles + 8 * TILE_BYTES<W> / 16;
    uint4 v[4];
#pragma unroll
    for (int j = 0; j < 4; j++) v[j] = tokens[(first_column + j * 8 + g) * 4 + t];
#pragma unroll
    for (int i = 0; i < 4; i++) {
      uint4 stored[CHUNKS<W>], top, bottom;
#pragma unroll
      for (int c = 0; c < CHUNKS<W>; c++) stored[c] = tiles[((first_tile + i) * CHUNKS<W> + c) * 32 + lane];
      unpack<T, W>(stored, top, bottom);
#pragma unroll
      for (int j = 0; j < 4; j++) multiply<T>(sum[i][j], top, bottom, v[j]);
    }
  }
  copy_async_wait<0>();
  launch_successor();
#pragma unroll
  for (int i = 0; i < 4; i++)
#pragma unroll
    for (int j = 0; j < 4; j++)
#pragma unroll
      for (int c = 0; c < 4; c++) {
        total[i][j][c] = segment ? total[i][j][c] + sum[i][j][c] : sum[i][j][c];
        for (int rest = segment + 1; rest < SEGMENTS; rest++) total[i][j][c] += 0.f;
      }
  // Tokens lie across the lanes: 64 of them at a time are gathered in the stages, and leave as whole rows.
  constexpr int WIDTH = 128 / PARTS, CHUNK = 16 / sizeof(Out), PITCH = WIDTH + CHUNK;
  static_assert(64 * PITCH * sizeof(Out) <= STAGES * STAGE_BYTES<W>, "the rows take more than the stages");
  Out* rows = reinterpret_cast<Out*>(stages);
#pragma unroll 1
  for (int first = 0; first < 128; first += 64) {
    __syncthreads();  // nobody reads a stage, or the rows before these, any more
    if (first_column / 64 * 64 == first) {
#pragma unroll
      for (int i = 0; i < 4; i += PARTS)
#pragma unroll
        for (int j = 0; j < 4; j++)
#pragma unroll
          for (int c = 0; c < 4; c++) {
            const int tile = blockIdx.x * 8 + first_tile + i, row = g + (c >> 1) * 8;
            if (tile >= N / 16) continue;
            float value = finished<W>(total[i][j][c], scale, bias, tile * 16 + row);
            if (PARTS == 2)
              value = silu(value) * finished<W>(total[i + PARTS - 1][j][c], scale, bias, (tile + 1) * 16 + row);
            const int token = first_column - first + j * 8 + t * 2 + (c & 1);
            rows[token * PITCH + (first_tile + i) / PARTS * 16 + row] = from_float<Out>(value);
          }
    }
    __syncthreads();
    for (int i = threadIdx.x; i < 64 * WIDTH / CHUNK; i += 256) {
      const int token = i / (WIDTH / CHUNK), column = i % (WIDTH / CHUNK) * CHUNK, n = blockIdx.x * WIDTH + column;
      if (first_token + first + token < num_tokens && n < N / PARTS)
        *reinterpret_cast<uint4*>(out + uint64_t(first_token + first + token) * (N / PARTS) + n) =
            *reinterpret_cast<const uint4*>(rows + token * PITCH + column);
    }
  }
}
