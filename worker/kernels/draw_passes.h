// Passes over a whole vocabulary. See draw_passes.py for the mathematics.
#pragma once
#include "types.h"

namespace millrace {

struct ContendersArguments {
  const float* logits;
  int64_t count;
  float scale;   // of a logit to its power of two: log2(e) / temperature
  float offset;  // a token contends when log2(distance) <= logit * scale + offset
  uint64_t key;
  int32_t* places;  // out, rising
  int64_t room;
};

struct NucleusArguments {
  const float* logits;
  int64_t count;
  float highest;
  float scale;  // log2(e) / temperature
  float bound;  // tokens that reach it are listed
  int32_t* places;  // out, rising
  int64_t room;
  double mass;  // out: sum of exp2((logit - highest) * scale)
};

}  // namespace millrace
