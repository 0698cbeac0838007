// The linear at one level: what floats and integers share.
#include "silu_mul_body.h"

inline void store_columns(float* p, Lanes a, int64_t count, bool past_caches = false) {
  if (past_caches) return store_past_caches(p, a);
  count >= PANEL ? store(p, a) : store_part(p, a, count);
}

constexpr int64_t MOST_ROWS = 8, MOST_WIDTH = 4;  // of a tile
// Rows that go by all weights together: their activations stay in the second cache.
constexpr int64_t ROWS_PER_PASS = 128;

// What a thread keeps from pass to pass: the sums of a unit's panels. Those of a piece lie together,
// [rows][width][16]; in the output they would be spread over as many pages as there are rows.
struct PassSums {
  alignas(64) float values[Order::MOST_PIECES][ROWS_PER_PASS * MOST_WIDTH * PANEL];
};

// How far ahead few rows at AVX2 ask on AMD. At 2048 a Zen 2 reads 0.8 to 0.9 of what it can.
inline int64_t few_rows_ahead(int64_t num_rows) { return num_rows == 1 ? 768 : 1024; }

// Inputs of a pass, in whole `unit`s, about `most` or fewer: passes are alike, so what one fetches is all
// of the next.
inline int64_t like_pass(int64_t padded, int64_t most, int64_t unit) {
  return ceil_div(ceil_div(padded, ceil_div(padded, most)), unit) * unit;
}

// Those of a piece: zeros before the first pass, written to the output after the last. `row`: the
// first of them, `num_rows` ROWS_PER_PASS at most.
class PieceSums {
 public:
  const int64_t stride;  // from row to row

  PieceSums(const LinearArguments& a, int64_t row, int64_t num_rows, const Piece& piece,
            const Order& order, PassSums& sums)
      : stride(order.width * PANEL),
        values_(sums.values[piece.number]),
        out_(a.out + row * a.num_outputs),
        num_columns_(a.num_outputs),
        column_(piece.panel * PANEL),
        column_stride_(order.stride * PANEL),
        num_panels_(piece.num_panels),
        is_last_(piece.k + piece.num_inputs == order.num_inputs),
        past_caches_(a.out_past_caches) {
    if (piece.k == 0) memset(values_, 0, size_t(num_rows * stride) * sizeof(float));
  }

  float* of(int64_t row) const { return values_ + row * stride; }

  // Before the last pass: what `finish` will write.
  void fetch_output(int64_t first, int64_t num_rows) const {
    if (!is_last_ || past_caches_) return;
    each(first, num_rows, [](float*, float* out, int64_t column) {
      fetch_to_write(out + column);
    });
  }

  // After the last pass write finished(sum, first column) of each.
  template <class Finished>
  void finish(int64_t first, int64_t num_rows, Finished&& finished) const {
    if (!is_last_) return;
    each(first, num_rows, [&](const float* sum, float* out, int64_t column) {
      store_columns(out + column, finished(load(sum), column), num_columns_ - column, past_caches_);
    });
  }

 private:
  template <class Each>
  void each(int64_t first, int64_t num_rows, Each&& call) const {
    for (int64_t m = first; m < first + num_rows; m++) {
      int64_t column = column_;
      for (int64_t p = 0; p < num_panels_; p++, column += column_stride_)
        call(of(m) + p * PANEL, out_ + m * num_columns_, column);
    }
  }

  float* values_;
  float* out_;
  int64_t num_columns_, column_, column_stride_, num_panels_;
  bool is_last_, past_caches_;
};

#include "pair_lanes.h"
#include "spread_lanes.h"

inline LinearArguments arguments_of(const Run& run, const Op& op) {
  auto a = op.as<LinearArguments>();
  int64_t num_rows = run.step.count(op.rows);
  a.out_past_caches = go_past_caches(run, a.out, num_rows, a.num_outputs);
  a.inputs_past_caches = go_past_caches(run, num_rows * a.num_inputs);  // of a byte at least
  return a;
}

inline void gate_outputs(const Run& run, const LinearArguments& a, int64_t num_rows) {
  if (a.gated) gate_rows(run, {a.out, a.gated, a.num_outputs / 2}, num_rows);
}
