// Compile the kernel body named by KERNEL_BODY once for each level, in a namespace of that name.
// The instructions come from pragmas and not from compiler flags, so that one library runs on every
// machine. The body includes nothing: its headers are included before, outside the namespaces.
// AMX is named beside AVX512 so that `tiles.h` is inlined; no compiler uses it by itself.
#include "levels.h"
#include "pool.h"

namespace millrace {

namespace portable {
#define LANES_LEVEL 0
#include "lanes.h"
#include KERNEL_BODY
#undef LANES_LEVEL
}  // namespace portable

#if defined(MILLRACE_X86_LEVELS)

#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2,fma,f16c"))), apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx2,fma,f16c")
#endif
namespace avx2 {
#define LANES_LEVEL 256
#include "lanes.h"
#include KERNEL_BODY
#undef LANES_LEVEL
}  // namespace avx2
#if defined(__clang__)
#pragma clang attribute pop
#pragma clang attribute push( \
    __attribute__((target("avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c,amx-tile," \
                          "amx-bf16,amx-int8"))), \
    apply_to = function)
#else
#pragma GCC pop_options
#pragma GCC push_options
#pragma GCC target("avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c,amx-tile,amx-bf16,amx-int8")
#endif
namespace avx512 {
#define LANES_LEVEL 512
#include "lanes.h"
#include KERNEL_BODY
#undef LANES_LEVEL
}  // namespace avx512
#if defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif

#endif
}  // namespace millrace
