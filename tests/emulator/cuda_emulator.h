// Runs CUDA C++ kernels on the CPU: one fibre per CUDA thread, one system thread per running block.
//
// This is the device side, included before a kernel's source: keywords, indices, barriers, shared memory.
// Warp operations are in warp.h, atomics and mathematics in intrinsics.h, the scheduler in runtime.cpp.
// Not modelled: memory order beyond fences, occupancy, registers, approximate functions' rounding.
#pragma once
#define CUDA_EMULATOR 1

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <utility>

#define __global__
#define __device__
#define __host__
#define __constant__ static
#define __forceinline__ inline __attribute__((always_inline))
#define __launch_bounds__(...)
#define __align__(n) alignas(n)

struct dim3 {
  unsigned x, y, z;
  dim3(unsigned a = 1, unsigned b = 1, unsigned c = 1) : x(a), y(b), z(c) {}
};
struct uint3 { unsigned x, y, z; };
struct alignas(8) uint2 { unsigned x, y; };
struct alignas(16) uint4 { unsigned x, y, z, w; };
struct alignas(16) int4 { int x, y, z, w; };
struct alignas(8) float2 { float x, y; };
struct alignas(16) float4 { float x, y, z, w; };
inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }
inline uint2 make_uint2(unsigned x, unsigned y) { return {x, y}; }
inline float2 make_float2(float x, float y) { return {x, y}; }
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }

namespace emulator {

// What device code reads of its own thread.
struct Thread {
  uint3 thread_index, block_index;
  dim3 block_size, grid_size;
  int lane;
};
extern __attribute__((tls_model("initial-exec"))) thread_local Thread* self;

[[noreturn]] void fail(const char* format, ...) __attribute__((format(printf, 1, 2)));

enum class Reduce { COUNT, AND, OR };
int sync_threads(int line, int predicate, Reduce reduce);

// Every lane of `mask` posts a record and waits; the last to arrive runs `execute` once for all of them:
// records[lane] is that lane's record, null if absent. `orders_memory` also makes it a memory barrier.
using Execute = void (*)(void** records, int aux);
void warp_operation(int kind, uint32_t mask, void* record, Execute execute, int aux, int line, bool orders_memory);

void* shared_array(int id, size_t bytes);
void* dynamic_shared();

// A copy may land at any time between its issue and the wait that covers it: until then the target is poison.
void copy_async(void* target, const void* source, int bytes, int valid_bytes);
void copy_async_commit();
void copy_async_wait(int groups_left);

void fence();
void before_atomic(const volatile void* place);
void after_atomic(const volatile void* place);
void spin();  // call inside loops that poll
void count_bank_conflict(int line, int ways);

using Thunk = void (*)(void* kernel, void** arguments);
int launch(Thunk thunk, void* kernel, dim3 grid, dim3 block, size_t shared_bytes, void** arguments, const char* name);

template <class... A, size_t... I>
inline void call(void (*kernel)(A...), void** arguments, std::index_sequence<I...>) {
  kernel(*reinterpret_cast<std::remove_reference_t<A>*>(arguments[I])...);
}
template <class... A>
inline void thunk(void* kernel, void** arguments) {
  call(reinterpret_cast<void (*)(A...)>(kernel), arguments, std::index_sequence_for<A...>{});
}
template <class... A>
inline int launch_kernel(void (*kernel)(A...), dim3 grid, dim3 block, size_t shared_bytes, void** arguments,
                         const char* name) {
  return launch(&thunk<A...>, reinterpret_cast<void*>(kernel), grid, block, shared_bytes, arguments, name);
}

}  // namespace emulator

// One C symbol per kernel, with the driver's calling form: an array of pointers to the arguments.
#define EMULATOR_EXPORT(symbol, ...)                                                                          \
  extern "C" int emulate_##symbol(unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by,            \
                                  unsigned bz, size_t shared_bytes, void** arguments) {                       \
    return emulator::launch_kernel(&__VA_ARGS__, dim3(gx, gy, gz), dim3(bx, by, bz), shared_bytes, arguments, \
                                   #symbol);                                                                  \
  }

#define threadIdx (emulator::self->thread_index)
#define blockIdx (emulator::self->block_index)
#define blockDim (emulator::self->block_size)
#define gridDim (emulator::self->grid_size)
#define __syncthreads() ((void)emulator::sync_threads(__LINE__, 0, emulator::Reduce::COUNT))
#define __syncthreads_count(p) emulator::sync_threads(__LINE__, (p), emulator::Reduce::COUNT)
#define __syncthreads_and(p) emulator::sync_threads(__LINE__, (p), emulator::Reduce::AND)
#define __syncthreads_or(p) emulator::sync_threads(__LINE__, (p), emulator::Reduce::OR)
#define SHARED_ARRAY(T, name, n) T* name = static_cast<T*>(emulator::shared_array(__COUNTER__, sizeof(T) * (n)))
#define DYNAMIC_SHARED(T, name) T* name = static_cast<T*>(emulator::dynamic_shared())

#include "intrinsics.h"
#include "warp.h"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
namespace emulator {
// The bytes of an asynchronous copy land in instrumented code, so that the sanitizer sees both ends.
extern void (*land_copy)(void*, const void*, int, int);
static const bool lands_in_sight = (land_copy = [](void* target, const void* source, int bytes, int valid) {
  for (int i = 0; i < bytes; i++) static_cast<char*>(target)[i] = i < valid ? static_cast<const char*>(source)[i] : 0;
}, true);
}  // namespace emulator
#endif
