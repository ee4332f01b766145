/* A few threads that share the work of large operators.
 *
 * Work comes in parts whose bounds follow from its size alone, so that results
 * do not depend on how many threads there are. One pool a process: the first
 * job that starts it says how many, the last one that stops it joins them. */
#ifndef BASE_THREAD_POOL_H
#define BASE_THREAD_POOL_H

#include <stddef.h>

#include "gradcomp/abi.h"

enum { THREAD_POOL_MAX = 64 };

/* Numbers a part: whole bytes of every coding, and enough that it pays to wake a
 * thread. What has no more stays on the caller's. */
enum { OPERATOR_PART = 81920 };

/* `text` is a number or "auto": what Slurm gives this task, but no more than the
 * CPUs it may run on. 0 when it is neither. */
int thread_pool_parse(const char *text);
/* Starts count - 1 threads: the caller of an operator is one as well. */
gradcomp_status thread_pool_start(int count, gradcomp_error *err);
void thread_pool_stop(void);

/* Calls run(arg, 0..parts - 1), each once, in any order and at the same time, and
 * returns when all have returned. On the caller's thread alone when there is no
 * pool, or another caller has it. Takes no lock and allocates nothing. */
void thread_pool_run(void (*run)(void *arg, size_t part), void *arg, size_t parts);

#endif
