/* Memory of buckets in flight, on the host or on a device. It grows to what was needed most
 * and is kept, so that after every bucket has been through once nothing is allocated. */
#ifndef STEP_WORKSPACE_H
#define STEP_WORKSPACE_H

#include "device/device_arena.h"

#include <stdbool.h>

typedef struct scratch_buf {
	void *p;
	size_t bytes;
	device_arena *on; /* its device's memory, or pinned host memory for it; NULL: plain */
	bool pinned;
} scratch_buf;

typedef struct workspace {
	scratch_buf flat, own, gathered, scratch;
	scratch_buf error;        /* what the bucket is owed, where it is kept packed */
	scratch_buf kept;         /* a device's: what lasts of a bucket, should a gradient not be finite */
	void *over;               /* a device's: event of the bucket that had it last; NULL: none had */
	struct workspace *mirror; /* pinned host memory for what is on a device; else NULL */
	struct workspace *beside; /* for another shard of the same bucket; made when first needed */
} workspace;

/* Grows a buffer to `bytes`; its content is lost. */
gradcomp_status workspace_grow(scratch_buf *b, size_t bytes, gradcomp_error *err);
/* All buffers of an empty workspace are in such memory from now on. */
void workspace_place(workspace *w, device_arena *on, bool pinned);
/* Makes the workspace beside it, in memory of the same kind; NULL: no memory. */
workspace *workspace_beside(workspace *w);
/* Frees it and those beside it. */
void workspace_free(workspace *w);

#endif
