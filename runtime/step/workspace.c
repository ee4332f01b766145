#include "step/workspace.h"

#include "base/error.h"

#include <stdlib.h>

static void scratch_buf_free(scratch_buf *b)
{
	if (!b->on)
		free(b->p);
	else if (b->pinned)
		b->on->memory.d->unpin(b->p);
	else
		device_arena_release(b->on, b->p);
	b->p = NULL;
	b->bytes = 0;
}

gradcomp_status workspace_grow(scratch_buf *b, size_t bytes, gradcomp_error *err)
{
	const char *why = NULL;
	void *p = NULL;
	if (bytes <= b->bytes)
		return GRADCOMP_OK;
	bytes = (bytes + 4095) & ~(size_t)4095;
	if (b->on)
		why = b->pinned ? b->on->memory.d->pin(&p, bytes) : device_arena_alloc(b->on, &p, bytes);
	else
		p = aligned_alloc(64, bytes);
	if (why)
		return error_set(err, GRADCOMP_ERR_NOMEM, "no %s memory for a workspace of %zu bytes: %s",
		                 b->pinned ? "pinned host" : "CUDA", bytes, why);
	if (!p)
		return error_set(err, GRADCOMP_ERR_NOMEM, "no memory for a workspace of %zu bytes", bytes);
	scratch_buf_free(b);
	b->p = p;
	b->bytes = bytes;
	return GRADCOMP_OK;
}

static void place_buf(scratch_buf *b, device_arena *on, bool pinned)
{
	*b = (scratch_buf){.on = on, .pinned = pinned};
}

void workspace_place(workspace *w, device_arena *on, bool pinned)
{
	place_buf(&w->flat, on, pinned);
	place_buf(&w->own, on, pinned);
	place_buf(&w->gathered, on, pinned);
	place_buf(&w->scratch, on, pinned);
	place_buf(&w->error, on, pinned);
	place_buf(&w->kept, on, pinned);
}

workspace *workspace_beside(workspace *w)
{
	if (!w->beside && (w->beside = calloc(1, sizeof *w->beside)))
		workspace_place(w->beside, w->flat.on, w->flat.pinned);
	return w->beside;
}

void workspace_free(workspace *w)
{
	if (w->beside) {
		workspace_free(w->beside);
		free(w->beside);
		w->beside = NULL;
	}
	scratch_buf_free(&w->flat);
	scratch_buf_free(&w->own);
	scratch_buf_free(&w->gathered);
	scratch_buf_free(&w->scratch);
	scratch_buf_free(&w->error);
	scratch_buf_free(&w->kept);
}
