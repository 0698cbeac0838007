// Packs one weight, runs one linear over it at the portable level, writes the result: for machines
// where the library runs and Python does not. Sizes come as arguments, values through the pipes.
#include <cstdio>
#include <cstdlib>

#include "program.h"

using namespace millrace;

extern "C" void* millrace_open(int32_t num_threads);
extern "C" void millrace_close(void* pool);
extern "C" void millrace_pack(void* pool, int32_t level, const uint64_t* arguments);
extern "C" int64_t millrace_run(void* pool, int32_t level, const Op* ops, int64_t num_ops,
                                const Step* step);

static uint64_t room(size_t bytes) {
  void* memory = aligned_alloc(64, (bytes + 127) / 64 * 64);
  if (!memory) exit(3);
  memset(memory, 0, (bytes + 127) / 64 * 64);
  return uint64_t(memory);
}

static uint64_t read_floats(size_t count) {
  uint64_t place = room(count * 4);
  if (fread(reinterpret_cast<void*>(place), 4, count, stdin) != count) exit(2);
  return place;
}

int main(int, char** words) {
  uint64_t sizes[8];
  for (int i = 0; i < 8; i++) sizes[i] = strtoull(words[i + 1], nullptr, 10);
  auto [inputs, outputs, rows, format, group, weight_bytes, scale_bytes, scratch_bytes] = sizes;
  uint64_t source = read_floats(outputs * inputs), x = read_floats(rows * inputs);
  uint64_t weight = room(weight_bytes), scales = room(scale_bytes), out = room(rows * outputs * 4);
  void* pool = millrace_open(2);
  uint64_t pack[] = {source, 0, outputs, inputs, weight, scales, format, group, 0};
  millrace_pack(pool, 0, pack);
  Op op = {Kind::LINEAR, Rows::TOKENS,
           {x, weight, scales, 0, out, room(scratch_bytes), inputs, outputs, format, group}};
  Step step = {};
  step.num_tokens = int64_t(rows);
  int64_t failed = millrace_run(pool, 0, &op, 1, &step);
  millrace_close(pool);
  fwrite(reinterpret_cast<void*>(out), 4, rows * outputs, stdout);
  return int(failed);
}
