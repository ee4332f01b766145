/* The threads that share the work of large operators: one pool a process. The first job that
 * starts it says how many, the last one that stops it joins them.
 *
 * Parts' bounds follow from the size of the work alone, so that results do not depend on how
 * many threads there are. */
#ifndef OPERATOR_THREADS_H
#define OPERATOR_THREADS_H

#include "gradcomp/abi.h"

/* Numbers a part: whole bytes of every coding, and enough that it pays to wake a
 * thread. What has no more stays on the caller's. */
enum { OPERATOR_PART = 81920 };

/* Starts count - 1 threads: the caller of an operator is one as well. */
gradcomp_status operator_threads_start(int count, gradcomp_error *err);
void operator_threads_stop(void);

/* Does what thread_pool_run() does, on the caller's thread alone when there is no pool, or another caller has it:
 * nobody waits for it. Takes no lock and allocates nothing. */
void operator_threads_run(void (*run)(void *arg, size_t part), void *arg, size_t parts);

#endif
