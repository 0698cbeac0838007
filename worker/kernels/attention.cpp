// Who computes which tile, and which splits of it.
#include "attention.h"

#include "program.h"
#include "tiles.h"

namespace millrace {

// Of one split of a tile, where its keys and values lie. Those that no row sees are said to lie in
// cell 0, and are not read.
struct SplitCells {
  int64_t begin, end;  // keys of the split, 0 .. SPLIT
  const uint8_t* keys[SPLIT];
  const uint8_t* values[SPLIT];

  // What is read after the scores of a group: the next group, at last the first values.
  const uint8_t* const* after_group(int64_t group) const {
    int64_t next = (group + 1) * GROUP;
    return next < end ? keys + next : values + begin / PAIR_RUN * PAIR_RUN;
  }
  // What is read after a run of values: the next run.
  const uint8_t* const* after_run(int64_t first) const {
    return first + PAIR_RUN < end ? values + first + PAIR_RUN : nullptr;
  }
};

static void find_cells(const RowMap& rows, const RowTile& tile, int64_t split, int64_t item_bytes,
                       SplitCells* cells) {
  const AttentionArguments& a = rows.a;
  int64_t first = split * SPLIT, block_size = rows.step.block_size;
  cells->begin = max_of(0, rows.begin(tile, 0) - first);
  cells->end = min_of(SPLIT, rows.end(tile, tile.num_rows - 1) - first);
  for (int64_t j = 0; j < SPLIT; j++) cells->keys[j] = a.keys, cells->values[j] = a.values;
  const int32_t* table = rows.step.block_tables + tile.sequence * rows.step.table_width;
  int64_t head_bytes = a.head_dim * item_bytes, cell_bytes = a.num_kv_heads * head_bytes;
  for (int64_t j = cells->begin; j < cells->end;) {
    int64_t block = (first + j) / block_size, place = (first + j) % block_size;
    int64_t stop = min_of(cells->end, j + block_size - place);
    int64_t offset = (table[block] * block_size + place) * cell_bytes + tile.kv_head * head_bytes;
    for (; j < stop; j++, offset += cell_bytes) {
      cells->keys[j] = a.keys + offset;
      cells->values[j] = a.values + offset;
    }
  }
}

}  // namespace millrace

#define KERNEL_BODY "attention_body.h"
#include "each_level.h"

namespace millrace {

#if defined(MILLRACE_EMULATE_TILES)
const Levels attention_kernels = EVERY_LEVEL_AND(attention, portable::attention_tiles);
#elif defined(__x86_64__)
const Levels attention_kernels = EVERY_LEVEL_AND(attention, avx512::attention_tiles);
#else
const Levels attention_kernels = EVERY_LEVEL(attention);
#endif

}  // namespace millrace
