// Atomics, fences and mathematics of the emulator, with the names that CUDA gives them.
#pragma once

#define __threadfence() emulator::fence()
#define __threadfence_block() emulator::fence()

template <class T, class F>
inline T emulator_read_modify_write(T* place, F change) {
  emulator::before_atomic(place);
  T before, after;
  __atomic_load(place, &before, __ATOMIC_RELAXED);
  do {
    after = change(before);
  } while (!__atomic_compare_exchange(place, &before, &after, true, __ATOMIC_RELAXED, __ATOMIC_RELAXED));
  emulator::after_atomic(place);
  return before;
}
template <class T, class U>
inline T atomicAdd(T* p, U v) { return emulator_read_modify_write(p, [=](T old) { return T(old + v); }); }
template <class T, class U>
inline T atomicMax(T* p, U v) { return emulator_read_modify_write(p, [=](T old) { return old > T(v) ? old : T(v); }); }
template <class T, class U>
inline T atomicMin(T* p, U v) { return emulator_read_modify_write(p, [=](T old) { return old < T(v) ? old : T(v); }); }
template <class T, class U>
inline T atomicExch(T* p, U v) { return emulator_read_modify_write(p, [=](T) { return T(v); }); }
inline unsigned atomicInc(unsigned* p, unsigned limit) {
  return emulator_read_modify_write(p, [=](unsigned old) { return old >= limit ? 0u : old + 1u; });
}

template <class T>
inline T __ldg(const T* p) { return *p; }
inline float __expf(float x) { return expf(x); }
inline float __logf(float x) { return logf(x); }
inline float rsqrtf(float x) { return 1.0f / sqrtf(x); }
inline float __fdividef(float a, float b) { return a / b; }
inline float __fmaf_rn(float a, float b, float c) { return fmaf(a, b, c); }
inline float __fadd_rn(float a, float b) { return a + b; }
inline float __fmul_rn(float a, float b) { return a * b; }
inline void sincospif(float x, float* sine, float* cosine) {
  *sine = float(sin(double(x) * 3.14159265358979323846));
  *cosine = float(cos(double(x) * 3.14159265358979323846));
}
inline int __popc(unsigned x) { return __builtin_popcount(x); }
inline int __clz(int x) { return x ? __builtin_clz(unsigned(x)) : 32; }
inline int __ffs(int x) { return __builtin_ffs(x); }
inline unsigned __umulhi(unsigned a, unsigned b) { return unsigned((uint64_t(a) * b) >> 32); }
inline float __uint_as_float(unsigned u) { float f; memcpy(&f, &u, 4); return f; }
inline unsigned __float_as_uint(float f) { unsigned u; memcpy(&u, &f, 4); return u; }
inline int __float_as_int(float f) { int i; memcpy(&i, &f, 4); return i; }
inline float __int_as_float(int i) { float f; memcpy(&f, &i, 4); return f; }
template <class T>
inline T min(T a, T b) { return a < b ? a : b; }
template <class T>
inline T max(T a, T b) { return a > b ? a : b; }
