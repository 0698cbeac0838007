// The tile unit of AMX behind one set of wrappers, each with a version in software: built with
// MILLRACE_EMULATE_TILES the same kernels run on any machine, and stop at a tile that is not
// configured for what is done with it.
//
// A tile of the linears is 16 rows of 64 bytes, always: rows that nobody asked for cost nothing where
// the weights come from memory. Attention stores its sums after every product, so there they cost.
// The instruction that configures is told of the whole struct that it reads (the intrinsic of gcc 12.2
// declares 8 of its 64 bytes, and loses stores to the others).
#pragma once
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>

// The level whose vectors stand beside the tiles, as in `each_level.h`.
#if defined(MILLRACE_EMULATE_TILES)
#define TILES_BESIDE 0
#else
#define TILES_BESIDE 512
#endif

namespace millrace {

// What of the second cache the linears on tiles count on: its 2 MiB less what passes through. The
// emulator has little, so that small matrices go through every loop.
#if defined(MILLRACE_EMULATE_TILES)
constexpr int64_t TILE_CACHE_BYTES = 1 << 16;
#else
constexpr int64_t TILE_CACHE_BYTES = 1 << 20;
#endif

struct alignas(64) TileConfig {
  uint8_t palette;
  uint8_t start_row;
  uint8_t reserved[14];
  uint16_t row_bytes[16];
  uint8_t rows[16];
};

constexpr TileConfig FULL_TILES = {
    1, 0, {}, {64, 64, 64, 64, 64, 64, 64, 64}, {16, 16, 16, 16, 16, 16, 16, 16}};

#if defined(MILLRACE_EMULATE_TILES)

struct Tile {
  uint8_t rows, row_bytes;
  alignas(64) uint8_t data[16][64];
};

struct TileUnit {
  bool is_configured;
  Tile tiles[8];
};

inline TileUnit& tile_unit() {
  static thread_local TileUnit unit;
  return unit;
}

inline void tile_check(bool holds, const char* what) {
  if (holds) return;
  fprintf(stderr, "tiles: %s\n", what);
  abort();
}

inline Tile& tile(int number) {
  tile_check(tile_unit().is_configured, "used before they are configured");
  Tile& t = tile_unit().tiles[number];
  tile_check(t.rows > 0 && t.row_bytes > 0, "used although its configuration is empty");
  return t;
}

inline void tiles_configure(const TileConfig& config) {
  tile_check(config.palette == 1 && config.start_row == 0, "palette or start row is wrong");
  for (uint8_t byte : config.reserved) tile_check(byte == 0, "a reserved byte is set");
  for (int i = 0; i < 16; i++) {
    bool fits = config.rows[i] <= 16 && config.row_bytes[i] <= 64 && config.row_bytes[i] % 4 == 0;
    tile_check(i < 8 ? fits : !config.rows[i] && !config.row_bytes[i], "a size is out of range");
    if (i < 8) tile_unit().tiles[i] = {config.rows[i], uint8_t(config.row_bytes[i]), {}};
  }
  tile_unit().is_configured = true;
}

inline void tiles_release() { tile_unit().is_configured = false; }

template <int T>
void tile_zero() {
  memset(tile(T).data, 0, sizeof tile(T).data);
}

template <int T>
void tile_load(const void* from, int64_t stride) {
  Tile& t = tile(T);
  memset(t.data, 0, sizeof t.data);
  for (int r = 0; r < t.rows; r++)
    memcpy(t.data[r], (const uint8_t*)from + r * stride, t.row_bytes);
}

template <int T>
void tile_load_once(const void* from, int64_t stride) {
  tile_load<T>(from, stride);
}

template <int T>
void tile_store(void* to, int64_t stride) {
  Tile& t = tile(T);
  for (int r = 0; r < t.rows; r++) memcpy((uint8_t*)to + r * stride, t.data[r], t.row_bytes);
}

inline void check_product(const Tile& c, const Tile& a, const Tile& b) {
  tile_check(c.rows == a.rows, "product: rows of the sum and of the left factor differ");
  tile_check(c.row_bytes == b.row_bytes, "product: widths of the sum and the right factor differ");
  tile_check(a.row_bytes == b.rows * 4, "product: the factors do not meet");
}

// c += a · b of bf16 pairs, in the order that `linear.h` calls canonical.
template <int C, int A, int B>
void tile_product_bf16() {
  Tile &c = tile(C), &a = tile(A), &b = tile(B);
  check_product(c, a, b);
  for (int m = 0; m < c.rows; m++)
    for (int n = 0; n < c.row_bytes / 4; n++) {
      float chains[2] = {0.0f, 0.0f}, sum;
      for (int k = 0; k < b.rows; k++)
        for (int i = 0; i < 2; i++) {
          uint16_t x, y;
          memcpy(&x, a.data[m] + k * 4 + i * 2, 2), memcpy(&y, b.data[k] + n * 4 + i * 2, 2);
          uint32_t wide_x = uint32_t(x) << 16, wide_y = uint32_t(y) << 16;
          float left, right;
          memcpy(&left, &wide_x, 4), memcpy(&right, &wide_y, 4);
          chains[i] = __builtin_fmaf(left, right, chains[i]);
        }
      memcpy(&sum, c.data[m] + n * 4, 4);
      sum += chains[0] + chains[1];
      memcpy(c.data[m] + n * 4, &sum, 4);
    }
}

// c += a · b of signed bytes times bytes that are signed, or not.
template <class Right>
void tile_product_of(Tile& c, const Tile& a, const Tile& b) {
  check_product(c, a, b);
  for (int m = 0; m < c.rows; m++)
    for (int n = 0; n < c.row_bytes / 4; n++) {
      int32_t sum;
      memcpy(&sum, c.data[m] + n * 4, 4);
      for (int k = 0; k < b.rows; k++)
        for (int i = 0; i < 4; i++)
          sum += int32_t(int8_t(a.data[m][k * 4 + i])) * Right(b.data[k][n * 4 + i]);
      memcpy(c.data[m] + n * 4, &sum, 4);
    }
}
template <int C, int A, int B>
void tile_product_bytes() {
  tile_product_of<uint8_t>(tile(C), tile(A), tile(B));
}
template <int C, int A, int B>
void tile_product_signed() {
  tile_product_of<int8_t>(tile(C), tile(A), tile(B));
}

#elif defined(__x86_64__)

// A test puts an instruction that everyone has in the place of this one.
#ifndef MILLRACE_LDTILECFG
#define MILLRACE_LDTILECFG "ldtilecfg %0"
#endif
#define TILE_TARGET __attribute__((target("amx-tile,amx-bf16,amx-int8")))

// The operand is the whole struct, so that all its stores come before.
inline TILE_TARGET void tiles_configure(const TileConfig& config) {
  asm volatile(MILLRACE_LDTILECFG : : "m"(config) : "memory");
}

inline TILE_TARGET void tiles_release() { asm volatile("tilerelease" : : : "memory"); }

template <int T>
inline TILE_TARGET void tile_zero() {
  asm volatile("tilezero %%tmm%c0" : : "i"(T));
}

template <int T>
inline TILE_TARGET void tile_load(const void* from, int64_t stride) {
  asm volatile("tileloadd (%0,%1,1), %%tmm%c2" : : "r"(from), "r"(stride), "i"(T) : "memory");
}

// The same of what is not soon read again: it leaves the first cache before what else is there.
template <int T>
inline TILE_TARGET void tile_load_once(const void* from, int64_t stride) {
  asm volatile("tileloaddt1 (%0,%1,1), %%tmm%c2" : : "r"(from), "r"(stride), "i"(T) : "memory");
}

template <int T>
inline TILE_TARGET void tile_store(void* to, int64_t stride) {
  asm volatile("tilestored %%tmm%c2, (%0,%1,1)" : : "r"(to), "r"(stride), "i"(T) : "memory");
}

template <int C, int A, int B>
inline TILE_TARGET void tile_product_bf16() {
  asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(C), "i"(A), "i"(B));
}

template <int C, int A, int B>
inline TILE_TARGET void tile_product_bytes() {
  asm volatile("tdpbsud %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(C), "i"(A), "i"(B));
}

template <int C, int A, int B>
inline TILE_TARGET void tile_product_signed() {
  asm volatile("tdpbssd %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(C), "i"(A), "i"(B));
}

#endif

#if defined(MILLRACE_EMULATE_TILES) || defined(__x86_64__)
// While it lives, this thread's tiles are full ones.
class FullTiles {
 public:
  FullTiles() { tiles_configure(FULL_TILES); }
  ~FullTiles() { tiles_release(); }
};

// The same where left factors and sums, tiles 0 to 4, have `most_rows` rows if those are fewer.
class LowTiles {
 public:
  explicit LowTiles(int64_t most_rows) {
    TileConfig config = FULL_TILES;
    if (most_rows < 16) memset(config.rows, int(most_rows), 5);
    tiles_configure(config);
  }
  ~LowTiles() { tiles_release(); }
};
#endif

}  // namespace millrace
