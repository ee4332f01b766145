/* The exchange works on a bucket's bytes itself with these, wherever they are: in host memory, or in a GPU's when
 * the collective takes that. There it goes on the exchange thread's stream; what is read has come when the call
 * returns. */
#ifndef STEP_MEMOPS_H
#define STEP_MEMOPS_H

#include "step/engine.h"

#include <string.h>

/* A GPU's memory that the collective takes. */
typedef struct memops {
	device_arena *arena;
	void *stream; /* the one for exchanges that is in turn */
	const gradcomp_operators *ops;
	int *word, *seen; /* the exchange thread's, on the device and on the host */
	void *event;      /* likewise */
	device_watch watch;
} memops;

static inline int memops_on_device(const engine *eng)
{
	return eng->room.wire != NULL;
}

/* Copy host memory into a bucket, and back. */
gradcomp_status memops_put(engine *eng, void *to, const void *from, size_t bytes, gradcomp_error *err);
gradcomp_status memops_get(engine *eng, void *to, const void *from, size_t bytes, gradcomp_error *err);
/* Copies `n` pieces of `bytes`, the next one `stride` bytes on, together into host memory. */
gradcomp_status memops_get_all(engine *eng, void *to, const void *from, size_t stride, size_t bytes, size_t n,
                               gradcomp_error *err);
gradcomp_status memops_move(engine *eng, void *to, const void *from, size_t bytes, gradcomp_error *err);
gradcomp_status memops_zero(engine *eng, void *p, size_t bytes, gradcomp_error *err);
gradcomp_status memops_nonfinite(engine *eng, const float *x, size_t n, int *bad, gradcomp_error *err);

#endif
