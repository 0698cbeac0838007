// Linears with int8 weights: the kernels of linear.cu. A file of its own, so that nobody compiles what he does not use.
#include "linear.cu"
