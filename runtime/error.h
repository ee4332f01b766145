/* Error text as an out-parameter: fill it and return the status in one line. */
#ifndef ERROR_H
#define ERROR_H

#include "gradcomp/abi.h"

/* Fills *err (may be NULL) and returns `status`. Text that does not fit ends in
 * "...". */
gradcomp_status error_set(gradcomp_error *err, gradcomp_status status, const char *fmt, ...)
	GRADCOMP_PRINTF(3, 4);
/* The same, with ": " and strerror(errno) at the end. */
gradcomp_status error_errno(gradcomp_error *err, gradcomp_status status, const char *fmt, ...)
	GRADCOMP_PRINTF(3, 4);

#endif
