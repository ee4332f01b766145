/* device: says that it takes device memory, and reads it like any other. */
#define FAULT_NAME "touches_device"
#define FAULT_TRAITS (GRADCOMP_TRAIT_ERROR_FEEDBACK | GRADCOMP_TRAIT_CUDA)
#include "tests/plugins/faulty_compressor.h"
