/* unbiased: says that it is, and always leaves the same numbers out. */
#define FAULT_NAME "biased"
#define FAULT_TRAITS GRADCOMP_TRAIT_UNBIASED
#include "tests/plugins/faulty_compressor.h"
