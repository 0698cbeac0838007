// The emulator's scheduler: fibres, barriers, warp operations, shared memory, asynchronous copies, race model.
//
// Compiled without sanitizers, which find their hooks through weak symbols. EMULATOR_SEED fuzzes the schedule,
// EMULATOR_THREADS bounds the system threads. A fault is reported by emulator_last_error, in one sentence.
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

// ── barriers and warps ──────────────────────────────────────────────────────────────────────────

int sync_threads(int line, int predicate, Reduce reduce) {
  Fibre* fibre = me();
  Block* block = fibre->block;
  fibre->line = line;
  if (block->arrived == 0) {
    block->line = line;
    block->reduced = reduce == Reduce::AND;
  } else if (block->line != line) {
    fail("threads of one block meet at different barriers, lines %d and %d", block->line, line);
  }
  if (reduce == Reduce::COUNT) block->reduced += predicate != 0;
  if (reduce == Reduce::AND) block->reduced &= predicate != 0;
  if (reduce == Reduce::OR) block->reduced |= predicate != 0;
  char* order = &block->order[block->epoch & 1];
  release(order);
  if (++block->arrived == block->alive) {
    for (Fibre* other : block->fibres) other->result = block->reduced;
    open_barrier(block);
  } else {
    fibre->state = State::AT_BARRIER;
    yield();
  }
  acquire(order);
  return fibre->result;
}

static void run_for_all(Warp* warp, Fibre* last, Execute execute, int aux) {
  void* records[32];
  for (int lane = 0; lane < 32; lane++) {
    records[lane] = nullptr;
    if (!(last->mask >> lane & 1)) continue;
    Fibre* other = warp->fibres[lane];
    if (other->kind != last->kind || other->mask != last->mask || (other->line != last->line && last->kind != SYNC))
      fail("lanes of one warp part: lane %d is at line %d, lane %d at line %d", last->lane, last->line, lane, other->line);
    records[lane] = other->record;
  }
  if (AnnotateIgnoreReadsBegin) { AnnotateIgnoreReadsBegin("", 0); AnnotateIgnoreWritesBegin("", 0); }
  execute(records, aux);
  if (AnnotateIgnoreReadsBegin) { AnnotateIgnoreReadsEnd("", 0); AnnotateIgnoreWritesEnd("", 0); }
}

void warp_operation(int kind, uint32_t mask, void* record, Execute execute, int aux, int line, bool orders_memory) {
  Fibre* fibre = me();
  Warp* warp = fibre->warp;
  mask &= warp->exists;
  if (!(mask >> fibre->lane & 1)) fail("line %d: lane %d is not in its own mask %08x", line, fibre->lane, mask);
  fibre->kind = kind;
  fibre->mask = mask;
  fibre->record = record;
  fibre->line = line;
  char* order = &warp->order[warp->epoch & 1];
  if (orders_memory) release(order);
  uint32_t here = (warp->waiting | 1u << fibre->lane) & mask;
  if (here == mask) {
    run_for_all(warp, fibre, execute, aux);
    warp->waiting &= ~mask;
    warp->epoch++;
    for (int lane = 0; lane < 32; lane++)
      if (mask >> lane & 1 && lane != fibre->lane) make_ready(warp->fibres[lane]);
  } else {
    warp->waiting |= 1u << fibre->lane;
    fibre->state = State::IN_WARP;
    yield();
  }
  if (orders_memory) acquire(order);
}

void spin() {
  make_ready(me());
  yield();
}

// ── race model: atomics alone order nothing; a fence makes earlier atomic reads acquires, later writes releases ──

void fence() {
  Fibre* fibre = me();
  fibre->releases = true;
  int known = fibre->num_atomics < MAX_ATOMICS ? fibre->num_atomics : MAX_ATOMICS;
  for (int i = 0; i < known; i++) acquire(const_cast<void*>(fibre->to_acquire[i]));
  fibre->num_atomics = 0;
}
void before_atomic(const volatile void* place) {
  if (me()->releases) release(const_cast<void*>(place));
}
void after_atomic(const volatile void* place) {
  Fibre* fibre = me();
  fibre->to_acquire[fibre->num_atomics++ % MAX_ATOMICS] = const_cast<const void*>(place);
}

// ── shared memory: poisoned with 0xff (nan in every float type), with red zones ─────────────────

static char* carve(Block* block, size_t bytes) {
  size_t start = (block->used + 127) & ~size_t(127);
  if (start + bytes + RED_ZONE_BYTES > ARENA_BYTES) fail("%zu bytes of shared memory do not fit", bytes);
  block->used = start + bytes + RED_ZONE_BYTES;
  if (__asan_unpoison_memory_region) __asan_unpoison_memory_region(block->arena + start, bytes);
  return block->arena + start;
}
void* shared_array(int id, size_t bytes) {
  Block* block = me()->block;
  for (SharedArray& array : block->arrays)
    if (array.id == id) return array.place;
  if (block->arrays.size() == MAX_SHARED_ARRAYS) fail("more than %d shared arrays", MAX_SHARED_ARRAYS);
  block->arrays.push_back({id, carve(block, bytes)});
  return block->arrays.back().place;
}
void* dynamic_shared() { return me()->block->arena; }
void count_bank_conflict(int, int ways) { num_bank_conflicts += ways - 1; }

// ── asynchronous copies ─────────────────────────────────────────────────────────────────────────

static void land_plainly(void* target, const void* source, int bytes, int valid) {
  for (int i = 0; i < bytes; i++)
    static_cast<volatile char*>(target)[i] = i < valid ? static_cast<const volatile char*>(source)[i] : 0;
}
void (*land_copy)(void*, const void*, int, int) = land_plainly;  // the sanitizer drivers replace it by an instrumented one

void copy_async(void* target, const void* source, int bytes, int valid) {
  if ((reinterpret_cast<uintptr_t>(target) | (valid ? reinterpret_cast<uintptr_t>(source) : 0)) & uintptr_t(bytes - 1))
    fail("an asynchronous copy of %d bytes is not aligned", bytes);
  Fibre* fibre = me();
  if (fibre->num_copies == MAX_COPIES) fail("more than %d asynchronous copies of one thread are under way", MAX_COPIES);
  memset(target, 0xff, size_t(bytes));
  fibre->copies[fibre->num_copies++] = {target, source, bytes, valid, fibre->group};
}
void copy_async_commit() { me()->group++; }
void copy_async_wait(int groups_left) {
  Fibre* fibre = me();
  int kept = 0;
  for (int i = 0; i < fibre->num_copies; i++) {
    const Copy copy = fibre->copies[i];
    if (copy.group < fibre->group - groups_left) land_copy(copy.target, copy.source, copy.bytes, copy.valid);
    else fibre->copies[kept++] = copy;
  }
  fibre->num_copies = kept;
}

// ── blocks ──────────────────────────────────────────────────────────────────────────────────────

namespace {

void report_deadlock(Scheduler* s, size_t num_fibres) {
  int at_barrier = 0, in_warp = 0, line = 0;
  for (size_t i = 0; i < num_fibres; i++) {
    Fibre* fibre = s->fibres[i];
    if (fibre->state != State::DONE) line = fibre->line;
    at_barrier += fibre->state == State::AT_BARRIER;
    in_warp += fibre->state == State::IN_WARP;
  }
  char text[200];
  snprintf(text, sizeof text, "%s: deadlock, %d threads at a barrier, %d in warp operations, one at line %d", s->job->name,
           at_barrier, in_warp, line);
  std::lock_guard<std::mutex> guard(error_lock);
  if (error.empty()) error = text;
  has_failed = true;
}

void prepare_stack(Fibre* fibre, size_t index) {
  if (__tsan_create_fiber) {  // fresh stacks, or the detector would take reuse for a race
    if (fibre->stack) munmap(fibre->stack, STACK_BYTES);
    if (fibre->tsan) __tsan_destroy_fiber(fibre->tsan);
    fibre->stack = nullptr;
    fibre->tsan = __tsan_create_fiber(0);
  }
  if (!fibre->stack) fibre->stack = map_pages(STACK_BYTES);
  if (__asan_unpoison_memory_region) __asan_unpoison_memory_region(fibre->stack, STACK_BYTES);
  size_t colour = index * 5 % 61 * 64;  // equal offsets would share cache sets
  void** top = reinterpret_cast<void**>(fibre->stack + STACK_BYTES - 64 - colour);
  *--top = nullptr;
  *--top = reinterpret_cast<void*>(run_fibre);
  for (int i = 0; i < 6; i++) *--top = nullptr;
  fibre->stack_pointer = top;
}

void prepare_fibre(Scheduler* s, Block* block, Fibre* fibre, size_t index, size_t block_number) {
  Job* job = s->job;
  unsigned t = unsigned(index), b = unsigned(block_number);
  fibre->thread_index = {t % job->block.x, t / job->block.x % job->block.y, t / job->block.x / job->block.y};
  fibre->block_index = {b % job->grid.x, b / job->grid.x % job->grid.y, b / job->grid.x / job->grid.y};
  fibre->block_size = job->block;
  fibre->grid_size = job->grid;
  fibre->lane = int(t & 31);
  fibre->warp = &block->warps[t >> 5];
  fibre->warp->fibres[t & 31] = fibre;
  fibre->warp->exists |= 1u << (t & 31);
  fibre->block = block;
  fibre->scheduler = s;
  fibre->fake_stack = nullptr;
  fibre->num_copies = fibre->group = fibre->num_atomics = 0;
  fibre->releases = false;
}

void run_block(Scheduler* s, size_t block_number) {
  Job* job = s->job;
  size_t num_threads = size_t(job->block.x) * job->block.y * job->block.z;
  while (s->fibres.size() < num_threads) {
    Fibre* fibre = new Fibre();
    fibre->copies = new Copy[MAX_COPIES];
    s->fibres.push_back(fibre);
  }
  s->queue.resize(num_threads);
  s->head = s->tail = 0;
  s->live = num_threads;
  Block block;
  if (__tsan_create_fiber || !s->arena) s->arena = map_pages(ARENA_BYTES);
  block.arena = s->arena;
  if (__asan_unpoison_memory_region) __asan_unpoison_memory_region(block.arena, ARENA_BYTES);
  memset(block.arena, 0xff, job->shared_bytes + 65536 < ARENA_BYTES ? job->shared_bytes + 65536 : ARENA_BYTES);
  if (__asan_poison_memory_region) __asan_poison_memory_region(block.arena, ARENA_BYTES);
  block.fibres.assign(s->fibres.begin(), s->fibres.begin() + long(num_threads));
  block.warps.resize((num_threads + 31) / 32);
  block.arrays.reserve(MAX_SHARED_ARRAYS);
  block.alive = int(num_threads);
  if (job->shared_bytes) carve(&block, job->shared_bytes);
  for (size_t i = 0; i < num_threads; i++) {
    prepare_fibre(s, &block, s->fibres[i], i, block_number);
    prepare_stack(s->fibres[i], i);
    make_ready(s->fibres[i]);
  }
  if (__tsan_get_current_fiber) s->main_tsan = __tsan_get_current_fiber();
  while (!has_failed) {
    Fibre* fibre = next(s);
    if (!fibre) break;
    switch_to(s, nullptr, fibre);
  }
  if (!has_failed && s->live) report_deadlock(s, num_threads);
}

struct Pool {
  std::mutex lock;
  std::condition_variable starts, ends;
  std::vector<std::thread> threads;
  uint64_t generation = 0;
  int num_busy = 0, size;
  Job* job = nullptr;
  std::atomic<size_t> next_block;

  Pool() : size(setting("EMULATOR_THREADS", int(std::thread::hardware_concurrency()))) {
    if (size < 1) size = 1;
    for (int i = 0; i < size; i++) threads.emplace_back([this, i] { work(i); });
    for (auto& thread : threads) thread.detach();  // they live as long as the process
  }
  void work(int index) {
    Scheduler scheduler;
    uint64_t seen = 0;
    for (;;) {
      {
        std::unique_lock<std::mutex> guard(lock);
        starts.wait(guard, [&] { return generation != seen; });
        seen = generation;
      }
      int seed = setting("EMULATOR_SEED", 0);
      scheduler.random = scheduler.salt = seed ? uint64_t(seed) + 77 * uint64_t(index) : 0;
      scheduler.job = job;
      size_t num_blocks = size_t(job->grid.x) * job->grid.y * job->grid.z;
      for (size_t block; !has_failed && (block = next_block++) < num_blocks;) run_block(&scheduler, block);
      std::lock_guard<std::mutex> guard(lock);
      if (--num_busy == 0) ends.notify_all();
    }
  }
  void run(Job* one) {
    std::unique_lock<std::mutex> guard(lock);
    job = one;
    next_block = 0;
    num_busy = size;
    generation++;
    starts.notify_all();
    ends.wait(guard, [&] { return num_busy == 0; });
  }
};
std::mutex launch_lock;

}  // namespace

int launch(Thunk thunk, void* kernel, dim3 grid, dim3 block, size_t shared_bytes, void** arguments, const char* name) {
  std::lock_guard<std::mutex> guard(launch_lock);
  static Pool* pool = new Pool();
  error.clear();
  has_failed = false;
  size_t num_threads = size_t(block.x) * block.y * block.z;
  if (!num_threads || num_threads > 1024 || shared_bytes > 227 * 1024 || !grid.x || !grid.y || !grid.z || grid.y > 65535 ||
      grid.z > 65535) {
    error = std::string(name) + ": invalid launch configuration";
    return 1;
  }
  Job job{thunk, kernel, arguments, grid, block, shared_bytes, name};
  release(&launch_order);
  pool->run(&job);
  acquire(&done_order);
  return has_failed ? 1 : 0;
}

extern "C" const char* emulator_last_error() { return error.c_str(); }
extern "C" long emulator_bank_conflicts() { return num_bank_conflicts.exchange(0); }

}  // namespace emulator
