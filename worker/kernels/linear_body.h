// The linear at one level: what floats and integers share, and both.

inline Lanes load_columns(const float* p, int64_t count) {
  return count >= PANEL ? load(p) : load_part(p, count, 0.0f);
}
inline void store_columns(float* p, Lanes a, int64_t count) {
  count >= PANEL ? store(p, a) : store_part(p, a, count);
}

constexpr int64_t MOST_ROWS = 8, MOST_WIDTH = 4;  // of a tile
// Rows that go by all weights together: their activations stay in the second cache.
constexpr int64_t ROWS_PER_PASS = 128;

// The sums of a tile from pass to pass. They stand in the output, or, where that has no whole panels,
// in a copy.
struct TileSums {
  float* at;
  int64_t stride;

  TileSums(const LinearArguments& a, int64_t row, int64_t num_rows, const Piece& piece)
      : out_(a.out + row * a.num_outputs + piece.panel * PANEL),
        out_stride_(a.num_outputs),
        num_rows_(num_rows),
        piece_(piece),
        num_columns_(a.num_outputs - piece.panel * PANEL) {
    bool whole = num_columns_ >= piece.num_panels * PANEL;
    at = whole ? out_ : copy_;
    stride = whole ? out_stride_ : MOST_WIDTH * PANEL;
    if (whole && piece.k > 0) return;
    each([&](int64_t m, int64_t p) {
      Lanes sum = zero();
      if (piece.k > 0)
        sum = load_columns(out_ + m * out_stride_ + p * PANEL, num_columns_ - p * PANEL);
      store(at + m * stride + p * PANEL, sum);
    });
  }

  // Another pass will go on with them.
  void keep() const {
    if (at == copy_) finish([](Lanes sum, int64_t) { return sum; });
  }

  // Write finished(sum, panel) of each.
  template <class Finished>
  void finish(Finished&& finished) const {
    each([&](int64_t m, int64_t p) {
      Lanes sum = finished(load(at + m * stride + p * PANEL), piece_.panel + p);
      store_columns(out_ + m * out_stride_ + p * PANEL, sum, num_columns_ - p * PANEL);
    });
  }

 private:
  template <class Each>
  void each(Each&& call) const {
    for (int64_t m = 0; m < num_rows_; m++)
      for (int64_t p = 0; p < piece_.num_panels; p++) call(m, p);
  }

  float* out_;
  int64_t out_stride_, num_rows_;
  const Piece& piece_;
  int64_t num_columns_;
  alignas(64) float copy_[MOST_ROWS * MOST_WIDTH * PANEL];
};

#include "linear_float_body.h"
#include "linear_int_body.h"

void linear(const Run& run, const Op& op) {
  auto a = op.as<LinearArguments>();
  int64_t num_rows = run.step.count(op.rows);
  switch (a.format) {
    case Format::F32: return float_linear<F32Weights>(run, a, num_rows);
    case Format::BF16: return float_linear<Bf16Weights>(run, a, num_rows);
    case Format::F16: return float_linear<F16Weights>(run, a, num_rows);
    case Format::INT8: return int_linear<Int8Weights>(run, a, num_rows);
    case Format::INT4: return int_linear<Int4Weights>(run, a, num_rows);
  }
}

#if LANES_LEVEL == TILES_BESIDE
#include "linear_tiles_body.h"
#endif
