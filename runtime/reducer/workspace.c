/* Workspace of buckets in flight, on the host or on a device. */
#include "device/device.h"
#include "reducer/reducer.h"

#include "base/error.h"

#include <stdlib.h>

gradcomp_status scratch_buf_grow(struct scratch_buf *a, size_t bytes, gradcomp_error *err)
{
	const char *why = NULL;
	void *p = NULL;
	if (bytes <= a->bytes)
		return GRADCOMP_OK;
	bytes = (bytes + 4095) & ~(size_t)4095;
	if (a->on)
		why = a->pinned ? a->on->pin(&p, bytes) : a->on->alloc(&p, bytes);
	else
		p = aligned_alloc(64, bytes);
	if (why)
		return error_set(err, GRADCOMP_ERR_NOMEM, "no %s memory for a workspace of %zu bytes: %s",
		                 a->pinned ? "pinned host" : "CUDA", bytes, why);
	if (!p)
		return error_set(err, GRADCOMP_ERR_NOMEM, "no memory for a workspace of %zu bytes", bytes);
	scratch_buf_free(a);
	a->p = p;
	a->bytes = bytes;
	return GRADCOMP_OK;
}

void scratch_buf_free(struct scratch_buf *a)
{
	if (!a->on)
		free(a->p);
	else if (a->pinned)
		a->on->unpin(a->p);
	else
		a->on->release(a->p);
	a->p = NULL;
	a->bytes = 0;
}

static void place(struct scratch_buf *a, const device_calls *on, int pinned)
{
	*a = (struct scratch_buf){.on = on, .pinned = pinned};
}

void workspace_place(workspace *s, const device_calls *on, int pinned)
{
	place(&s->flat, on, pinned);
	place(&s->own, on, pinned);
	place(&s->gathered, on, pinned);
	place(&s->scratch, on, pinned);
}

void reducer_workspace_free(workspace *s)
{
	scratch_buf_free(&s->flat);
	scratch_buf_free(&s->own);
	scratch_buf_free(&s->gathered);
	scratch_buf_free(&s->scratch);
}
