// The emulator's fibres: what a block, a warp and a thread are here, who runs next, and how a fault ends a launch.
// Part of runtime.cpp, which is compiled without sanitizers; they find their hooks through weak symbols.
#pragma once

#include "cuda_emulator.h"

#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <sys/mman.h>

#include <atomic>
#include <condition_variable>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

extern "C" {
__attribute__((weak)) void* __tsan_create_fiber(unsigned);
__attribute__((weak)) void __tsan_destroy_fiber(void*);
__attribute__((weak)) void* __tsan_get_current_fiber();
__attribute__((weak)) void __tsan_switch_to_fiber(void*, unsigned);
__attribute__((weak)) void __tsan_acquire(void*);
__attribute__((weak)) void __tsan_release(void*);
__attribute__((weak)) void AnnotateIgnoreReadsBegin(const char*, int);
__attribute__((weak)) void AnnotateIgnoreReadsEnd(const char*, int);
__attribute__((weak)) void AnnotateIgnoreWritesBegin(const char*, int);
__attribute__((weak)) void AnnotateIgnoreWritesEnd(const char*, int);
__attribute__((weak)) void __sanitizer_start_switch_fiber(void**, const void*, size_t);
__attribute__((weak)) void __sanitizer_finish_switch_fiber(void*, const void**, size_t*);
__attribute__((weak)) void __asan_poison_memory_region(void const volatile*, size_t);
__attribute__((weak)) void __asan_unpoison_memory_region(void const volatile*, size_t);
void emulator_switch(void** save, void* load);
}

// x86-64: save the callee's registers, exchange stacks. ucontext would make two system calls a switch.
asm(R"(
.text
.globl emulator_switch
.type emulator_switch,@function
emulator_switch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp,(%rdi)
  movq %rsi,%rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size emulator_switch,.-emulator_switch
)");

namespace emulator {
namespace {

constexpr size_t STACK_BYTES = 128 << 10;
constexpr size_t ARENA_BYTES = 256 << 10;
constexpr size_t MOST_SHARED_BYTES = 99 << 10;  // of a block, on the smallest chips: compute capability 8.6, 8.9, 12.0
constexpr size_t RED_ZONE_BYTES = 128;
constexpr int MAX_SHARED_ARRAYS = 64;
constexpr int MAX_COPIES = 512;
constexpr int MAX_ATOMICS = 8;  // whose order a fence still knows

enum class State : uint8_t { READY, AT_BARRIER, IN_WARP, DONE };
struct Warp;
struct Block;
struct Scheduler;

struct Copy {
  void* target;
  const void* source;
  int bytes, valid, group;
};

struct Fibre : Thread {
  void* stack_pointer;
  char* stack;
  State state;
  Warp* warp;
  Block* block;
  Scheduler* scheduler;
  int kind, line, result;
  uint32_t mask;
  void* record;
  void* tsan;
  void* fake_stack;
  Copy* copies;  // not a vector: the thread sanitizer watches the memmove inside
  int num_copies, group;
  bool releases;
  const void* to_acquire[MAX_ATOMICS];
  int num_atomics;
};

struct Warp {
  Fibre* fibres[32];
  uint32_t exists = 0, waiting = 0;
  char order[2];
  int epoch = 0;
};

struct SharedArray {
  int id;
  char* place;
};

struct Block {
  std::vector<Fibre*> fibres;
  std::vector<Warp> warps;
  std::vector<SharedArray> arrays;
  int arrived = 0, alive = 0, line = 0, epoch = 0, reduced = 0;
  char order[2];
  char* arena;
  size_t used = 0;
};

struct Job {
  Thunk thunk;
  void* kernel;
  void** arguments;
  dim3 grid, block;
  size_t shared_bytes;
  const char* name;
};

struct Scheduler {
  Job* job;
  std::vector<Fibre*> fibres;
  std::vector<Fibre*> queue;  // ring: a fibre is queued at most once
  size_t head = 0, tail = 0;
  void* main_stack_pointer;
  void* main_tsan = nullptr;
  void* main_fake_stack = nullptr;
  const void* main_bottom = nullptr;
  size_t main_size = 0;
  size_t live = 0;
  uint64_t random = 0, salt = 0;
  char* arena = nullptr;
};

char launch_order, done_order;
std::mutex error_lock;
std::string error;
std::atomic<bool> has_failed;
std::atomic<long> num_bank_conflicts;
__attribute__((tls_model("initial-exec"))) thread_local bool in_fibre = false;

Fibre* me() { return static_cast<Fibre*>(self); }
int setting(const char* name, int otherwise) {
  const char* text = getenv(name);
  return text ? atoi(text) : otherwise;
}
char* map_pages(size_t bytes) {
  void* place = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (place == MAP_FAILED) abort();
  return static_cast<char*>(place);
}
void acquire(void* order) { if (__tsan_acquire) __tsan_acquire(order); }
void release(void* order) { if (__tsan_release) __tsan_release(order); }

// ── fibres ──────────────────────────────────────────────────────────────────────────────────────

void make_ready(Fibre* fibre) {
  fibre->state = State::READY;
  Scheduler* s = fibre->scheduler;
  s->queue[s->tail++ % s->queue.size()] = fibre;
}

uint64_t next_random(Scheduler* s) { return s->random = s->random * 6364136223846793005ull + 1442695040888963407ull; }

// In order, or with a seed: the warp of highest random priority runs as far as it gets.
Fibre* next(Scheduler* s) {
  if (s->head == s->tail) return nullptr;
  size_t size = s->queue.size();
  if (s->random) {
    size_t best = s->head;
    uint64_t highest = 0;
    for (size_t i = s->head; i < s->tail; i++) {
      uint64_t priority = (uint64_t(s->queue[i % size]->warp - s->queue[i % size]->block->warps.data()) + 1 + s->salt) *
                              0x9E3779B97F4A7C15ull >> 32;
      if (priority > highest) { highest = priority; best = i; }
    }
    if ((next_random(s) >> 40) % 97 == 0) s->salt = s->random;
    std::swap(s->queue[s->head % size], s->queue[best % size]);
  }
  return s->queue[s->head++ % size];
}

void switch_to(Scheduler* s, Fibre* from, Fibre* to) {  // null = the scheduler itself
  if (from == to) return;
  void** save = from ? &from->stack_pointer : &s->main_stack_pointer;
  if (__sanitizer_start_switch_fiber) {
    void** fake = from ? (from->state == State::DONE ? nullptr : &from->fake_stack) : &s->main_fake_stack;
    __sanitizer_start_switch_fiber(fake, to ? to->stack : s->main_bottom, to ? STACK_BYTES : s->main_size);
  }
  if (__tsan_switch_to_fiber) __tsan_switch_to_fiber(to ? to->tsan : s->main_tsan, 1);
  self = to;
  in_fibre = to != nullptr;
  emulator_switch(save, to ? to->stack_pointer : s->main_stack_pointer);
  if (__sanitizer_finish_switch_fiber)
    __sanitizer_finish_switch_fiber(from ? from->fake_stack : s->main_fake_stack, nullptr, nullptr);
}

void yield() {
  Fibre* fibre = me();
  switch_to(fibre->scheduler, fibre, next(fibre->scheduler));
}

void open_barrier(Block* block) {
  block->arrived = 0;
  block->epoch++;
  for (Fibre* fibre : block->fibres)
    if (fibre->state == State::AT_BARRIER) make_ready(fibre);
}

void run_fibre() {
  Fibre* fibre = me();
  Scheduler* s = fibre->scheduler;
  if (__sanitizer_finish_switch_fiber)
    __sanitizer_finish_switch_fiber(nullptr, s->main_bottom ? nullptr : &s->main_bottom, s->main_size ? nullptr : &s->main_size);
  acquire(&launch_order);
  s->job->thunk(s->job->kernel, s->job->arguments);
  fibre = me();
  if (fibre->num_copies) fail("a thread ends with asynchronous copies that nobody has waited for");
  release(&done_order);
  fibre->state = State::DONE;
  s->live--;
  Block* block = fibre->block;
  block->alive--;
  if (block->alive && block->arrived == block->alive) open_barrier(block);  // who has exited holds up nobody
  yield();
  abort();
}

}  // namespace

__attribute__((tls_model("initial-exec"))) thread_local Thread* self;

void fail(const char* format, ...) {
  char text[800];
  int length = 0;
  Fibre* fibre = in_fibre ? me() : nullptr;
  if (fibre)
    length = snprintf(text, sizeof text, "%s, block (%u,%u,%u), thread %u: ", fibre->scheduler->job->name, fibre->block_index.x,
                      fibre->block_index.y, fibre->block_index.z, fibre->thread_index.x);
  va_list rest;
  va_start(rest, format);
  vsnprintf(text + length, sizeof text - size_t(length), format, rest);
  va_end(rest);
  {
    std::lock_guard<std::mutex> guard(error_lock);
    if (error.empty()) error = text;
  }
  has_failed = true;
  if (fibre) switch_to(fibre->scheduler, fibre, nullptr);
  abort();
}

}  // namespace emulator
