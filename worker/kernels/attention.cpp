// Who computes which tile, and which splits of it.
#include "attention.h"

#include "program.h"
#include "tiles.h"

namespace millrace {

// Memory that is to be read soon, asked for between the products so that both work at the same time:
// a line of each part in turn, because the memory serves many streams faster than one.
struct Ahead {
  const uint8_t* const* parts;
  int shift;  // of 2, the number of parts
  int64_t next, end;  // lines of all parts

  // `count` divides the number of parts.
  void ask(int64_t count) {
    if (next >= end) return;
    for (int64_t i = 0; i < count; i++, next++)
      __builtin_prefetch(parts[next & ((1 << shift) - 1)] + (next >> shift) * 64, 0, 2);
  }
};

// Of one split of a tile, where its keys and values lie. Those that no row sees are said to lie in
// the cache's first part, and are not read.
struct SplitCells {
  int64_t begin, end;  // keys of the split, 0 .. SPLIT
  int64_t num_parts, part_lines;
  int shift;  // of 2, num_parts
  // The parts that hold a key each, or a page.
  const uint8_t* keys[SPLIT];
  const uint8_t* value_parts[SPLIT];
  const uint8_t* next_keys[SPLIT];  // of the split after
  const uint8_t* values[SPLIT];     // of each key

  Ahead ahead(const uint8_t* const* parts) const {
    return {parts, shift, 0, num_parts * part_lines};
  }
};

static void find_cells(const RowMap& rows, const RowTile& tile, int64_t split, int64_t item_bytes,
                       SplitCells* cells) {
  const AttentionArguments& a = rows.a;
  Block block{rows.step.block_size, a.num_kv_heads, a.head_dim};
  int64_t first = split * SPLIT, end = rows.end(tile, tile.num_rows - 1) - first;
  cells->begin = max_of(0, rows.begin(tile, 0) - first);
  cells->end = min_of(SPLIT, end);
  cells->num_parts = SPLIT / block.size;
  cells->shift = __builtin_ctzll(uint64_t(cells->num_parts));
  cells->part_lines = ceil_div(block.size * a.head_dim * item_bytes, 64);
  const int32_t* table = rows.step.block_tables + tile.sequence * rows.step.table_width;
  int64_t head_bytes = a.head_dim * item_bytes;
  for (int64_t i = 0, j = 0; i < cells->num_parts; i++, j += block.size) {
    const int32_t* entry = table + first / block.size + i;
    bool is_seen = j < cells->end && j + block.size > cells->begin;
    int64_t here = is_seen ? block.part(entry[0], tile.kv_head) * item_bytes : 0;
    int64_t next = j + SPLIT < end ? block.part(entry[cells->num_parts], tile.kv_head) : 0;
    cells->keys[i] = a.keys + here;
    cells->value_parts[i] = a.values + here;
    cells->next_keys[i] = a.keys + next * item_bytes;
    for (int64_t k = 0; k < block.size; k++) cells->values[j + k] = a.values + here + k * head_bytes;
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
