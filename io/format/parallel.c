/* A few threads over numbers. */
#include <stdatomic.h>

#include "io/format/samples_internal.h"
#include "base/thread.h"

#define WORKERS_MAX 64u

struct parallel {
	gradcomp_status (*each)(void *ctx, uint32_t worker, uint64_t i, gradcomp_error *err);
	void *ctx;
	uint64_t n;
	atomic_uint_fast64_t next;
	atomic_uint_fast32_t workers;
	atomic_bool stop;
	gradcomp_status status; /* of the first failure */
	gradcomp_error error;
};

static void *work(void *arg)
{
	struct parallel *p = arg;
	uint32_t worker = (uint32_t)atomic_fetch_add(&p->workers, 1);
	gradcomp_error error = {0};
	for (uint64_t i; !atomic_load(&p->stop) && (i = atomic_fetch_add(&p->next, 1)) < p->n;) {
		gradcomp_status status = p->each(p->ctx, worker, i, &error);
		if (status && !atomic_exchange(&p->stop, true)) {
			p->status = status;
			p->error = error;
		}
	}
	return NULL;
}

gradcomp_status parallel_each(uint64_t n, uint32_t workers,
                              gradcomp_status (*each)(void *ctx, uint32_t worker, uint64_t i, gradcomp_error *err),
                              void *ctx, gradcomp_error *err)
{
	struct parallel p = {.each = each, .ctx = ctx, .n = n};
	pthread_t threads[WORKERS_MAX] = {0};
	uint32_t want = workers < WORKERS_MAX ? workers : WORKERS_MAX, started = 0;
	if (want > n)
		want = (uint32_t)n;
	/* The caller's thread is one of them: what cannot be started is not missed. */
	while (started + 1 < want && !thread_start(&threads[started], work, &p))
		started++;
	work(&p);
	for (uint32_t i = 0; i < started; i++)
		pthread_join(threads[i], NULL);
	if (p.status && err)
		*err = p.error;
	return p.status;
}
