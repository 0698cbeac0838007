// How weights of the float formats are read and multiplied, once per level, and a tile of them.

// `Kept` is what the first of many tiles makes of its weights, for the others; void: nothing.
struct F32Weights : FloatInputs {
  using Kept = void;
  static constexpr Format FORMAT = Format::F32;
  static constexpr int64_t PAIR_BYTES = 128;
  static Lanes even(const uint8_t* pair) { return load((const float*)pair); }
  static Lanes odd(const uint8_t* pair) { return load((const float*)pair + 16); }
};

struct F16Weights : FloatInputs {
  using Kept = F32Weights;
  static constexpr Format FORMAT = Format::F16;
  static constexpr int64_t PAIR_BYTES = 64;
  static Lanes even(const uint8_t* pair) { return load_f16((const f16*)pair); }
  static Lanes odd(const uint8_t* pair) { return load_f16((const f16*)pair + 16); }
};

struct Bf16Weights : FloatInputs {
  using Kept = F32Weights;
  static constexpr Format FORMAT = Format::BF16;
  static constexpr int64_t PAIR_BYTES = 64;
  static Lanes even(const uint8_t* pair) { return even_bf16((const bf16*)pair); }
  static Lanes odd(const uint8_t* pair) { return odd_bf16((const bf16*)pair); }
};

#if LANES_LEVEL == 512
struct Bf16Pairs : InputPairs {
  using Kept = void;
  static constexpr Format FORMAT = Format::BF16;
  static constexpr int64_t PAIR_BYTES = 64;
  static Lanes even(const uint8_t* pair) { return load((const float*)pair); }
  static Lanes odd(const uint8_t* pair) { return load((const float*)(pair + PAIR_BYTES)); }
};
#endif

// The tallest tile, and how many panels of it are summed side by side: one chain for every row and
// panel fills the registers, and every value that is read goes into several products.
#if LANES_LEVEL == 512
constexpr int64_t FLOAT_ROWS = 8;
constexpr int float_width(int rows) { return rows <= 2 ? 4 : 3; }
#elif LANES_LEVEL == 256
constexpr int64_t FLOAT_ROWS = 6;
constexpr int float_width(int rows) { return rows == 1 ? 4 : rows == 2 ? 3 : rows == 3 ? 2 : 1; }
#else
constexpr int64_t FLOAT_ROWS = 4;
constexpr int float_width(int) { return 1; }
#endif

// Inputs of a piece of many tiles: its weights stay in the first cache beside the activations.
constexpr int64_t KEPT_INPUTS = 128;
constexpr int64_t KEPT_STRIDE = KEPT_INPUTS * PANEL;  // of W::INPUTS each

// A rectangle of the output and the inputs of one pass over it.
template <class Input>
struct FloatTile {
  const Input* x;          // [inputs of the pass / BLOCK][rows][those of a BLOCK]
  const Input* next_x;     // of the tile after it
  const uint8_t* weights;  // first panel, first input of the pass
  int64_t panel_stride;    // bytes
  int64_t num_blocks;
  float* sums;             // of the passes so far
  int64_t sums_stride;
  Stream fetch;
  bool keep;               // of many: floats write the weights as W::Kept, for the tiles after this one
  float* kept;
  bool in_a_row;           // one panel after the other, as they lie
};
