// Replays recorded launches in a program of its own, which a sanitizer can watch: every buffer is an allocation of
// exactly its size. Usage: driver RECORDING. Prints the fault of a launch and returns 1.
#include "cuda_emulator.h"

#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

using Launch = int (*)(unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, size_t, void**);
struct Entry {
  const char* symbol;
  Launch launch;
};
extern const Entry KERNELS[];  // generated beside this file's includes, closed by a null symbol
extern "C" const char* emulator_last_error();

template <class T>
static T read_number(FILE* file) {
  T value;
  if (fread(&value, sizeof value, 1, file) != 1) exit(2);
  return value;
}

enum Kind : uint8_t { NOTHING = 0, BUFFER = 1, VALUE = 2 };

int main(int count, char** arguments) {
  FILE* file = count == 2 ? fopen(arguments[1], "rb") : nullptr;
  if (!file) return 2;
  for (uint32_t num_launches = read_number<uint32_t>(file); num_launches; num_launches--) {
    std::string symbol(read_number<uint32_t>(file), '\0');
    if (fread(&symbol[0], 1, symbol.size(), file) != symbol.size()) return 2;
    unsigned sizes[6];
    for (unsigned& size : sizes) size = read_number<uint32_t>(file);
    size_t shared_bytes = read_number<uint64_t>(file);
    std::vector<void*> places(read_number<uint32_t>(file)), values(places.size());
    std::vector<Kind> kinds(places.size());
    for (size_t i = 0; i < places.size(); i++) {
      kinds[i] = Kind(read_number<uint8_t>(file));
      size_t num_bytes = read_number<uint64_t>(file);
      if (kinds[i] == NOTHING) values[i] = nullptr;
      else if (posix_memalign(&values[i], 256, num_bytes ? num_bytes : 1)) return 2;
      if (num_bytes && fread(values[i], 1, num_bytes, file) != num_bytes) return 2;
      places[i] = kinds[i] == VALUE ? values[i] : &values[i];
    }
    const Entry* kernel = KERNELS;
    while (kernel->symbol && symbol != kernel->symbol) kernel++;
    if (!kernel->symbol) return 2;
    if (kernel->launch(sizes[0], sizes[1], sizes[2], sizes[3], sizes[4], sizes[5], shared_bytes, places.data())) {
      printf("%s\n", emulator_last_error());
      return 1;
    }
    for (void* value : values) free(value);
  }
  return 0;
}
