// How the threads of a linear share its panels, and in which order each goes through the weights.
#pragma once
#include <atomic>

#include "maker.h"
#include "program.h"

namespace millrace {

// Some panels, and a pass over some of their inputs: what is computed for all rows in one go.
struct Piece {
  int64_t panel, num_panels;  // from one to the next of them: `Order::stride`; none: there is no more
  int64_t k, num_inputs;
  int64_t number = 0;  // of those of its unit that are begun and not done
};

// Sizes of the walk.
struct Order {
  static constexpr int64_t MOST_PIECES = 8;  // of a unit, side by side
  int64_t num_panels;
  int64_t num_inputs;  // padded
  int64_t width;       // panels of a piece
  int64_t pass;        // inputs of a piece
  int64_t block;       // whole passes: of those of a unit, the inputs done before any later one
  int64_t unit;        // panels that a thread takes at a time
  int64_t num_taken;   // panels that are: all
  int64_t stride = 1;  // from panel to panel of a piece
  int64_t step;        // from piece to piece
  bool apart = false;
  bool one_stream = false;  // a thread reads one panel after the other

  // `cached` inputs of all rows stay in the second cache. Where those of the model are more, many
  // panels go by before the next ones are fetched.
  Order(int64_t num_panels, int64_t num_inputs, int64_t width, int64_t pass, int64_t cached)
      : num_panels(num_panels),
        num_inputs(num_inputs),
        width(width),
        pass(pass),
        block(max_of(1, cached / pass) * pass),
        unit(block < num_inputs ? MOST_PIECES * width : width),
        num_taken(num_panels),
        step(width) {}

  // For few rows, which wait for memory: the panels of a piece stand as far apart as they can, and
  // threads take the first ones, several at a time. So a thread reads `width` streams that go on and
  // on; one that began anew with every piece would be slow each time (Zen 5: 12 % of the rate for
  // pieces of 48 KiB, 22 % of 12 KiB).
  static Order of_streams(int64_t num_panels, int64_t num_inputs, int64_t width, int64_t pass,
                          int64_t panel_bytes, int64_t num_threads) {
    Order order(num_panels, num_inputs, width, pass, num_inputs + pass);
    int64_t firsts = ceil_div(num_panels, width);
    order.unit = taken(firsts, width * panel_bytes, num_threads);
    order.num_taken = order.stride = firsts;
    order.step = 1;
    order.apart = true;
    return order;
  }

  // The same in one stream: whole panels one after the other, so many in a piece that what it takes
  // beside their products is little.
  static Order in_a_row(int64_t num_panels, int64_t num_inputs, int64_t panel_bytes,
                        int64_t num_threads) {
    constexpr int64_t MOST = 8;
    int64_t at_once = taken(num_panels, panel_bytes, num_threads), width = min_of(MOST, at_once);
    Order order(num_panels, num_inputs, width, num_inputs, 2 * num_inputs);
    order.unit = at_once / width * width;
    order.one_stream = true;
    return order;
  }

  // The same for pieces of a panel of the first half and its like of the second.
  Order in_pairs() const {
    Order order = *this;
    order.unit = max_of(1, unit / 2);
    order.num_taken = order.stride = num_panels / 2;
    order.step = 1;
    order.apart = true;
    return order;
  }

  // Of the piece that begins with panel `first`, in a unit that ends before `end`.
  int64_t panels_of_piece(int64_t first, int64_t end) const {
    if (first >= end) return 0;
    return min_of(width, ceil_div((apart ? num_panels : end) - first, stride));
  }

 private:
  // How many of `count` a thread takes at a time.
  static int64_t taken(int64_t count, int64_t bytes, int64_t num_threads) {
    constexpr int64_t TAKEN_BYTES = 192 << 10, TIMES = 8;  // at least, that a thread takes some
    return max_of(1, min_of(TAKEN_BYTES / bytes, count / (TIMES * num_threads)));
  }
};

// One run of panels per thread. A thread takes from the front of its own, so that it reads memory in
// long stretches and knows what comes next; without any left it takes from the back of the others',
// so that a thread which the system holds back costs at most what it has taken.
class Shares {
 public:
  static constexpr int64_t MOST = 256;

  Shares(int64_t num_panels, int64_t count) : count_(count) {
    for (int64_t i = 0; i < count; i++)
      runs_[i].left = joined(num_panels * i / count, num_panels * (i + 1) / count);
  }

  // At most `most` panels for the thread whose run is number `own`.
  Piece take(int64_t own, int64_t most) {
    Piece taken = take_of(runs_[own], most, false);
    for (int64_t i = 1; i < count_ && taken.num_panels == 0; i++)
      taken = take_of(runs_[(own + i) % count_], most, true);
    return taken;
  }

  // Whether a panel is still in that run.
  bool has(int64_t own, int64_t panel) const {
    uint64_t seen = runs_[own].left.load(std::memory_order_relaxed);
    return panel >= int64_t(seen & 0xffffffff) && panel < int64_t(seen >> 32);
  }

 private:
  // On a line of its own: threads would wait for each other's.
  struct alignas(64) RunOfPanels {
    std::atomic<uint64_t> left;  // the first in the lower half, the end in the upper
  };

  static uint64_t joined(int64_t first, int64_t end) { return uint64_t(first) | uint64_t(end) << 32; }

  static Piece take_of(RunOfPanels& run, int64_t most, bool from_back) {
    uint64_t seen = run.left.load(std::memory_order_relaxed);
    for (;;) {
      int64_t first = int64_t(seen & 0xffffffff), end = int64_t(seen >> 32);
      int64_t count = min_of(most, end - first);
      uint64_t rest = from_back ? joined(first, end - count) : joined(first + count, end);
      if (count == 0 || run.left.compare_exchange_weak(seen, rest, std::memory_order_relaxed))
        return {from_back ? end - count : first, count, 0, 0};
    }
  }

  int64_t count_;
  RunOfPanels runs_[MOST];
};

// The pieces of one thread.
class Walk {
 public:
  Walk(Shares& shares, const Order& order, int64_t own) : shares_(shares), order_(order), own_(own) {}

  Piece next() {
    now_.k += order_.pass;
    if (now_.k >= min_of(block_ + order_.block, order_.num_inputs)) {
      now_.panel += order_.step;
      now_.number += order_.block < order_.num_inputs;
      now_.k = block_;
    }
    if (now_.panel >= end_) {
      block_ += order_.block;
      now_.panel = first_, now_.number = 0;
      now_.k = block_;
    }
    if (block_ >= order_.num_inputs) take();
    now_.num_panels = order_.panels_of_piece(now_.panel, end_);
    now_.num_inputs = min_of(order_.pass, order_.num_inputs - now_.k);
    return now_;
  }

 private:
  void take() {
    Piece unit = shares_.take(own_, order_.unit);
    first_ = unit.panel, end_ = first_ + unit.num_panels, block_ = 0;
    now_.panel = first_, now_.number = 0, now_.k = 0;
  }

  Shares& shares_;
  const Order& order_;
  int64_t own_, first_ = 0, end_ = 0;
  int64_t block_ = order_.num_inputs;  // before the first unit as after any
  Piece now_{0, 0, order_.num_inputs, 0};
};

// Call compute(piece, the one after it, state) for all pieces, on all threads, each with its State.
template <class State, class Compute>
void walk(const Run& run, const Order& order, Compute&& compute) {
  constexpr int64_t WORTH_A_THREAD = 4;  // panels
  int64_t threads = min_of(Shares::MOST, run.pool.num_threads());
  int64_t count = min_of(threads, ceil_div(order.num_panels, WORTH_A_THREAD));
  Shares shares(order.num_taken, count);
  run.pool.each(count, [&](int64_t, int thread) {
    State state;
    Walk pieces(shares, order, thread % count);
    for (Piece now = pieces.next(), next; now.num_panels > 0; now = next) {
      next = pieces.next();
      compute(now, next, state);
    }
  });
}

// Rows cut into as few tiles as can be, of like heights; the higher ones come last.
struct Tiles {
  int64_t num_rows, count, low, num_low, high;

  Tiles(int64_t num_rows, int64_t most)
      : num_rows(num_rows),
        count(ceil_div(num_rows, most)),
        low(num_rows / count),
        num_low(count - num_rows % count),
        high(low + 1) {}

  // All but the first as high as can be.
  static Tiles uneven(int64_t num_rows, int64_t most) {
    Tiles tiles(num_rows, most);
    tiles.low = num_rows % most, tiles.num_low = 1, tiles.high = most;
    return tiles;
  }

  int64_t first(int64_t tile) const { return low * tile + max_of(0, tile - num_low) * (high - low); }
  int64_t height(int64_t tile) const { return tile < num_low ? low : high; }
};

// Whether the weights of a linear come from memory, guessed from their number: a model of smaller
// linears stays in the caches, where several panels side by side are faster (2 rows: a fifth).
inline bool is_in_memory(int64_t weight_bytes) { return weight_bytes > 768 << 10; }

// Weights of one stream go to the first cache, a good way ahead. Not so on Zen 4, if a line of them is
// in more than four products: by way of the second it takes 8 rows of int8 1.1 to 1.6 times as fast,
// and 2 rows 4 % slower, which want less ahead.
inline bool by_second_cache(int64_t products_of_line) { return ON_ZEN4 && products_of_line > 4; }
inline int64_t stream_ahead(int64_t products_of_line) {
  return ON_ZEN4 && products_of_line <= 4 ? 4096 : 9216;
}

// A line that is written soon, which another thread may have read or written last. Of the builtin gcc 12
// makes a fetch for reading, or nothing where nothing else is done.
inline void fetch_to_write(const float* line) {
#if defined(__x86_64__)
  asm volatile("prefetchw %0" : : "m"(*line));
#else
  __builtin_prefetch(line, 1);
#endif
}

// Weights that are wanted soon, in panels side by side, so that memory is at work while a tile computes:
// first the rest of this piece, then the piece after it. Tiles that share a piece share the piece after
// it, and each of their steps asks for a part of a line: asking again for one that is on its way costs
// nothing, a branch in every step does.
struct Stream {
  static constexpr int64_t LINE = 64;
  const uint8_t* from;
  uint64_t end;          // where this piece does, if it is asked for
  const uint8_t* next;   // the piece after it
  int64_t panel_stride;  // bytes
  int64_t num_tiles;     // that share
  int64_t advance;       // bytes of a panel at a step

  // A lone tile asks for what is `ahead` bytes of it, `step_bytes` of each panel at a step.
  Stream(const uint8_t* now, int64_t num_bytes, const uint8_t* next, int64_t panel_stride,
         int64_t step_bytes, int64_t num_tiles, int64_t ahead)
      : from(next),
        end(NOTHING),
        next(next),
        panel_stride(panel_stride),
        num_tiles(num_tiles),
        advance((step_bytes + num_tiles / 2) / num_tiles) {
    if (num_tiles == 1 && num_bytes > ahead) from = now + ahead, end = uint64_t(now + num_bytes);
  }

  // Before the steps of a block or a chunk, which need not look where they are.
  void turn() {
    bool ends = uint64_t(from) >= end;
    from = ends ? next : from;
    end = ends ? NOTHING : end;
  }

  // It changes something: what only prefetches has no effect for gcc 12, and is left out.
  template <int PANELS, int WHERE, int LINES = 1>
  void step() {
#pragma GCC unroll 4
    for (int p = 0; p < PANELS; p++)
#pragma GCC unroll 2
      for (int i = 0; i < LINES; i++) __builtin_prefetch(from + p * panel_stride + i * LINE, 0, WHERE);
    from += advance;
  }

  Stream moved(int64_t panels) const {
    Stream other = *this;
    other.from += panels * panel_stride, other.next += panels * panel_stride;
    if (end != NOTHING) other.end += uint64_t(panels * panel_stride);
    return other;
  }

 private:
  static constexpr uint64_t NOTHING = UINT64_MAX;
};

}  // namespace millrace
