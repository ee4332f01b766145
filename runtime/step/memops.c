#include "step/memops.h"

/* Waits until what has been put on the stream to read a payload has been done. */
static gradcomp_status settle(const memops *w, const char *why, gradcomp_error *err)
{
	static const char unread[] = "a payload could not be read";
	return why ? device_check(why, unread, err)
	           : device_arena_settle(w->arena, w->stream, w->event, &w->watch, unread, err);
}

gradcomp_status memops_move(engine *eng, void *to, const void *from, size_t bytes, gradcomp_error *err)
{
	const memops *w = eng->room.wire;
	if (w)
		return device_check(w->arena->memory.d->copy(w->stream, to, from, bytes),
		                    "a payload could not be copied", err);
	memcpy(to, from, bytes);
	return GRADCOMP_OK;
}

/* CUDA has taken what it wants of plain host memory when its call returns. */
gradcomp_status memops_put(engine *eng, void *to, const void *from, size_t bytes, gradcomp_error *err)
{
	return memops_move(eng, to, from, bytes, err);
}

gradcomp_status memops_get_all(engine *eng, void *to, const void *from, size_t stride, size_t bytes, size_t n,
                               gradcomp_error *err)
{
	const memops *w = eng->room.wire;
	if (w)
		return settle(w, w->arena->memory.d->copy_rows(w->stream, to, bytes, from, stride, bytes, n), err);
	for (size_t i = 0; i < n; i++)
		memcpy((char *)to + i * bytes, (const char *)from + i * stride, bytes);
	return GRADCOMP_OK;
}

gradcomp_status memops_get(engine *eng, void *to, const void *from, size_t bytes, gradcomp_error *err)
{
	return memops_get_all(eng, to, from, bytes, bytes, 1, err);
}

gradcomp_status memops_zero(engine *eng, void *p, size_t bytes, gradcomp_error *err)
{
	const memops *w = eng->room.wire;
	if (w)
		return device_check(w->arena->memory.d->zero(w->stream, p, bytes), "a payload could not be cleared",
		                    err);
	memset(p, 0, bytes);
	return GRADCOMP_OK;
}

gradcomp_status memops_nonfinite(engine *eng, const float *x, size_t n, int *bad, gradcomp_error *err)
{
	const memops *w = eng->room.wire;
	if (!w) {
		eng->job->host.operators->nonfinite(NULL, x, n, bad);
		return GRADCOMP_OK;
	}
	w->ops->nonfinite(w->stream, x, n, w->word);
	gradcomp_status st = settle(w, w->arena->memory.d->copy(w->stream, w->seen, w->word, sizeof(int)), err);
	*bad = *w->seen;
	return st;
}
