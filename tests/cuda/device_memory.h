/* Memory of the device, for the test of its operators: the host's under emulation, a
 * GPU's in tests/gpu/run. */
#ifndef TESTS_CUDA_DEVICE_MEMORY_H
#define TESTS_CUDA_DEVICE_MEMORY_H

#ifdef __cplusplus
extern "C" {
#endif
#include "operators/operator_tables.h"

/* The table that is tested; NULL and the reason when there is none. */
const gradcomp_operators *device_table(const char **why);
void *device_alloc(size_t bytes);
void device_free(void *p);
/* Both wait until everything before is done. */
void to_device(void *to, const void *from, size_t bytes);
void from_device(void *to, const void *from, size_t bytes);
/* On the device, without waiting. */
void device_copy(void *to, const void *from, size_t bytes);
/* Seconds that `repeat` calls of work(ctx) take on the device, each. */
double device_seconds(void (*work)(void *ctx), void *ctx, int repeat);
/* Launch number k from now on, from 1, fails; 0: none. Only where device_can_fail. */
extern const int device_can_fail;
void device_fail_launch(long k);
/* Launches, copies and fills until now; where nobody counts, 0. */
long device_queued(void);
/* Bytes that launches, copies and fills have read and written until now, in sectors of 32 bytes, each once a launch; returns 0
 * where nobody counts. */
int device_moved(long *read, long *written);
#ifdef __cplusplus
}
#endif
#endif
