// Row gathers: token embeddings, and the rows that want logits.
#include "operands.h"
#include "program.h"

#define KERNEL_BODY "embedding_body.h"
#include "each_level.h"

namespace millrace {

const Levels embedding_kernels = EVERY_LEVEL(embedding);
const Levels take_rows_kernels = EVERY_LEVEL(take_rows);

}  // namespace millrace
