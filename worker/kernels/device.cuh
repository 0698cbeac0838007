// The one header with PTX. Every wrapper stands here twice: for the GPU, and for the emulator of the tests.
//
// Kernels include this and nothing else: NVRTC has no host headers. Floats of 16 bits are structs of their bits.
#pragma once

#ifndef CUDA_EMULATOR
typedef unsigned char uint8_t;
typedef signed char int8_t;
typedef unsigned short uint16_t;
typedef unsigned int uint32_t;
typedef unsigned long long uint64_t;
#define INFINITY __int_as_float(0x7f800000)
#define SHARED_ARRAY(T, name, n) __shared__ __align__(128) T name[n]
#define DYNAMIC_SHARED(T, name)                                  \
  extern __shared__ __align__(128) unsigned char name##_bytes[]; \
  T* name = reinterpret_cast<T*>(name##_bytes)
#endif

constexpr uint32_t ALL_LANES = 0xffffffffu;

struct bf16 { uint16_t bits; };
struct f16 { uint16_t bits; };

// ── conversions ─────────────────────────────────────────────────────────────────────────────────

__device__ __forceinline__ float to_float(float x) { return x; }
__device__ __forceinline__ float to_float(int8_t x) { return float(x); }
__device__ __forceinline__ float to_float(bf16 x) { return __uint_as_float(uint32_t(x.bits) << 16); }
__device__ __forceinline__ float to_float(f16 x) {
#ifndef CUDA_EMULATOR
  float y;
  asm("cvt.f32.f16 %0, %1;" : "=f"(y) : "h"(x.bits));
  return y;
#else
  uint32_t sign = uint32_t(x.bits & 0x8000) << 16, exponent = x.bits >> 10 & 31, fraction = x.bits & 0x3ff;
  if (exponent == 31) return __uint_as_float(sign | 0x7f800000u | fraction << 13);
  if (exponent == 0) return (sign ? -1.f : 1.f) * float(fraction) * 5.9604644775390625e-8f;
  return __uint_as_float(sign | (exponent + 112) << 23 | fraction << 13);
#endif
}

template <class T>
struct From;  // to nearest, ties to even
template <>
struct From<float> {
  static __device__ __forceinline__ float of(float x) { return x; }
};
template <>
struct From<bf16> {
  static __device__ __forceinline__ bf16 of(float x) {
    bf16 y;
#ifndef CUDA_EMULATOR
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(y.bits) : "f"(x));
#else
    uint32_t u = __float_as_uint(x);
    y.bits = uint16_t((u & 0x7fffffffu) > 0x7f800000u ? 0x7fffu : (u + 0x7fffu + (u >> 16 & 1u)) >> 16);
#endif
    return y;
  }
};
template <>
struct From<f16> {
  static __device__ __forceinline__ f16 of(float x) {
    f16 y;
#ifndef CUDA_EMULATOR
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(y.bits) : "f"(x));
#else
    uint32_t u = __float_as_uint(x), sign = u >> 16 & 0x8000u, magnitude = u & 0x7fffffffu;
    if (magnitude > 0x7f800000u) y.bits = 0x7fff;
    else if (magnitude >= 0x477ff000u) y.bits = uint16_t(sign | 0x7c00u);
    else if (magnitude < 0x38800000u)  // subnormal: a sum with 0.5 rounds at 2^-24
      y.bits = uint16_t(sign | (__float_as_uint(__uint_as_float(magnitude) + 0.5f) - 0x3f000000u));
    else y.bits = uint16_t(sign | (magnitude - 0x38000000u + 0xfffu + (magnitude >> 13 & 1u)) >> 13);
#endif
    return y;
  }
};
template <class T>
__device__ __forceinline__ T from_float(float x) { return From<T>::of(x); }
template <class T>
__device__ __forceinline__ uint32_t pack_pair(float low, float high) {
  return uint32_t(from_float<T>(low).bits) | uint32_t(from_float<T>(high).bits) << 16;
}

// Two values of 16 bits and two others, added pair by pair; rounded to nearest even.
template <class T>
__device__ __forceinline__ uint32_t add_pairs(uint32_t a, uint32_t b);
#ifndef CUDA_EMULATOR
template <>
__device__ __forceinline__ uint32_t add_pairs<bf16>(uint32_t a, uint32_t b) {
  uint32_t sum;  // a * 1 + b: bf16 has no addition before sm_90
  asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(sum) : "r"(a), "r"(0x3f803f80u), "r"(b));
  return sum;
}
template <>
__device__ __forceinline__ uint32_t add_pairs<f16>(uint32_t a, uint32_t b) {
  uint32_t sum;
  asm("add.rn.f16x2 %0, %1, %2;" : "=r"(sum) : "r"(a), "r"(b));
  return sum;
}
#else
template <class T>
inline uint32_t add_pairs(uint32_t a, uint32_t b) {
  auto value = [](uint32_t pair, int high) { return to_float(T{uint16_t(high ? pair >> 16 : pair)}); };
  return pack_pair<T>(value(a, 0) + value(b, 0), value(a, 1) + value(b, 1));
}
#endif

// (bits & mask) | more, in one instruction: the compiler makes two of it.
template <uint32_t MASK, uint32_t MORE>
__device__ __forceinline__ uint32_t masked_or(uint32_t bits) {
#ifndef CUDA_EMULATOR
  uint32_t result;
  asm("lop3.b32 %0, %1, %2, %3, 0xea;" : "=r"(result) : "r"(bits), "n"(MASK), "n"(MORE));
  return result;
#else
  return (bits & MASK) | MORE;
#endif
}

// Four int8 as two pairs of 16-bit floats, exactly. Their bytes lie in the order 0, 2, 1, 3. Seven bits below an
// exponent read as 128 (bf16) or 1024 (f16) plus those bits; less the same with the sign's bit, it is the value.
template <class T>
struct Offset;
template <>
struct Offset<bf16> { static constexpr uint32_t BITS = 0x43004300u; };
template <>
struct Offset<f16> { static constexpr uint32_t BITS = 0x64006400u; };
template <class T>
__device__ __forceinline__ uint32_t widen_two(uint32_t bytes) {
  constexpr uint32_t NEGATIVE = Offset<T>::BITS | 0x80008000u;
  return add_pairs<T>(masked_or<0x007f007fu, Offset<T>::BITS>(bytes), masked_or<0x00800080u, NEGATIVE>(bytes));
}
template <class T>
__device__ __forceinline__ void widen(uint32_t bytes, uint32_t& first, uint32_t& second) {
  first = widen_two<T>(bytes);
  second = widen_two<T>(bytes >> 8);
}

// ── memory ──────────────────────────────────────────────────────────────────────────────────────

// 16 bytes that nobody reads again: weights.
__device__ __forceinline__ uint4 load_stream(const uint4* p) {
#ifndef CUDA_EMULATOR
  uint4 v;
  asm volatile("ld.global.L1::no_allocate.v4.u32 {%0,%1,%2,%3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(p));
  return v;
#else
  return *p;
#endif
}

#ifndef CUDA_EMULATOR
__device__ __forceinline__ uint32_t shared_address(const void* p) { return uint32_t(__cvta_generic_to_shared(p)); }
#endif

// 16 bytes to shared memory, behind the back; zeros when not `valid`, and then `source` is not read.
__device__ __forceinline__ void copy_async_16(void* target, const void* source, bool valid) {
#ifndef CUDA_EMULATOR
  int bytes = valid ? 16 : 0;
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(target)), "l"(source), "r"(bytes)
               : "memory");
#else
  emulator::copy_async(target, source, 16, valid ? 16 : 0);
#endif
}
__device__ __forceinline__ void copy_async_commit() {
#ifndef CUDA_EMULATOR
  asm volatile("cp.async.commit_group;" ::: "memory");
#else
  emulator::copy_async_commit();
#endif
}
template <int GROUPS_LEFT>
__device__ __forceinline__ void copy_async_wait() {
#ifndef CUDA_EMULATOR
  asm volatile("cp.async.wait_group %0;" ::"n"(GROUPS_LEFT) : "memory");
#else
  emulator::copy_async_wait(GROUPS_LEFT);
#endif
}

// Programmatic dependent launch: wait for the results of the kernel before; let the next one start its prologue.
__device__ __forceinline__ void wait_for_predecessor() {
#if !defined(CUDA_EMULATOR) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
__device__ __forceinline__ void launch_successor() {
#if !defined(CUDA_EMULATOR) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

// ── tensor cores ────────────────────────────────────────────────────────────────────────────────
//
// mma m16n8k16: d[16, 8] += a[16, 16] b[16, 8]. Lane = 4 * g + t holds of a: rows g and g + 8, columns 2t, 2t+1 and
// 2t+8, 2t+9, as {(g, low), (g+8, low), (g, high), (g+8, high)}; of b: rows 2t, 2t+1 and 2t+8, 2t+9 of column g;
// of d: rows g and g + 8, columns 2t and 2t + 1.

#ifdef CUDA_EMULATOR
namespace emulator {
struct Mma {
  float d[4];
  uint32_t a[4], b[2];
};
template <class T>
inline float half_of(uint32_t pair, int high) { return to_float(T{uint16_t(high ? pair >> 16 : pair)}); }
template <class T>
inline void run_mma(void** records, int) {
  float a[16][16], b[16][8];
  for (int lane = 0; lane < 32; lane++) {
    auto* mine = static_cast<Mma*>(records[lane]);
    int g = lane >> 2, t = (lane & 3) * 2;
    for (int h = 0; h < 2; h++) {
      a[g][t + h] = half_of<T>(mine->a[0], h);
      a[g + 8][t + h] = half_of<T>(mine->a[1], h);
      a[g][t + 8 + h] = half_of<T>(mine->a[2], h);
      a[g + 8][t + 8 + h] = half_of<T>(mine->a[3], h);
      b[t + h][g] = half_of<T>(mine->b[0], h);
      b[t + 8 + h][g] = half_of<T>(mine->b[1], h);
    }
  }
  for (int lane = 0; lane < 32; lane++) {
    auto* mine = static_cast<Mma*>(records[lane]);
    for (int i = 0; i < 4; i++) {
      int row = (lane >> 2) + (i >> 1) * 8, column = (lane & 3) * 2 + (i & 1);
      float sum = 0;
      for (int k = 0; k < 16; k++) sum += a[row][k] * b[k][column];
      mine->d[i] += sum;
    }
  }
}
struct LoadMatrix {
  uint16_t row[8];
  uint32_t out[4];
  uintptr_t address;
};
inline void run_load_matrix_transposed(void** records, int line) {
  for (int j = 0; j < 4; j++) {
    int hits[8] = {0}, ways = 0;
    for (int k = 0; k < 8; k++) hits[static_cast<LoadMatrix*>(records[j * 8 + k])->address >> 4 & 7]++;
    for (int k = 0; k < 8; k++) ways = hits[k] > ways ? hits[k] : ways;
    if (ways > 1) count_bank_conflict(line, ways);
    for (int lane = 0; lane < 32; lane++) {
      int g = lane >> 2, t = (lane & 3) * 2;
      auto at = [&](int row, int column) { return uint32_t(static_cast<LoadMatrix*>(records[j * 8 + row])->row[column]); };
      static_cast<LoadMatrix*>(records[lane])->out[j] = at(t, g) | at(t + 1, g) << 16;
    }
  }
}
}  // namespace emulator
#endif

template <class T>
__device__ __forceinline__ void mma(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1);
#ifndef CUDA_EMULATOR
#define DEFINE_MMA(T, name)                                                                                            \
  template <>                                                                                                          \
  __device__ __forceinline__ void mma<T>(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {            \
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32." name "." name ".f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, " \
                 "{%0,%1,%2,%3};"                                                                                      \
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])                                                      \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));                                      \
  }
DEFINE_MMA(bf16, "bf16")
DEFINE_MMA(f16, "f16")
#else
template <class T>
inline void mma(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  emulator::Mma record{{d[0], d[1], d[2], d[3]}, {a[0], a[1], a[2], a[3]}, {b0, b1}};
  emulator::warp_operation(emulator::MMA, ALL_LANES, &record, &emulator::run_mma<T>, 0, 0, false);
  for (int i = 0; i < 4; i++) d[i] = record.d[i];
}
#endif

// wgmma m64n256k16: d[64, 256] += a[64, 16] b[256, 16]^T for four warps, from shared memory, behind the back. Both lie in
// blocks of 8 rows and 8 columns, 128 bytes, the two of a row one after the other. Warp w holds of d rows 16w + g and
// 16w + g + 8, and 32 times 8 columns, each as mma does. Between start and wait d is not touched.
#if defined(CUDA_EMULATOR) || (defined(__CUDA_ARCH_FEAT_SM90_ALL) && __CUDA_ARCH__ == 900)
#define HAS_WARPGROUP_MMA 1
#ifndef CUDA_EMULATOR
// From address of a tile: 128 bytes to the next 8 columns, 256 to the next 8 rows, not swizzled.
__device__ __forceinline__ uint64_t tile_descriptor(const bf16* tile) {
  return uint64_t(shared_address(tile) >> 4 & 0x3fff) | uint64_t(128 >> 4) << 16 | uint64_t(256 >> 4) << 32;
}
#endif
__device__ __forceinline__ void warpgroup_start(float (&d)[128]) {
#ifndef CUDA_EMULATOR
  for (int i = 0; i < 128; i++) asm volatile("" : "+f"(d[i])::"memory");
  asm volatile("fence.proxy.async.shared::cta;\nwgmma.fence.sync.aligned;" ::: "memory");
#endif
}
__device__ __forceinline__ void warpgroup_mma(float (&d)[128], const bf16* a, const bf16* b) {
#ifndef CUDA_EMULATOR
  asm volatile("{.reg .pred p; setp.eq.u32 p, 0, 0; wgmma.mma_async.sync.aligned.m64n256k16.f32.bf16.bf16 "
               "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
               "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
               "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
               "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, "
               "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, "
               "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, "
               "%96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, "
               "%112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127}, "
               "%128, %129, p, 1, 1, 0, 0;}"
               : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]),
                 "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]),
                 "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]),
                 "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31]),
                 "+f"(d[32]), "+f"(d[33]), "+f"(d[34]), "+f"(d[35]), "+f"(d[36]), "+f"(d[37]), "+f"(d[38]), "+f"(d[39]),
                 "+f"(d[40]), "+f"(d[41]), "+f"(d[42]), "+f"(d[43]), "+f"(d[44]), "+f"(d[45]), "+f"(d[46]), "+f"(d[47]),
                 "+f"(d[48]), "+f"(d[49]), "+f"(d[50]), "+f"(d[51]), "+f"(d[52]), "+f"(d[53]), "+f"(d[54]), "+f"(d[55]),
                 "+f"(d[56]), "+f"(d[57]), "+f"(d[58]), "+f"(d[59]), "+f"(d[60]), "+f"(d[61]), "+f"(d[62]), "+f"(d[63]),
                 "+f"(d[64]), "+f"(d[65]), "+f"(d[66]), "+f"(d[67]), "+f"(d[68]), "+f"(d[69]), "+f"(d[70]), "+f"(d[71]),
                 "+f"(d[72]), "+f"(d[73]), "+f"(d[74]), "+f"(d[75]), "+f"(d[76]), "+f"(d[77]), "+f"(d[78]), "+f"(d[79]),
                 "+f"(d[80]), "+f"(d[81]), "+f"(d[82]), "+f"(d[83]), "+f"(d[84]), "+f"(d[85]), "+f"(d[86]), "+f"(d[87]),
                 "+f"(d[88]), "+f"(d[89]), "+f"(d[90]), "+f"(d[91]), "+f"(d[92]), "+f"(d[93]), "+f"(d[94]), "+f"(d[95]),
                 "+f"(d[96]), "+f"(d[97]), "+f"(d[98]), "+f"(d[99]), "+f"(d[100]), "+f"(d[101]), "+f"(d[102]), "+f"(d[103]),
                 "+f"(d[104]), "+f"(d[105]), "+f"(d[106]), "+f"(d[107]), "+f"(d[108]), "+f"(d[109]), "+f"(d[110]), "+f"(d[111]),
                 "+f"(d[112]), "+f"(d[113]), "+f"(d[114]), "+f"(d[115]), "+f"(d[116]), "+f"(d[117]), "+f"(d[118]), "+f"(d[119]),
                 "+f"(d[120]), "+f"(d[121]), "+f"(d[122]), "+f"(d[123]), "+f"(d[124]), "+f"(d[125]), "+f"(d[126]), "+f"(d[127])
               : "l"(tile_descriptor(a)), "l"(tile_descriptor(b)));
#else
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5 & 3;
  auto at = [](const bf16* tile, int row, int k) { return to_float(tile[row / 8 * 128 + k / 8 * 64 + row % 8 * 8 + k % 8]); };
  for (int i = 0; i < 128; i++) {
    const int row = warp * 16 + (lane >> 2) + (i >> 1 & 1) * 8, column = i / 4 * 8 + (lane & 3) * 2 + (i & 1);
    float sum = 0;
    for (int k = 0; k < 16; k++) sum += at(a, row, k) * at(b, column, k);
    d[i] += sum;
  }
#endif
}
__device__ __forceinline__ void warpgroup_wait(float (&d)[128]) {
#ifndef CUDA_EMULATOR
  asm volatile("wgmma.commit_group.sync.aligned;\nwgmma.wait_group.sync.aligned 0;" ::: "memory");
  for (int i = 0; i < 128; i++) asm volatile("" : "+f"(d[i])::"memory");
#endif
}
#endif

// Four 8x8 matrices of 16-bit values from shared memory, transposed: lane l gives the address of row l % 8 of matrix
// l / 8 and receives of matrix j the pair (rows 2t and 2t+1, column g) in r[j].
__device__ __forceinline__ void load_matrices_transposed(uint32_t (&r)[4], const void* row) {
#ifndef CUDA_EMULATOR
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(shared_address(row)) : "memory");
#else
  emulator::LoadMatrix record;
  record.address = reinterpret_cast<uintptr_t>(row);
  if (record.address & 15) emulator::fail("a row of ldmatrix is not 16-byte aligned");
  for (int i = 0; i < 8; i++) record.row[i] = static_cast<const uint16_t*>(row)[i];
  emulator::warp_operation(emulator::LDMATRIX, ALL_LANES, &record, &emulator::run_load_matrix_transposed, 0, 0, false);
  for (int j = 0; j < 4; j++) r[j] = record.out[j];
#endif
}

// ── reductions, in an order that depends on nothing ─────────────────────────────────────────────

__device__ __forceinline__ float warp_sum(float v) {
#pragma unroll
  for (int offset = 16; offset; offset >>= 1) v += __shfl_xor_sync(ALL_LANES, v, offset);
  return v;
}
__device__ __forceinline__ float warp_max(float v) {
#pragma unroll
  for (int offset = 16; offset; offset >>= 1) v = fmaxf(v, __shfl_xor_sync(ALL_LANES, v, offset));
  return v;
}
