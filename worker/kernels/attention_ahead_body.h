// Where the keys and values of a split lie, and how the memory of the next keys or values is asked for
// while some are computed.

// Parts of memory that are read soon, asked for between the products so that memory and arithmetic work
// at the same time: four lines of a part, then of the next one; on Zen 5 two lines each of two parts, because
// more of one page is slower there where pages lie in no order. On Zen 4 they come by way of the second
// cache, as weights do (16 rows: of 2048 positions 8 %, of 300 a quarter faster).
struct Ahead {
  bool two = ON_AMD && !ON_ZEN4;
  const uint8_t* const* parts = nullptr;
  int64_t count = 0, part_bytes = 0;
  int64_t next = 0, at = 0;  // part, and place in it
  int64_t steps_left = 1;

  // What is left of those before is forgotten.
  void turn_to(const uint8_t* const* first, int64_t num_parts, int64_t bytes) {
    parts = first, count = num_parts, part_bytes = bytes;
    next = 0, at = num_parts > 0 ? 0 : bytes;
  }
  bool is_done() const { return at >= part_bytes; }
  void ask_once() {
    if (is_done()) return;
    const uint8_t* one = parts[next++] + at;
    const uint8_t* other = two ? parts[min_of(next++, count - 1)] + at : one + 128;
    ON_ZEN4 ? fetch<SECOND_CACHE>(one, other) : fetch<FIRST_CACHE>(one, other);
    if (next >= count) next = 0, at += two ? 128 : 256;
  }
  void ask_all() {
    while (at < part_bytes) ask_once();
  }
  void ask(int64_t times) {
    for (; times > 0; times--) ask_once();
  }
  // Once in so many steps.
  template <int EVERY>
  void step() {
    if (EVERY > 1 && --steps_left > 0) return;
    steps_left = EVERY;
    ask_once();
  }

 private:
  template <int WHERE>
  static void fetch(const uint8_t* one, const uint8_t* other) {
    __builtin_prefetch(one, 0, WHERE), __builtin_prefetch(one + 64, 0, WHERE);
    __builtin_prefetch(other, 0, WHERE), __builtin_prefetch(other + 64, 0, WHERE);
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
  int64_t begin, end;  // keys of the split, 0 .. SPLIT
  int64_t block_size;
  int64_t cell_bytes, head_bytes;  // from a value, and from a part of one key head, to the next
  int64_t part_bytes;              // of all key heads of the tile
  const uint8_t* keys[SPLIT];    // parts that hold a key each, or a page
  const uint8_t* values[SPLIT];  // the same of values

  // Where each value of a run from j on lies.
  void values_of(int64_t head, int64_t j, const uint8_t** out) const {
    for (int64_t i = j / block_size, k = 0; k < PAIR_RUN; i++) {
      const uint8_t* at = values[i] + head * head_bytes;
      for (int64_t stop = k + block_size; k < stop; k++, at += cell_bytes) out[k] = at;
    }
  }
  // Have `ahead` ask for what some row sees of `count` keys, or values, from j on.
  void turn(Ahead* ahead, const uint8_t* const* parts, int64_t j, int64_t count) const {
    int64_t from = max_of(j, begin) / block_size, to = ceil_div(min_of(j + count, end), block_size);
    ahead->turn_to(parts + from, to - from, part_bytes);
  }
  // Ask for one line of each page of a run, long before the others: where the page lies is then known
  // when they are asked for, and an ask for a page that is not may be lost. Not so on Zen 4 (1 to 5 %).
  void find(const uint8_t* const* parts, int64_t j) const {
    if (ON_ZEN4) return;
    for (int64_t k = max_of(j, begin); k < min_of(j + PAIR_RUN, end); k += GROUP)
      __builtin_prefetch(parts[k / block_size]);
  }
  int64_t bytes() const {
    return (ceil_div(end, block_size) - begin / block_size) * part_bytes;
  }
  int64_t first_key() const { return begin / GROUP * GROUP; }
  int64_t first_run() const { return begin / PAIR_RUN * PAIR_RUN; }  // of values
};

// The splits that one thread computes, one after the other: the one that is, and the next ones. On AMD
// the next run of PAIR_RUN keys or values is asked for while one is computed. Elsewhere whole lists are,
// all keys of a split and then all its values, one list after the other at the pace of the products: the
// one after the list that is computed, and more up to DISTANCE, because during a short split little
// would be asked for (Intel with AMX, 16 rows of 140 positions: 1.23 times as fast; a Zen 4 so: 0.6 times).
// Asking faster than memory gives costs more than not asking.
class Lookahead {
 public:
  Lookahead(const RowMap& rows, int64_t item_bytes)
      : rows_(rows),
        block_{rows.step.block_size, rows.a.num_kv_heads, rows.a.head_dim},
        item_bytes_(item_bytes) {}
  Lookahead(const Lookahead&) = delete;

  Ahead ahead;

  // The cells of the split at `place`. `next(place)` moves on to what this thread computes after it,
  // if that is known.
  template <class Next>
  const SplitCells& reach(const Place& place, Next&& next) {
    now_++;
    bool is_planned = now_ < planned_ && cells(now_).number == place.number &&
                      cells(now_).split == place.split;
    if (!is_planned) begin(place);
    while (!ends_ && planned_ <= now_ + (ON_AMD ? 1 : MOST - 1)) {
      ends_ = !next(last_);
      if (!ends_) plan(last_);
    }
    return cells(now_);
  }

  // What is asked for while the keys from j on are computed.
  void turn_at_keys(int64_t j) {
    const SplitCells& here = cells(now_);
    if (!ON_AMD) return go_on(2 * now_, j == here.first_key());
    if (j + PAIR_RUN < here.end)
      here.turn(&ahead, here.keys, j + PAIR_RUN, PAIR_RUN);
    else
      turn_to_values(here.first_run());
    here.find(here.values, j);
  }
  // The same of scores that become weights.
  void turn_at_weights() {
    if (!ON_AMD) return go_on(2 * now_, false);
    turn_to_values(cells(now_).first_run() + PAIR_RUN);
  }
  // The same of the values from j on. Some asks are lost, so those of the second run are repeated.
  void turn_at_values(int64_t j) {
    if (!ON_AMD) return go_on(2 * now_ + 1, j == cells(now_).first_run());
    turn_to_values(j + PAIR_RUN);
    if (has_next()) cells(now_ + 1).find(cells(now_ + 1).keys, j);
  }

 private:
  static constexpr int64_t MOST = 3;             // splits that are planned
  static constexpr int64_t DISTANCE = 64 << 10;  // bytes; 32 to 96 KiB are as good

  SplitCells& cells(int64_t i) { return cells_[i % MOST]; }
  bool has_next() const { return now_ + 1 < planned_; }

  // Nobody knew that this split would be next.
  void begin(const Place& place) {
    planned_ = now_, ends_ = false;
    plan(last_ = place);
    const SplitCells& here = cells(now_);
    ON_AMD ? here.turn(&ahead, here.keys, here.first_key(), PAIR_RUN) : turn_to_list(2 * now_);
    ahead.ask_all();
  }

  // A run of values from j on; after the last one the first keys of the next split.
  void turn_to_values(int64_t j) {
    const SplitCells& here = cells(now_);
    if (j < here.end) return here.turn(&ahead, here.values, j, PAIR_RUN);
    if (!has_next()) return ahead.turn_to(nullptr, 0, 0);
    const SplitCells& next = cells(now_ + 1);
    next.turn(&ahead, next.keys, next.first_key(), PAIR_RUN);
  }

  // The keys of split i are list 2 i, its values the one after it.
  void turn_to_list(int64_t list) {
    if (list / 2 >= planned_) return;
    list_ = list;
    const SplitCells& of = cells(list / 2);
    of.turn(&ahead, list % 2 ? of.values : of.keys, 0, SPLIT);
  }
  // While `list` is computed.
  void go_on(int64_t list, bool begins) {
    if (begins && list_ <= list) turn_to_list(list + 1);
    if (begins && list_ == list + 1) ahead.ask_all();
    if (!ahead.is_done()) return;
    int64_t bytes = 0;
    for (int64_t i = list + 1; i <= list_; i++) bytes += cells(i / 2).bytes();
    if (bytes < DISTANCE) turn_to_list(list_ + 1);
  }

  void plan(const Place& place) {
    SplitCells& cells = this->cells(planned_++);
    cells.number = place.number, cells.split = place.split, cells.block_size = block_.size;
    int64_t first = place.split * SPLIT;
    cells.begin = max_of(0, rows_.begin(place.tile, 0) - first);
    cells.end = min_of(SPLIT, rows_.end(place.tile, place.tile.num_rows - 1) - first);
    cells.cell_bytes = block_.head_dim * item_bytes_;
    cells.head_bytes = cells.cell_bytes * block_.size;
    cells.part_bytes = cells.head_bytes * place.tile.num_heads;
    int64_t from = cells.begin / block_.size, to = ceil_div(cells.end, block_.size);
    const int32_t* entry = rows_.step.block_tables + place.tile.sequence * rows_.step.table_width +
                           first / block_.size;
    for (int64_t i = 0; i < SPLIT / block_.size; i++) {
      bool is_seen = i >= from && i < to;
      int64_t part = is_seen ? block_.part(entry[i], place.tile.kv_head) * item_bytes_ : 0;
      cells.keys[i] = rows_.a.keys + part, cells.values[i] = rows_.a.values + part;
    }
  }

  const RowMap& rows_;
  Block block_;
  int64_t item_bytes_;
  Place last_{};
  int64_t now_ = -1, planned_ = 0;  // which split is computed, and how many are planned up to now
  bool ends_ = false;               // nothing is known to come after those
  int64_t list_ = 0;                // that is asked for
  SplitCells cells_[MOST];
};
