// Warp operations of the emulator: shuffles, votes, and the tensor-core instructions lane by lane.
#pragma once

namespace emulator {

enum Kind { SHUFFLE = 100, BALLOT = 500, SYNC = 600, LDMATRIX = 700, MMA = 800 };

template <class T>
struct Shuffled {
  T in, out;
  int source;
};
template <class T>
inline T shuffle(uint32_t mask, T value, int source, int line) {
  Shuffled<T> record{value, value, source};
  warp_operation(SHUFFLE + int(sizeof(T)), mask, &record, [](void** records, int) {
    for (int lane = 0; lane < 32; lane++) {
      if (!records[lane]) continue;
      auto* mine = static_cast<Shuffled<T>*>(records[lane]);
      auto* theirs = static_cast<Shuffled<T>*>(records[mine->source & 31]);
      if (!theirs) fail("a shuffle reads lane %d, which takes no part", mine->source & 31);
      mine->out = theirs->in;
    }
  }, 0, line, false);
  return record.out;
}
inline int segment(int source, int width) {  // outside its own segment a lane reads itself
  int first = self->lane & ~(width - 1);
  return source < first || source >= first + width ? self->lane : source;
}
template <class T>
inline T shuffle_index(uint32_t mask, T value, int source, int width, int line) {
  return shuffle(mask, value, (self->lane & ~(width - 1)) | (source & (width - 1)), line);
}
template <class T>
inline T shuffle_xor(uint32_t mask, T value, int bits, int width, int line) {
  return shuffle(mask, value, segment(self->lane ^ bits, width), line);
}
template <class T>
inline T shuffle_up(uint32_t mask, T value, int delta, int width, int line) {
  return shuffle(mask, value, segment(self->lane - delta, width), line);
}
template <class T>
inline T shuffle_down(uint32_t mask, T value, int delta, int width, int line) {
  return shuffle(mask, value, segment(self->lane + delta, width), line);
}
inline uint32_t ballot(uint32_t mask, bool predicate, int line) {
  uint32_t record = predicate;
  warp_operation(BALLOT, mask, &record, [](void** records, int) {
    uint32_t votes = 0;
    for (int lane = 0; lane < 32; lane++)
      if (records[lane] && *static_cast<uint32_t*>(records[lane])) votes |= 1u << lane;
    for (int lane = 0; lane < 32; lane++)
      if (records[lane]) *static_cast<uint32_t*>(records[lane]) = votes;
  }, 0, line, false);
  return record;
}
inline void sync_warp(int line, uint32_t mask = 0xffffffffu) {
  int nothing = 0;
  warp_operation(SYNC, mask, &nothing, [](void**, int) {}, 0, line, true);
}

}  // namespace emulator

#define EMULATOR_WIDTH(m, v, s, w, ...) m, v, s, w
#define EMULATOR_ARGS(...) EMULATOR_WIDTH(__VA_ARGS__, 32, 0)
#define __shfl_sync(...) emulator::shuffle_index(EMULATOR_ARGS(__VA_ARGS__), __LINE__)
#define __shfl_xor_sync(...) emulator::shuffle_xor(EMULATOR_ARGS(__VA_ARGS__), __LINE__)
#define __shfl_up_sync(...) emulator::shuffle_up(EMULATOR_ARGS(__VA_ARGS__), __LINE__)
#define __shfl_down_sync(...) emulator::shuffle_down(EMULATOR_ARGS(__VA_ARGS__), __LINE__)
#define __ballot_sync(m, p) emulator::ballot((m), (p), __LINE__)
#define __any_sync(m, p) (emulator::ballot((m), (p), __LINE__) != 0)
#define __all_sync(m, p) (emulator::ballot((m), !(p), __LINE__) == 0)
#define __syncwarp() emulator::sync_warp(__LINE__)
