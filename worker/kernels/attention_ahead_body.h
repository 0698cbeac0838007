// Where the keys and values of a split lie, and how the memory of the splits to come is asked for
// while one is computed.

// Lines that are read soon, asked for between the products so that memory and arithmetic work at the
// same time. An address stands for LINES of them.
struct Ahead {
  static constexpr int64_t LINES = 4, BYTES = LINES * 64;

  const uint8_t** next;
  const uint8_t** end;
  int64_t steps_left = 1;

  void ask_once() {
    const uint8_t* line = *next++;
    for (int64_t i = 0; i < LINES; i++) __builtin_prefetch(line + i * 64);
  }
  // `count` lines and more.
  void ask(int64_t count) {
    for (; count > 0 && next < end; count -= LINES) ask_once();
  }
  // Once in so many steps.
  template <int EVERY>
  void step() {
    if (--steps_left > 0) return;
    steps_left = EVERY;
    if (next < end) ask_once();
  }
};

// One split of the tile of that number.
struct Place {
  int64_t number, split;
  RowTile tile;
};

// Of a split, where its keys and values lie. Those that no row sees are said to lie in the cache's
// first part, and are not read.
struct SplitCells {
  int64_t number, split;
  int64_t begin, end;               // keys of the split, 0 .. SPLIT
  int64_t keys_asked, values_asked; // once so many addresses are, of all there ever were
  const uint8_t* keys[SPLIT];       // parts that hold a key each, or a page
  const uint8_t* values[SPLIT];     // of each key
};

// The splits that one thread computes, one after the other, with the memory of those after it.
// Keys and values of each are asked for in turn, many parts at a time: the memory serves many streams
// faster than one.
class Lookahead {
 public:
  Lookahead(const RowMap& rows, int64_t item_bytes)
      : rows_(rows),
        block_{rows.step.block_size, rows.a.num_kv_heads, rows.a.head_dim},
        item_bytes_(item_bytes),
        part_asks_(ceil_div(block_.size * block_.head_dim * item_bytes, Ahead::BYTES)),
        split_asks_(2 * SPLIT / block_.size * part_asks_) {}
  Lookahead(const Lookahead&) = delete;

  Ahead ahead{asks_, asks_};

  // The cells of the split at `place`. `next(place)` moves on to what this thread computes after it,
  // as far as that is known.
  template <class Next>
  const SplitCells& reach(const Place& place, Next&& next) {
    first_++, count_--;
    const SplitCells* cells = &cells_[first_ % MOST];
    if (count_ <= 0 || cells->number != place.number || cells->split != place.split) {
      count_ = 0;
      ahead.next = ahead.end;
      plan(last_ = place);
      cells = &cells_[first_ % MOST];
    }
    while (count_ < MOST && num_planned_ - cells->values_asked < split_asks_ && next(last_))
      plan(last_);
    return *cells;
  }

  // Ask at once for what is not asked for yet, up to a number of addresses.
  void ask_up_to(int64_t number) {
    while (num_planned_ - (ahead.end - ahead.next) < number) ahead.ask_once();
  }

 private:
  static constexpr int64_t MOST = 4;  // splits
  static constexpr int64_t MOST_ASKS = 2 * SPLIT * MAX_HEAD_DIM * 4 / Ahead::BYTES;

  void plan(const Place& place) {
    make_room();
    SplitCells& cells = cells_[(first_ + count_++) % MOST];
    cells.number = place.number, cells.split = place.split;
    int64_t first = place.split * SPLIT;
    cells.begin = max_of(0, rows_.begin(place.tile, 0) - first);
    cells.end = min_of(SPLIT, rows_.end(place.tile, place.tile.num_rows - 1) - first);
    int64_t from = cells.begin / block_.size, to = ceil_div(cells.end, block_.size);
    const int32_t* entry = rows_.step.block_tables + place.tile.sequence * rows_.step.table_width +
                           first / block_.size;
    const uint8_t* value_parts[SPLIT];
    const uint8_t** value = cells.values;
    int64_t head_bytes = block_.head_dim * item_bytes_;
    for (int64_t i = 0; i < SPLIT / block_.size; i++) {
      bool is_seen = i >= from && i < to;
      int64_t part = is_seen ? block_.part(entry[i], place.tile.kv_head) * item_bytes_ : 0;
      cells.keys[i] = rows_.a.keys + part;
      const uint8_t* at = value_parts[i] = rows_.a.values + part;
      for (int64_t k = 0; k < block_.size; k++, at += head_bytes) *value++ = at;
    }
    cells.keys_asked = enter(cells.keys + from, to - from);
    cells.values_asked = enter(value_parts + from, to - from);
  }

  int64_t enter(const uint8_t* const* parts, int64_t count) {
    for (int64_t i = 0; i < part_asks_; i++)
      for (int64_t p = 0; p < count; p++) *ahead.end++ = parts[p] + i * Ahead::BYTES;
    return num_planned_ += part_asks_ * count;
  }

  // What is not asked for yet is less than two splits.
  void make_room() {
    if (ahead.end + split_asks_ <= asks_ + 3 * MOST_ASKS) return;
    int64_t count = ahead.end - ahead.next;
    memmove(asks_, ahead.next, size_t(count) * sizeof asks_[0]);
    ahead.next = asks_, ahead.end = asks_ + count;
  }

  const RowMap& rows_;
  Block block_;
  int64_t item_bytes_;
  int64_t part_asks_, split_asks_;  // of a part, of a whole split
  Place last_{};
  int64_t first_ = 0, count_ = 1;  // of the splits planned, the one that is computed first
  int64_t num_planned_ = 0;
  SplitCells cells_[MOST];
  const uint8_t* asks_[3 * MOST_ASKS];
};
