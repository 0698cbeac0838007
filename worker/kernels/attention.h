// Paged attention: softmax(q · keys / sqrt(D)) · values over a sequence's own cells, for decoding
// tokens, prompts and mixtures of both.
//
// Keys are taken SPLIT at a time, at fixed absolute positions. Of a split a row (one token and one
// query head) has its maximum, the sum of its weights and its weighted values; splits are joined in
// order. A row's operations are the same whoever shares its tile or computes its splits, so its bits
// depend on neither batch, chunks, threads nor page size.
//
// Both products are those of the AMX tile instruction (see `linear.h`): over 32 inputs, or 32 keys at
// fixed positions, the even and the odd ones form a chain from zero each. With a BF16 cache the
// scaled query and the weights are rounded to bf16 first. A cell that a row does not see is never
// multiplied: what a former owner left there may be NaN.
#pragma once
#include "maker.h"
#include "operands.h"

namespace millrace {

constexpr int64_t SPLIT = 128;     // keys
constexpr int64_t GROUP = 16;      // keys that are turned at a time, so that each has a lane
constexpr int64_t PAIR_RUN = 32;   // keys of one pair of chains
constexpr int64_t TILE_ROWS = 32;  // rows that share the keys they read

// Key heads side by side that a tile may have, where that is known to be faster: parts that lie in no
// order are read the faster the longer they are, and those of a page's heads lie in one piece. A test
// has several on any processor.
constexpr int64_t MOST_HEADS = 4;
#if defined(MILLRACE_EMULATE_TILES)
inline const int64_t HEADS_OF_A_TILE = MOST_HEADS;
#else
inline const int64_t HEADS_OF_A_TILE = ON_ZEN4 ? MOST_HEADS : 1;
#endif

// Rows of one sequence and key head, numbered token by token and head by head of its group; and the
// same rows of the key heads after it, if there are more.
struct RowTile {
  int64_t sequence, kv_head, num_heads, first_row, num_rows;
  int64_t first_split, num_splits;

  int64_t work() const { return num_splits * num_heads; }
  RowTile of_head(int64_t head) const {
    RowTile one = *this;
    one.kv_head += head, one.num_heads = 1;
    return one;
  }
};

// A run of PAIR_RUN keys of a split, from key `first` on, and which keys of the split a row sees:
// `from` .. `to`, which are the same if it sees none.
struct RunOfKeys {
  int64_t first;
  int64_t from[TILE_ROWS], to[TILE_ROWS];

  // The row's part of the run, 0 .. PAIR_RUN.
  int64_t begin(int64_t row) const { return max_of(from[row], first) - first; }
  int64_t end(int64_t row) const { return min_of(to[row], first + PAIR_RUN) - first; }
  bool is_whole(int64_t row, int64_t stop) const {
    for (; row < stop; row++)
      if (begin(row) != 0 || end(row) != PAIR_RUN) return false;
    return true;
  }
};

// Positions that each row of a tile sees.
struct Seen {
  int64_t begin[TILE_ROWS], end[TILE_ROWS];
};

// The rows of a tile.
struct Queries : Seen {
  alignas(64) float q[TILE_ROWS][MAX_HEAD_DIM];  // scaled, and as the products take them
};

// What some splits of a tile have come to.
struct Partial {
  float maximum[TILE_ROWS];
  float sum[TILE_ROWS];
  float values[TILE_ROWS][MAX_HEAD_DIM];
};

// A tile whose splits are many is shared by the threads: so many splits at a time, of one head each.
// One of several heads gives up no head for that, if its splits times its heads are as many as this.
constexpr int64_t LONG_TILE = 16;
constexpr int64_t SHARED_SPLITS = 64;
constexpr int64_t ATTENTION_SCRATCH = (SHARED_SPLITS + MOST_HEADS) * int64_t(sizeof(Partial));

// The rows of a step: which token and head they are, which positions they see.
struct RowMap {
  const AttentionArguments& a;
  const Step& step;
  int64_t group;           // query heads of a key head
  int64_t most_heads = 1;  // key heads of a tile that has all rows of its sequence; others have one

  RowMap(const AttentionArguments& arguments, const Step& s)
      : a(arguments), step(s), group(arguments.num_heads / arguments.num_kv_heads) {}

  void limit_heads(int64_t most) {
    while (a.num_kv_heads % most) most /= 2;
    most_heads = most;
  }

  int64_t token(const RowTile& tile, int64_t row) const {
    return step.query_starts[tile.sequence] + (tile.first_row + row) / group;
  }
  int64_t head(const RowTile& tile, int64_t row) const {
    return tile.kv_head * group + (tile.first_row + row) % group;
  }
  int64_t end(const RowTile& tile, int64_t row) const { return step.positions[token(tile, row)] + 1; }
  int64_t begin(const RowTile& tile, int64_t row) const {
    return a.window ? max_of(0, end(tile, row) - a.window) : 0;
  }

  int64_t count() const {
    int64_t tiles = 0;
    for (int64_t b = 0; b < step.num_sequences; b++) tiles += tiles_of(b);
    return tiles;
  }
  RowTile tile(int64_t number) const {
    int64_t place = number, b = 0;
    for (; place >= tiles_of(b); b++) place -= tiles_of(b);
    int64_t beside = a.num_kv_heads / heads_of(b);
    return tile_at(b, place % beside * heads_of(b), place / beside * TILE_ROWS);
  }
  // The tile of the number after; there must be one.
  RowTile after(const RowTile& t) const {
    int64_t kv_head = t.kv_head + t.num_heads;
    if (kv_head < a.num_kv_heads) return tile_at(t.sequence, kv_head, t.first_row);
    int64_t first = t.first_row + TILE_ROWS;
    if (first < num_rows(t.sequence)) return tile_at(t.sequence, 0, first);
    int64_t b = t.sequence + 1;
    while (num_rows(b) == 0) b++;
    return tile_at(b, 0, 0);
  }

 private:
  int64_t num_rows(int64_t sequence) const {
    return (step.query_starts[sequence + 1] - step.query_starts[sequence]) * group;
  }
  int64_t heads_of(int64_t sequence) const {
    return num_rows(sequence) <= TILE_ROWS ? most_heads : 1;
  }
  int64_t tiles_of(int64_t sequence) const {
    return ceil_div(num_rows(sequence), TILE_ROWS) * (a.num_kv_heads / heads_of(sequence));
  }
  RowTile tile_at(int64_t sequence, int64_t kv_head, int64_t first) const {
    RowTile t{sequence, kv_head, heads_of(sequence), first,
              min_of(TILE_ROWS, num_rows(sequence) - first), 0, 0};
    t.first_split = begin(t, 0) / SPLIT;
    t.num_splits = ceil_div(end(t, t.num_rows - 1), SPLIT) - t.first_split;
    return t;
  }
};

}  // namespace millrace
