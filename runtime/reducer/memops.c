#include "reducer/memops.h"

static const char unread[] = "a payload could not be read";

gradcomp_status memops_move(engine *eng, void *to, const void *from, size_t bytes, gradcomp_error *err)
{
	const gpu *g = eng->gpu;
	if (memops_on_device(eng))
		return device_check(g->d->copy(g->exchange, to, from, bytes), "a payload could not be copied", err);
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
	const gpu *g = eng->gpu;
	if (memops_on_device(eng))
		return gpu_settle(eng, g->d->copy_rows(g->exchange, to, bytes, from, stride, bytes, n), unread, err);
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
	const gpu *g = eng->gpu;
	if (memops_on_device(eng))
		return device_check(g->d->zero(g->exchange, p, bytes), "a payload could not be cleared", err);
	memset(p, 0, bytes);
	return GRADCOMP_OK;
}

gradcomp_status memops_nonfinite(engine *eng, const float *x, size_t n, int *bad, gradcomp_error *err)
{
	const gpu *g = eng->gpu;
	if (!memops_on_device(eng)) {
		eng->job->host.operators->nonfinite(NULL, x, n, bad);
		return GRADCOMP_OK;
	}
	size_t w = gpu_exchange_word(eng);
	g->ops->nonfinite(g->exchange, x, n, g->words + w);
	gradcomp_status st =
		gpu_settle(eng, g->d->copy(g->exchange, g->seen + w, g->words + w, sizeof(int)), unread, err);
	*bad = g->seen[w];
	return st;
}
