// Contenders, once per level: the loops are plain, so that the compiler makes vectors of them.

// The finaliser of SplitMix64, as in noise.py.
inline uint64_t mixed(uint64_t z) {
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
  return z ^ (z >> 31);
}

// Exponent and mantissa of a float read as one number: a lower bound of log2, exact at powers of 2.
inline float low_log2(float x) { return float(int32_t(to_bits(x))) * 0x1p-23f - 127.0f; }

int64_t contenders(const ContendersArguments& a) {
  constexpr int64_t BLOCK = 256;
  constexpr uint64_t GOLDEN = 0x9E3779B97F4A7C15ull;
  float distances[BLOCK];
  int64_t found = 0;
  for (int64_t first = 0; first < a.count; first += BLOCK) {
    int64_t count = min_of(BLOCK, a.count - first);
    for (int64_t i = 0; i < count; i++) {
      uint64_t bits = mixed(a.key + uint64_t(first + i + 1) * GOLDEN);
      distances[i] = low_log2(float(int64_t(~bits >> 11)));
    }
    const float* logits = a.logits + first;
    int32_t any = 0;
    for (int64_t i = 0; i < count; i++) any |= distances[i] <= logits[i] * a.scale + a.offset;
    if (!any) continue;
    for (int64_t i = 0; i < count; i++)
      if (distances[i] <= logits[i] * a.scale + a.offset) {
        if (found < a.room) a.places[found] = int32_t(first + i);
        found++;
      }
  }
  return found;
}
