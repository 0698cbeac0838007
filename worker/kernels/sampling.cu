// Drawing a token from a row of logits, without sorting the vocabulary: temperature, min-p, top-k, top-p, then the
// largest of logit + noise. The noise is that of worker/noise.py, a function of (stream, token id): integers exact, the
// two logarithms in float first and again in double for whoever comes near the best.
//
// top-k and top-p are thresholds, found digit by digit (radix select): integer counts and integer masses, so that no
// order of threads shows in the result.
#include "device.cuh"

constexpr int THREADS = 1024;
constexpr int BINS = 256, COPIES = 8;
constexpr int NOT_FINITE = -1, ALL_FORBIDDEN = -2;

struct Draw {
  uint64_t stream;
  float inverse_temperature;  // 0 = greedy
  float min_p_log;            // ln(min_p), -inf = off
  float top_p;                // >= 1 = off
  int top_k;                  // 0 = off
  int row;                    // of the logits
  int place;                  // of the token; negative = nothing is drawn
};

// ── numbers ─────────────────────────────────────────────────────────────────────────────────────

__device__ __forceinline__ uint32_t rising(float x) {  // unsigned integers in the order of floats
  const uint32_t bits = __float_as_uint(x);
  return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}
__device__ __forceinline__ uint64_t mix(uint64_t z) {  // the finaliser of SplitMix64
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
  return z ^ (z >> 31);
}
__device__ __forceinline__ uint64_t noise_bits(uint64_t stream, int token) {
  return mix(stream + (uint64_t(token) + 1) * 0x9E3779B97F4A7C15ull) >> 12;
}
__device__ __forceinline__ double exact_noise(uint64_t bits) {
  return -log(-log((double(bits) + 0.5) * 2.220446049250313e-16));
}
__device__ __forceinline__ float near_noise(uint64_t bits) {
  constexpr uint64_t ALL = 1ull << 52;
  const bool is_low = bits < ALL / 2;
  const float part = (float(is_low ? bits : ALL - 1 - bits) + 0.5f) * 2.220446049250313e-16f;
  return -logf(is_low ? -logf(part) : -log1pf(-part));
}

// ── reductions over the block ───────────────────────────────────────────────────────────────────

struct Best { double value; int token; };  // the largest value; of equals the lowest token

__device__ __forceinline__ Best better(Best a, Best b) {
  return b.value > a.value || (b.value == a.value && b.token < a.token) ? b : a;
}
__device__ __forceinline__ Best best_of_block(Best mine, Best* shared) {
#pragma unroll
  for (int offset = 16; offset; offset >>= 1) {
    const Best other = {__shfl_xor_sync(ALL_LANES, mine.value, offset), __shfl_xor_sync(ALL_LANES, mine.token, offset)};
    mine = better(mine, other);
  }
  __syncthreads();
  if ((threadIdx.x & 31) == 0) shared[threadIdx.x >> 5] = mine;
  __syncthreads();
  mine = shared[0];
  for (int i = 1; i < THREADS / 32; i++) mine = better(mine, shared[i]);
  return mine;
}

// ── thresholds ──────────────────────────────────────────────────────────────────────────────────

struct Chain {
  const float* logits;
  int size;
  float highest, inverse_temperature, lowest;  // of the tokens that min-p and top-k leave
};

// Weight in units of 2^-32 of the likeliest token.
__device__ __forceinline__ uint64_t mass_of(const Chain& chain, float logit) {
  return uint64_t(double(expf((logit - chain.highest) * chain.inverse_temperature)) * 4294967296.0);
}
// Larger = earlier in the order of likelihood; of equals the lower id is earlier.
__device__ __forceinline__ uint64_t place_of(float logit, int token) {
  return uint64_t(rising(logit)) << 32 | uint32_t(~token);
}

struct Tables { uint64_t* bins; uint64_t* found; };  // COPIES * BINS; {prefix, still wanted}

// Return the place of the last token needed until the weights add up to `wanted`, going down from the likeliest.
template <bool BY_MASS>
__device__ __forceinline__ uint64_t last_place(const Chain& chain, uint64_t wanted, const Tables& tables) {
  uint64_t prefix = 0;
  for (int shift = 56; shift >= (BY_MASS ? 0 : 32); shift -= 8) {
    for (int i = threadIdx.x; i < COPIES * BINS; i += THREADS) tables.bins[i] = 0;
    __syncthreads();
    uint64_t* mine = tables.bins + (threadIdx.x >> 5) % COPIES * BINS;
    for (int token = threadIdx.x; token < chain.size; token += THREADS) {
      const float logit = chain.logits[token];
      if (!(logit >= chain.lowest)) continue;
      const uint64_t place = place_of(logit, token);
      if (shift < 56 && place >> (shift + 8) != prefix) continue;
      atomicAdd(&mine[place >> shift & (BINS - 1)], BY_MASS ? mass_of(chain, logit) : uint64_t(1));
    }
    __syncthreads();
    for (int bin = threadIdx.x; bin < BINS; bin += THREADS)
      for (int copy = 1; copy < COPIES; copy++) tables.bins[bin] += tables.bins[copy * BINS + bin];
    __syncthreads();
    if (threadIdx.x == 0) {
      int bin = BINS - 1;
      while (bin > 0 && tables.bins[bin] < wanted) wanted -= tables.bins[bin--];
      tables.found[0] = prefix << 8 | uint64_t(bin);
      tables.found[1] = wanted;
    }
    __syncthreads();
    prefix = tables.found[0];
    wanted = tables.found[1];
    __syncthreads();
  }
  return BY_MASS ? prefix : prefix << 32;
}

__device__ __forceinline__ uint64_t mass_of_all(const Chain& chain, const Tables& tables) {
  if (threadIdx.x == 0) tables.found[0] = 0;
  __syncthreads();
  uint64_t mine = 0;
  for (int token = threadIdx.x; token < chain.size; token += THREADS)
    if (chain.logits[token] >= chain.lowest) mine += mass_of(chain, chain.logits[token]);
  atomicAdd(&tables.found[0], mine);
  __syncthreads();
  const uint64_t all = tables.found[0];
  __syncthreads();
  return all;
}

// Rounded once: then keys rise as exact ones do, and of two passes over a row both find the same, however far floats lie
// apart that are as large as a logit times 1 / temperature.
__device__ __forceinline__ float near_key(float logit, const Draw& draw, uint64_t bits) {
  return __fmaf_rn(logit, draw.inverse_temperature, near_noise(bits));
}

// ── the draw ────────────────────────────────────────────────────────────────────────────────────

// logits: float [*, stride], of which vocab_size count; tokens: int [any]. A block a draw.
__global__ void __launch_bounds__(THREADS, 1)
sample(int* tokens, const float* logits, const Draw* draws, int vocab_size, int stride) {
  SHARED_ARRAY(uint64_t, bins, COPIES * BINS);
  SHARED_ARRAY(uint64_t, found, 2);
  SHARED_ARRAY(Best, bests, THREADS / 32);
  wait_for_predecessor();
  launch_successor();
  const Draw draw = draws[blockIdx.x];
  if (draw.place < 0) return;
  const float* row = logits + uint64_t(draw.row) * stride;
  Best best = {-INFINITY, vocab_size};
  bool is_finite = true;
  for (int token = threadIdx.x; token < vocab_size; token += THREADS) {
    is_finite &= row[token] < INFINITY;  // nan too; -inf is a forbidden token
    best = better(best, {double(row[token]), token});
  }
  is_finite = __syncthreads_and(is_finite);
  best = best_of_block(best, bests);
  if (!is_finite || best.value == -INFINITY || draw.inverse_temperature == 0.f) {
    if (threadIdx.x == 0) tokens[draw.place] = !is_finite ? NOT_FINITE : best.value == -INFINITY ? ALL_FORBIDDEN : best.token;
    return;
  }
  Chain chain = {row, vocab_size, float(best.value), draw.inverse_temperature, -3.402823466e38f};
  if (draw.min_p_log > -INFINITY) chain.lowest = chain.highest + fminf(draw.min_p_log, 0.f) / draw.inverse_temperature;
  const Tables tables = {bins, found};
  uint64_t last = 0;
  if (draw.top_k > 0 && draw.top_k < vocab_size) last = last_place<false>(chain, uint64_t(draw.top_k), tables);
  if (draw.top_p < 1.f) {
    const uint32_t kth = uint32_t(last >> 32);  // top-p goes by what top-k leaves
    if (kth) chain.lowest = fmaxf(chain.lowest, __uint_as_float(kth & 0x80000000u ? kth & 0x7fffffffu : ~kth));
    const uint64_t wanted = uint64_t(double(draw.top_p) * double(mass_of_all(chain, tables)));
    last = last_place<true>(chain, wanted > 0 ? wanted : 1, tables);
  }
  Best near = {-INFINITY, vocab_size};
  for (int token = threadIdx.x; token < vocab_size; token += THREADS) {
    if (!(row[token] >= chain.lowest) || place_of(row[token], 0x7fffffff) < last >> 32 << 32) continue;
    if (place_of(row[token], token) < last) continue;
    const float key = near_key(row[token], draw, noise_bits(draw.stream, token));
    near = better(near, {double(key), token});
  }
  near = best_of_block(near, bests);
  Best drawn = {-INFINITY, vocab_size};
  for (int token = threadIdx.x; token < vocab_size; token += THREADS) {
    if (!(row[token] >= chain.lowest) || place_of(row[token], token) < last) continue;
    const uint64_t bits = noise_bits(draw.stream, token);
    if (double(near_key(row[token], draw, bits)) < near.value - 1e-2) continue;
    drawn = better(drawn, {double(row[token]) * double(draw.inverse_temperature) + exact_noise(bits), token});
  }
  drawn = best_of_block(drawn, bests);
  if (threadIdx.x == 0) tokens[draw.place] = drawn.token;
}

// ── beside the draw ─────────────────────────────────────────────────────────────────────────────

struct Edit { int row, token; float repetition, subtract, bias; };  // row < 0: none

// Penalties and biases, in place: logits of (row, token) become biased(l) - subtract, where a positive l is divided and a
// negative one multiplied by `repetition`. No two edits name the same place; what stood there goes to `saved`.
__global__ void __launch_bounds__(128)
edit_logits(float* logits, const Edit* edits, float* saved, int num_edits, int stride) {
  wait_for_predecessor();
  launch_successor();
  const int i = blockIdx.x * 128 + threadIdx.x;
  if (i >= num_edits || edits[i].row < 0) return;
  const Edit edit = edits[i];
  float& place = logits[uint64_t(edit.row) * stride + edit.token];
  saved[i] = place;
  const float biased = place + edit.bias;
  place = (biased > 0.f ? biased / edit.repetition : biased * edit.repetition) - edit.subtract;
}

// Undo `edit_logits`: logprobs tell of the raw logits.
__global__ void __launch_bounds__(128)
restore_logits(float* logits, const Edit* edits, const float* saved, int num_edits, int stride) {
  wait_for_predecessor();
  launch_successor();
  const int i = blockIdx.x * 128 + threadIdx.x;
  if (i < num_edits && edits[i].row >= 0) logits[uint64_t(edits[i].row) * stride + edits[i].token] = saved[i];
}

struct Told { int row, place; };  // of the logits, of the token; row < 0: none

// Log-softmax of raw rows: of the drawn token and of the `num_wanted` likeliest, falling, ties by lowest id.
// ids, logprobs: [gridDim.x, num_wanted + 1].
__global__ void __launch_bounds__(THREADS, 1)
log_softmax(int* ids, float* logprobs, const float* logits, const Told* told, const int* tokens, int num_wanted,
            int vocab_size, int stride) {
  SHARED_ARRAY(Best, bests, THREADS / 32);
  SHARED_ARRAY(double, sums, THREADS / 32);
  wait_for_predecessor();
  launch_successor();
  const Told one = told[blockIdx.x];
  if (one.row < 0) return;
  const float* row = logits + uint64_t(one.row) * stride;
  const uint64_t out = uint64_t(blockIdx.x) * (num_wanted + 1);
  Best last = {INFINITY, -1};
  double highest = 0, total = 0;
  for (int rank = 0; rank < (num_wanted ? num_wanted : 1); rank++) {
    Best best = {-INFINITY, vocab_size};
    for (int token = threadIdx.x; token < vocab_size; token += THREADS) {
      const double value = row[token];
      if (value < last.value || (value == last.value && token > last.token)) best = better(best, {value, token});
    }
    last = best_of_block(best, bests);
    if (rank == 0) {
      highest = last.value;
      double sum = 0;
      for (int token = threadIdx.x; token < vocab_size; token += THREADS) sum += exp(double(row[token]) - highest);
#pragma unroll
      for (int offset = 16; offset; offset >>= 1) sum += __shfl_xor_sync(ALL_LANES, sum, offset);
      if ((threadIdx.x & 31) == 0) sums[threadIdx.x >> 5] = sum;
      __syncthreads();
      for (int i = 0; i < THREADS / 32; i++) total += sums[i];
    }
    if (threadIdx.x == 0 && num_wanted) {
      ids[out + rank + 1] = last.token;
      logprobs[out + rank + 1] = float(last.value - highest - log(total));
    }
  }
  if (threadIdx.x == 0) {
    const int token = tokens[one.place];
    ids[out] = token;
    logprobs[out] = token < 0 ? 0.f : float(double(row[token]) - highest - log(total));
  }
}
