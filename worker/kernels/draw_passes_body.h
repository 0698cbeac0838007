// Once per level: the loops are plain, so that the compiler makes vectors of them.

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
      distances[i] = low_log2(float(int64_t(~bits >> 12)));
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

// 2^x for x <= 0, within 3e-7; 0 from x = -126 downwards. Without a branch, to be made vectors of.
inline float exp2_of(float x) {
  constexpr uint32_t LOWEST = 0xC2FC0000;  // -126; bits of what is below it are greater
  uint32_t bits = to_bits(x);
  float kept = from_bits(bits < LOWEST ? bits : LOWEST);
  int32_t whole = int32_t(kept) - 1;  // towards zero, and one less: the rest is in 0..1
  float rest = kept - float(whole);
  float power = 0.0012391331f + rest * 0.00021865785f;
  power = 0.0096841864f + rest * power;
  power = 0.055480629f + rest * power;
  power = 0.24023046f + rest * power;
  power = 0.69314694f + rest * power;
  power = 1.0f + rest * power;
  return power * from_bits(uint32_t(whole + 127) << 23);  // of -127, nothing
}

// The order of the sum is one for all levels.
int64_t nucleus(NucleusArguments& a) {
  constexpr int64_t LANES = 16, BLOCK = 256;
  double mass = 0.0;
  int64_t found = 0;
  for (int64_t first = 0; first < a.count; first += BLOCK) {
    int64_t count = min_of(BLOCK, a.count - first);
    const float* logits = a.logits + first;
    float powers[BLOCK] = {}, sums[LANES] = {};
    for (int64_t i = 0; i < count; i++) powers[i] = exp2_of((logits[i] - a.highest) * a.scale);
    for (int64_t i = 0; i < BLOCK; i += LANES)
      for (int64_t j = 0; j < LANES; j++) sums[j] += powers[i + j];
    for (float sum : sums) mass += sum;
    int32_t any = 0;
    for (int64_t i = 0; i < count; i++) any |= logits[i] >= a.bound;
    if (!any) continue;
    for (int64_t i = 0; i < count; i++)
      if (logits[i] >= a.bound) {
        if (found < a.room) a.places[found] = int32_t(first + i);
        found++;
      }
  }
  a.mass = mass;
  return found;
}
