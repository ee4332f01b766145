/* Error text as an out-parameter: fill it and return the status in one line. */
#ifndef BASE_ERROR_H
#define BASE_ERROR_H

#include "gradcomp/abi.h"

/* Fills *err (may be NULL) and returns `status`. Text that does not fit ends in
 * "...". */
gradcomp_status error_set(gradcomp_error *err, gradcomp_status status, const char *fmt, ...) GRADCOMP_PRINTF(3, 4);
/* Does the same, with ": " and strerror(errno) at the end. */
gradcomp_status error_errno(gradcomp_error *err, gradcomp_status status, const char *fmt, ...) GRADCOMP_PRINTF(3, 4);

#ifdef __clang_analyzer__ /* it cannot see into error.c that the status comes back unchanged */
#define error_set(err, status, ...) ((void)error_set(err, status, __VA_ARGS__), (status))
#define error_errno(err, status, ...) ((void)error_errno(err, status, __VA_ARGS__), (status))
#endif

#endif
