// The library's own threads. Work is cut into numbered pieces; what is summed is cut at places of its
// own, so that no result depends on how many pieces there are. They are pulled, so that a thread which
// the system holds back costs at most the piece it is at, and one that never wakes costs nothing.
#pragma once
#include <pthread.h>
#include <sys/types.h>

#include <atomic>
#include <cstdint>

namespace millrace {

class Pool {
 public:
  // The caller of `each` is one of the threads.
  explicit Pool(int num_threads);
  ~Pool();
  Pool(const Pool&) = delete;

  int num_threads() const { return num_started_ + 1; }

  // Say which memory will be read next, by every thread an equal run of it. A thread that has to
  // wait fetches the begin of its own, so that memory is at work while one thread computes.
  void expect(const uint8_t* from, int64_t bytes) {
    expected_bytes_.store(bytes, std::memory_order_relaxed);
    expected_.store(from, std::memory_order_relaxed);
  }

  // Call piece(number, thread) for every number in 0..count-1, in any order, and wait for all.
  // `thread` is in 0..num_threads-1 and belongs to one running piece at a time.
  template <class Piece>
  void each(int64_t count, Piece&& piece) {
    if (count <= 0) return;
    if (count == 1 || num_started_ == 0) {
      for (int64_t i = 0; i < count; i++) piece(i, 0);
      return;
    }
    share(
        count, [](void* p, int64_t i, int thread) { (*static_cast<Piece*>(p))(i, thread); },
        const_cast<void*>(static_cast<const void*>(&piece)));
  }

 private:
  using Call = void (*)(void*, int64_t, int);
  // How far a thread is with what is expected.
  struct Fetched {
    int thread;
    const uint8_t* of;
    int64_t bytes;
  };

  static void* serve(void* seat);
  void share(int64_t count, Call call, void* piece);
  void pull(uint32_t job, int thread);
  template <class Done>
  bool spin(Fetched& mine, Done&& done);
  void fetch_or_relax(Fetched& mine);
  bool wait_for_job(uint32_t seen, Fetched& mine);

  struct Seat {
    Pool* pool;
    pthread_t thread;
    Fetched fetched;
  };
  Seat* seats_;
  int num_started_ = 0;
  pid_t process_;
  Fetched fetched_{0, nullptr, 0};  // by the caller

  // Job number in the upper half, next piece in the lower: a thread that comes late to a job can
  // take nothing of the next one by mistake.
  alignas(64) std::atomic<uint64_t> ticket_{0};
  alignas(64) std::atomic<int64_t> num_left_{0};
  alignas(64) std::atomic<int64_t> count_{0};
  std::atomic<Call> call_{nullptr};
  std::atomic<void*> piece_{nullptr};
  // Not one value: of two that do not belong together nothing but a useless fetch comes.
  alignas(64) std::atomic<const uint8_t*> expected_{nullptr};
  std::atomic<int64_t> expected_bytes_{0};
  alignas(64) std::atomic<int> num_asleep_{0};
  std::atomic<bool> stop_{false};
  pthread_mutex_t mutex_ = PTHREAD_MUTEX_INITIALIZER;
  pthread_cond_t wake_ = PTHREAD_COND_INITIALIZER;
};

}  // namespace millrace
