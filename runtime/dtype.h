/* Sizes of element types. */
#ifndef DTYPE_H
#define DTYPE_H

#include "gradcomp/abi.h"

/* Bytes of one element; 0 for a number that is no type. */
size_t dtype_bytes(gradcomp_dtype dtype);

#endif
