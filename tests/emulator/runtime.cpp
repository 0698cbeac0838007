// The emulator's scheduler: fibres, barriers, warp operations, shared memory, asynchronous copies, race model.
//
// Compiled without sanitizers, which find their hooks through weak symbols. EMULATOR_SEED fuzzes the schedule,
// EMULATOR_THREADS bounds the system threads. A fault is reported by emulator_last_error, in one sentence.
#include "fibres.h"
#include "operations.h"

namespace emulator {

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
  if (!num_threads || num_threads > 1024 || shared_bytes > MOST_SHARED_BYTES || !grid.x || !grid.y || !grid.z || grid.y > 65535 ||
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
