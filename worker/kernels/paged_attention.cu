// Paged attention: out[t, h] = softmax(scale q[t, h] K^T) V over the token's own sequence, positions <= its own and,
// with a window, > its own - window. Flash attention (Dao et al., 2022) in fixed parts: keys are taken UNIT at a time
// with a running maximum, and the parts of SPLIT keys at absolute positions are merged in order. Both kernels do the
// same operations on a row, so its bits depend on its own tokens only. A part that hides all keys changes nothing.
//
// A warp takes a tile of 16 rows; a row is (token, query head) of one key head. attention_decode gives every part of a
// tile to a warp of its own and attention_merge adds them up; attention_prefill lets WARPS tiles of one sequence walk
// over all parts together.
//
// Tiles are int4 {sequence, first token, number of tokens, first position}; number 0 = nothing to do.
// Pages: T [pages][kv heads][page size][D]; tables: int [sequences][max_pages].
#include "device.cuh"

constexpr int UNIT = 64;
constexpr int SPLIT = 256;

struct Shape {
  int num_heads, num_kv_heads, page_shift, max_pages, window;  // pages of 1 << page_shift tokens
  float scale_log2;  // softmax in powers of two
};

template <int D>
struct Layout {
  static constexpr int WIDE = (D + 31) / 32 * 32;  // of queries and keys, zeros behind D
  static constexpr int VALUE_STRIDE = D + 8;       // rows a quarter of a bank line apart: ldmatrix without conflicts
  static constexpr int STAGE = UNIT * (WIDE + VALUE_STRIDE);

  // Where 8 values of a key lie. Of two rows side by side, the same chunk lies in different halves of a bank line:
  // 16-byte reads without conflicts, and no gaps, for 128 dimensions have to fit in 99 KiB.
  static __device__ __forceinline__ int key(int row, int chunk) {
    return row * WIDE + (WIDE % 64 ? chunk : chunk ^ (row & 1) * 4) * 8;
  }
};

template <class T, int D>
struct Part {  // what a row has seen: maximum, sum of weights, weighted values
  float maximum[2], sum[2], values[D / 8][4];
  __device__ __forceinline__ void clear() {
    maximum[0] = maximum[1] = -INFINITY;
    sum[0] = sum[1] = 0.f;
#pragma unroll
    for (int j = 0; j < D / 8; j++)
#pragma unroll
      for (int i = 0; i < 4; i++) values[j][i] = 0.f;
  }
};

// Factors by which what was seen and what is added shrink when two parts meet; a part that saw nothing counts nothing.
__device__ __forceinline__ void meet(float& maximum, float added, float& keep, float& take) {
  const float both = fmaxf(maximum, added);
  keep = maximum == -INFINITY ? 0.f : exp2f(maximum - both);
  take = exp2f(added - both);
  maximum = both;
}

template <class T, int D>
__device__ __forceinline__ void load_unit(T* stage, const T* keys, const T* values, const int* table, const Shape& shape,
                                          int head, int first_key, int num_keys, int num_threads) {
  constexpr int CHUNKS = Layout<D>::WIDE / 8;
  T* stage_values = stage + UNIT * Layout<D>::WIDE;
  for (int i = threadIdx.x; i < UNIT * CHUNKS; i += num_threads) {
    const int row = i / CHUNKS, chunk = i % CHUNKS, position = first_key + row;
    const bool exists = position < num_keys && chunk < D / 8;
    uint64_t place = 0;
    if (exists) {
      const int page = table[position >> shape.page_shift], offset = position & ((1 << shape.page_shift) - 1);
      place = (((uint64_t(page) * shape.num_kv_heads + head) << shape.page_shift) + offset) * D + chunk * 8;
    }
    copy_async_16(stage + Layout<D>::key(row, chunk), keys + place, exists);
    if (chunk < D / 8) copy_async_16(stage_values + row * Layout<D>::VALUE_STRIDE + chunk * 8, values + place, exists);
  }
}

template <class T, int D>
struct Rows {  // the two rows of a lane, g and g + 8
  uint4 query[Layout<D>::WIDE / 32][2];
  int position[2];  // -1: no such row
  uint64_t place[2];
};

template <class T, int D>
__device__ __forceinline__ Rows<T, D> load_rows(const T* q, const int4& tile, const Shape& shape, int head) {
  Rows<T, D> rows;
  const int lane = threadIdx.x & 31, g = lane >> 2, t = lane & 3, group = shape.num_heads / shape.num_kv_heads;
#pragma unroll
  for (int r = 0; r < 2; r++) {
    const int row = g + r * 8, token = row / group;
    const bool exists = token < tile.z;
    rows.position[r] = exists ? tile.w + token : -1;
    rows.place[r] = (uint64_t(tile.y + token) * shape.num_heads + head * group + row % group) * D;
#pragma unroll
    for (int b = 0; b < Layout<D>::WIDE / 32; b++) {
      const bool inside = exists && b * 32 + t * 8 < D;
      rows.query[b][r] =
          inside ? *reinterpret_cast<const uint4*>(q + rows.place[r] + b * 32 + t * 8) : make_uint4(0, 0, 0, 0);
    }
  }
  return rows;
}

template <class T>
__device__ __forceinline__ void multiply(float (&sum)[4], const uint4& top, const uint4& bottom, const uint4& x) {
  const uint32_t first[4] = {top.x, bottom.x, top.y, bottom.y}, second[4] = {top.z, bottom.z, top.w, bottom.w};
  mma<T>(sum, first, x.x, x.y);
  mma<T>(sum, second, x.z, x.w);
}

// Add the UNIT keys in `stage`, of which the first stands at position `first_key`.
template <class T, int D>
__device__ __forceinline__ void add_unit(Part<T, D>& part, const Rows<T, D>& rows, const T* stage, int first_key,
                                         const Shape& shape) {
  const int lane = threadIdx.x & 31, g = lane >> 2, t = lane & 3;
  float score[UNIT / 8][4];
#pragma unroll
  for (int j = 0; j < UNIT / 8; j++) {
#pragma unroll
    for (int i = 0; i < 4; i++) score[j][i] = 0.f;
#pragma unroll
    for (int b = 0; b < Layout<D>::WIDE / 32; b++)
      multiply<T>(score[j], rows.query[b][0], rows.query[b][1],
                  *reinterpret_cast<const uint4*>(stage + Layout<D>::key(j * 8 + g, b * 4 + t)));
#pragma unroll
    for (int i = 0; i < 4; i++) {
      const int position = rows.position[i >> 1], key_position = first_key + j * 8 + t * 2 + (i & 1);
      const bool hidden = key_position > position || (shape.window && key_position <= position - shape.window);
      score[j][i] = hidden ? -INFINITY : score[j][i] * shape.scale_log2;
    }
  }
  float keep[2], base[2];
#pragma unroll
  for (int r = 0; r < 2; r++) {
    float highest = -INFINITY;
#pragma unroll
    for (int j = 0; j < UNIT / 8; j++) highest = fmaxf(highest, fmaxf(score[j][r * 2], score[j][r * 2 + 1]));
    highest = fmaxf(highest, __shfl_xor_sync(ALL_LANES, highest, 1));
    highest = fmaxf(highest, __shfl_xor_sync(ALL_LANES, highest, 2));
    const float both = fmaxf(part.maximum[r], highest);
    base[r] = both == -INFINITY ? 0.f : both;
    keep[r] = exp2f(part.maximum[r] - base[r]);
    part.maximum[r] = both;
  }
#pragma unroll
  for (int r = 0; r < 2; r++) {
    float sum = 0.f;
#pragma unroll
    for (int j = 0; j < UNIT / 8; j++)
#pragma unroll
      for (int i = 0; i < 2; i++) sum += score[j][r * 2 + i] = exp2f(score[j][r * 2 + i] - base[r]);
    sum += __shfl_xor_sync(ALL_LANES, sum, 1);
    sum += __shfl_xor_sync(ALL_LANES, sum, 2);
    part.sum[r] = part.sum[r] * keep[r] + sum;
  }
#pragma unroll
  for (int j = 0; j < D / 8; j++)
#pragma unroll
    for (int i = 0; i < 4; i++) part.values[j][i] *= keep[i >> 1];
  const T* stage_values = stage + UNIT * Layout<D>::WIDE;
#pragma unroll
  for (int k = 0; k < UNIT / 16; k++) {
    const uint32_t weights[4] = {pack_pair<T>(score[2 * k][0], score[2 * k][1]), pack_pair<T>(score[2 * k][2], score[2 * k][3]),
                                 pack_pair<T>(score[2 * k + 1][0], score[2 * k + 1][1]),
                                 pack_pair<T>(score[2 * k + 1][2], score[2 * k + 1][3])};
#pragma unroll
    for (int j = 0; j < D / 8; j += 2) {
      uint32_t v[4];
      load_matrices_transposed(v, stage_values + (k * 16 + (lane >> 3 & 1) * 8 + (lane & 7)) * Layout<D>::VALUE_STRIDE +
                                      (j + (lane >> 4)) * 8);
      mma<T>(part.values[j], weights, v[0], v[1]);
      mma<T>(part.values[j + 1], weights, v[2], v[3]);
    }
  }
}

struct Range { int first, last; };  // parts that any row of the tiles sees

__device__ __forceinline__ Range range_of(int first_position, int last_position, int window) {
  const int first_key = window && first_position >= window ? first_position - window + 1 : 0;
  return {first_key / SPLIT, last_position / SPLIT};
}

// ── few tokens a sequence ───────────────────────────────────────────────────────────────────────

// Grid (tiles, kv heads, Z), 32 threads: part z, z + Z, ... of a tile. State of part s of tile i and head h goes to
// parts[((offsets[i] + s) * kv heads + h) * 16 * (D + 2)]: 16 rows of D values, maximum, sum.
template <class T, int D>
__global__ void __launch_bounds__(32, 1)
attention_decode(float* parts, const T* q, const T* keys, const T* values, const int* tables, const int4* tiles,
                 const int* offsets, Shape shape) {
  DYNAMIC_SHARED(T, stages);
  const int head = blockIdx.y, lane = threadIdx.x & 31, g = lane >> 2, t = lane & 3;
  wait_for_predecessor();
  launch_successor();
  const int4 tile = tiles[blockIdx.x];
  if (tile.z == 0) return;
  const int* table = tables + uint64_t(tile.x) * shape.max_pages;
  const int last_position = tile.w + tile.z - 1;
  const Range range = range_of(tile.w, last_position, shape.window);
  const Rows<T, D> rows = load_rows<T, D>(q, tile, shape, head);
  for (int split = range.first + blockIdx.z; split <= range.last; split += gridDim.z) {
    Part<T, D> part;
    part.clear();
    load_unit<T, D>(stages, keys, values, table, shape, head, split * SPLIT, last_position + 1, 32);
    copy_async_commit();
    for (int u = 0; u < SPLIT / UNIT; u++) {
      if (u + 1 < SPLIT / UNIT)
        load_unit<T, D>(stages + (u + 1) % 2 * Layout<D>::STAGE, keys, values, table, shape, head,
                        split * SPLIT + (u + 1) * UNIT, last_position + 1, 32);
      copy_async_commit();
      copy_async_wait<1>();
      __syncthreads();
      add_unit<T, D>(part, rows, stages + u % 2 * Layout<D>::STAGE, split * SPLIT + u * UNIT, shape);
      __syncthreads();
    }
    float* state = parts + ((uint64_t(offsets[blockIdx.x]) + split) * shape.num_kv_heads + head) * 16 * (D + 2);
#pragma unroll
    for (int r = 0; r < 2; r++) {
      float* row = state + (g + r * 8) * (D + 2);
#pragma unroll
      for (int j = 0; j < D / 8; j++) {
        row[j * 8 + t * 2] = part.values[j][r * 2];
        row[j * 8 + t * 2 + 1] = part.values[j][r * 2 + 1];
      }
      if (t == 0) {
        row[D] = part.maximum[r];
        row[D + 1] = part.sum[r];
      }
    }
  }
}

// Grid (tiles, kv heads), 128 threads.
template <class T, int D>
__global__ void __launch_bounds__(128)
attention_merge(T* out, const float* parts, const int4* tiles, const int* offsets, Shape shape) {
  const int head = blockIdx.y, group = shape.num_heads / shape.num_kv_heads;
  wait_for_predecessor();
  launch_successor();
  const int4 tile = tiles[blockIdx.x];
  if (tile.z == 0) return;
  const Range range = range_of(tile.w, tile.w + tile.z - 1, shape.window);
  for (int i = threadIdx.x; i < tile.z * group * D; i += 128) {
    const int row = i / D, d = i % D;
    float maximum = -INFINITY, sum = 0.f, total = 0.f;
    for (int split = range.first; split <= range.last; split++) {
      const float* state = parts + (((uint64_t(offsets[blockIdx.x]) + split) * shape.num_kv_heads + head) * 16 + row) * (D + 2);
      const float added = state[D];
      if (added == -INFINITY) continue;
      float keep, take;
      meet(maximum, added, keep, take);
      total = __fmaf_rn(state[d], take, __fmul_rn(total, keep));
      sum = __fmaf_rn(state[D + 1], take, __fmul_rn(sum, keep));
    }
    out[(uint64_t(tile.y + row / group) * shape.num_heads + head * group + row % group) * D + d] =
        from_float<T>(total / sum);
  }
}

// ── many tokens a sequence ──────────────────────────────────────────────────────────────────────

constexpr int WARPS = 4;

// Grid (tiles / WARPS, kv heads), WARPS * 32 threads: WARPS tiles of one sequence, the empty ones last. What the parts
// before add up to lies in shared memory, a column of it for each thread, or the registers would not do.
template <class T, int D>
__global__ void __launch_bounds__(WARPS * 32, 1)
attention_prefill(T* out, const T* q, const T* keys, const T* values, const int* tables, const int4* tiles, Shape shape) {
  DYNAMIC_SHARED(T, stages);
  const int head = blockIdx.y, warp = threadIdx.x >> 5, lane = threadIdx.x & 31, t = lane & 3;
  wait_for_predecessor();
  launch_successor();
  const int4 first = tiles[blockIdx.x * WARPS], tile = tiles[blockIdx.x * WARPS + warp];
  if (first.z == 0) return;
  int last_position = 0;
#pragma unroll
  for (int w = 0; w < WARPS; w++) {
    const int4 other = tiles[blockIdx.x * WARPS + w];
    if (other.z) last_position = other.w + other.z - 1;
  }
  const int* table = tables + uint64_t(first.x) * shape.max_pages;
  const Range range = range_of(first.w, last_position, shape.window);
  const Rows<T, D> rows = load_rows<T, D>(q, tile, shape, head);
  float* total = reinterpret_cast<float*>(stages + 2 * Layout<D>::STAGE) + threadIdx.x;
  float total_maximum[2] = {-INFINITY, -INFINITY}, total_sum[2] = {0.f, 0.f};
#pragma unroll
  for (int i = 0; i < D / 2; i++) total[i * WARPS * 32] = 0.f;
  Part<T, D> part;
  part.clear();
  const int first_unit = range.first * (SPLIT / UNIT), end = (range.last + 1) * (SPLIT / UNIT);
  load_unit<T, D>(stages, keys, values, table, shape, head, first_unit * UNIT, last_position + 1, WARPS * 32);
  copy_async_commit();
  for (int u = first_unit; u < end; u++) {
    if (u + 1 < end)
      load_unit<T, D>(stages + (u + 1) % 2 * Layout<D>::STAGE, keys, values, table, shape, head, (u + 1) * UNIT,
                      last_position + 1, WARPS * 32);
    copy_async_commit();
    copy_async_wait<1>();
    __syncthreads();
    add_unit<T, D>(part, rows, stages + u % 2 * Layout<D>::STAGE, u * UNIT, shape);
    if ((u + 1) % (SPLIT / UNIT) == 0) {
#pragma unroll
      for (int r = 0; r < 2; r++) {
        if (part.maximum[r] == -INFINITY) continue;
        float keep, take;
        meet(total_maximum[r], part.maximum[r], keep, take);
#pragma unroll
        for (int j = 0; j < D / 8; j++)
#pragma unroll
          for (int i = r * 2; i < r * 2 + 2; i++) {
            float& value = total[(j * 4 + i) * WARPS * 32];
            value = __fmaf_rn(part.values[j][i], take, __fmul_rn(value, keep));
          }
        total_sum[r] = __fmaf_rn(part.sum[r], take, __fmul_rn(total_sum[r], keep));
      }
      part.clear();
    }
    __syncthreads();  // before the stage is filled again
  }
#pragma unroll
  for (int r = 0; r < 2; r++) {
    if (rows.position[r] < 0) continue;
#pragma unroll
    for (int j = 0; j < D / 8; j++)
      *reinterpret_cast<uint32_t*>(out + rows.place[r] + j * 8 + t * 2) =
          pack_pair<T>(total[(j * 4 + r * 2) * WARPS * 32] / total_sum[r],
                       total[(j * 4 + r * 2 + 1) * WARPS * 32] / total_sum[r]);
  }
}
