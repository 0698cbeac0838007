// Pool: a thread without work spins for SPIN_NS, then sleeps until the next job. An idle library
// uses no processor time, and a spin is too short to take a core from a process that needs it.
#include "pool.h"

#include <unistd.h>

#include <ctime>
#include <cstdlib>
#include <new>

#include "levels.h"
#include "maker.h"
#include "types.h"

namespace millrace {

static constexpr int64_t SPIN_NS = 50'000;
static constexpr int SPINS_PER_LOOK = 64;
static constexpr int64_t FETCHED_AT_ONCE = 256, MOST_FETCHED = 1 << 20;  // bytes

static int64_t now_ns() {
  timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec * 1'000'000'000LL + t.tv_nsec;
}

static void relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// Fetch a little more of what is expected; relax when that is done.
void Pool::fetch_or_relax(Fetched& mine) {
  const uint8_t* from = expected_.load(std::memory_order_relaxed);
  if (from == nullptr) return relax();
  if (from != mine.of) mine.of = from, mine.bytes = 0;
  int64_t run = expected_bytes_.load(std::memory_order_relaxed) / num_threads();
  if (mine.bytes >= min_of(run, MOST_FETCHED)) return relax();
  const uint8_t* next = from + run * mine.thread + mine.bytes;
  for (int64_t i = 0; i < FETCHED_AT_ONCE; i += 64) __builtin_prefetch(next + i, 0, SECOND_CACHE);
  mine.bytes += FETCHED_AT_ONCE;
}

// Spin until `done()` or the time is up; say whether it is done.
template <class Done>
bool Pool::spin(Fetched& mine, Done&& done) {
  int64_t end = now_ns() + SPIN_NS;
  do {
    for (int i = 0; i < SPINS_PER_LOOK; i++) {
      if (done()) return true;
      fetch_or_relax(mine);
    }
  } while (now_ns() < end);
  return done();
}

Pool::Pool(int num_threads) : process_(getpid()) {
  seats_ = static_cast<Seat*>(calloc(size_t(max_of(num_threads, 1)), sizeof(Seat)));
  for (int i = 0; i + 1 < num_threads; i++) {
    seats_[i] = {this, {}, {i + 1, nullptr, 0}};
    if (pthread_create(&seats_[i].thread, nullptr, serve, &seats_[i]) != 0) break;
    num_started_++;
  }
}

Pool::~Pool() {
  if (getpid() != process_) return;  // a fork has none of the threads; waiting for them ends it
  pthread_mutex_lock(&mutex_);
  stop_ = true;
  pthread_cond_broadcast(&wake_);
  pthread_mutex_unlock(&mutex_);
  for (int i = 0; i < num_started_; i++) pthread_join(seats_[i].thread, nullptr);
  free(seats_);
}

void* Pool::serve(void* argument) {
  Seat* seat = static_cast<Seat*>(argument);
  FlushDenormals flush;
  uint32_t seen = 0;
  while (seat->pool->wait_for_job(seen, seat->fetched)) {
    seen = uint32_t(seat->pool->ticket_.load(std::memory_order_acquire) >> 32);
    seat->pool->pull(seen, seat->fetched.thread);
  }
  return nullptr;
}

bool Pool::wait_for_job(uint32_t seen, Fetched& mine) {
  auto ready = [&] { return uint32_t(ticket_.load() >> 32) != seen || stop_.load(); };
  if (!spin(mine, ready)) {
    pthread_mutex_lock(&mutex_);
    num_asleep_++;
    while (!ready()) pthread_cond_wait(&wake_, &mutex_);
    num_asleep_--;
    pthread_mutex_unlock(&mutex_);
  }
  return !stop_.load();
}

// Stores past the caches are seen before what is stored after this; nothing less keeps them in order.
static inline void await_stores_past_caches() {
#if defined(__x86_64__)
  __builtin_ia32_sfence();
#endif
}

void Pool::pull(uint32_t job, int thread) {
  for (;;) {
    uint64_t ticket = ticket_.load(std::memory_order_acquire);
    int64_t count = count_.load(std::memory_order_acquire);
    Call call = call_.load(std::memory_order_relaxed);
    void* piece = piece_.load(std::memory_order_relaxed);
    int64_t number = int64_t(ticket & 0xffffffff);
    if (uint32_t(ticket >> 32) != job || number >= count) return;
    // Success proves that no newer job was published since `ticket` was read, so the three
    // fields above belong to this one.
    if (!ticket_.compare_exchange_weak(ticket, ticket + 1, std::memory_order_acq_rel)) continue;
    call(piece, number, thread);
    await_stores_past_caches();
    num_left_.fetch_sub(1, std::memory_order_release);
  }
}

void Pool::share(int64_t count, Call call, void* piece) {
  await_stores_past_caches();  // of a piece that the caller had to itself
  uint32_t job = uint32_t(ticket_.load(std::memory_order_relaxed) >> 32) + 1;
  // A thread late to the last job finds all of it taken, or the ticket changed: the new count is never
  // seen before this ticket is, on ARM neither, where other stores may overtake each other.
  ticket_.store(uint64_t(job) << 32 | 0xffffffff, std::memory_order_seq_cst);
  call_.store(call, std::memory_order_relaxed);
  piece_.store(piece, std::memory_order_relaxed);
  num_left_.store(count, std::memory_order_relaxed);
  count_.store(count, std::memory_order_release);
  ticket_.store(uint64_t(job + 1) << 32, std::memory_order_seq_cst);
  if (num_asleep_.load() > 0) {
    pthread_mutex_lock(&mutex_);
    pthread_cond_broadcast(&wake_);
    pthread_mutex_unlock(&mutex_);
  }
  pull(job + 1, 0);
  auto done = [&] { return num_left_.load(std::memory_order_acquire) == 0; };
  while (!spin(fetched_, done)) sched_yield();
}

}  // namespace millrace
