#include "dtype.h"

size_t dtype_bytes(gradcomp_dtype dtype)
{
	switch (dtype) {
	case GRADCOMP_F64:
	case GRADCOMP_I64:
		return 8;
	case GRADCOMP_F32:
	case GRADCOMP_I32:
		return 4;
	case GRADCOMP_F16:
	case GRADCOMP_BF16:
		return 2;
	case GRADCOMP_U8:
		return 1;
	}
	return 0;
}
