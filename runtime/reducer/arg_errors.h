/* Errors for a caller who uses a reducer wrongly: the same text whichever kind of reducer
 * he has. Tensors are named by the index that the application gave them.
 *
 * Threads: any. Each returns the status that it puts into err. */
#ifndef REDUCER_ARG_ERRORS_H
#define REDUCER_ARG_ERRORS_H

#include "gradcomp/gradcomp.h"

/* INVALID: of n tensors there is no number `index`. */
gradcomp_status arg_error_index(uint32_t index, uint32_t n, gradcomp_error *err);
/* INVALID: a gradient of numbers that is NULL. */
gradcomp_status arg_error_null(uint32_t index, const char *name, gradcomp_error *err);
/* A gradient that the step has already fails the job (STATE): what else the step has may be of another
 * iteration. */
void arg_fail_twice(gradcomp_job *job, uint32_t index, const char *name, uint64_t step);
/* STATE: the step is waited for, but only `given` of n tensors came; this one, for instance, did not. */
gradcomp_status arg_error_missing(uint32_t given, uint32_t n, uint64_t step, uint32_t index, const char *name,
                                  gradcomp_error *err);
/* STATE: this tensor is waited for, and was not given. */
gradcomp_status arg_error_not_given(uint32_t index, const char *name, uint64_t step, gradcomp_error *err);

#endif
