/* A pool's parts: each once, on several threads, and none after a failure. */
#include "base/error.h"
#include "base/thread_pool.h"

#include "tests/support/tap.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { MANY = 10000 };

typedef struct seen {
	atomic_int calls[MANY];
	atomic_int busy[THREAD_POOL_MAX];
	atomic_int shared; /* calls of one worker at the same time */
	uint64_t fails;    /* at this one, late, and at the next one; MANY: none */
} seen;

static void count(void *arg, size_t part)
{
	atomic_fetch_add(&((seen *)arg)->calls[part], 1);
}

static gradcomp_status each(void *ctx, uint32_t worker, uint64_t i, gradcomp_error *err)
{
	seen *s = ctx;
	if (atomic_fetch_add(&s->busy[worker], 1))
		atomic_fetch_add(&s->shared, 1);
	atomic_fetch_add(&s->calls[i], 1);
	atomic_fetch_sub(&s->busy[worker], 1);
	if (i == s->fails)
		usleep(2000);
	return i == s->fails || i == s->fails + 1
	               ? error_set(err, GRADCOMP_ERR_RANGE, "number %llu", (unsigned long long)i)
	               : GRADCOMP_OK;
}

static uint64_t once(const seen *s)
{
	uint64_t n = 0;
	while (n < MANY && s->calls[n] == 1)
		n++;
	return n;
}

int main(void)
{
	static const int threads[] = {0, 1, 2, 5, THREAD_POOL_MAX, 1000};
	for (size_t k = 0; k < sizeof threads / sizeof *threads; k++) {
		thread_pool *p = NULL;
		seen *s = calloc(1, sizeof *s);
		int want = threads[k] < 1 ? 1 : threads[k] > THREAD_POOL_MAX ? THREAD_POOL_MAX : threads[k];
		is_int(thread_pool_open(threads[k], &p), 0, "a pool of %d opens", threads[k]);
		is_int(thread_pool_threads(p), want, "and has %d threads", want);
		thread_pool_run(p, count, s, 0);
		is_int(s->calls[0], 0, "no part, no call");
		thread_pool_run(p, count, s, 7);
		is_int(once(s), 7, "seven parts, once each");
		memset(s, 0, sizeof *s);
		thread_pool_run(p, count, s, MANY);
		is_int(once(s), MANY, "and many");
		thread_pool_close(p);
		free(s);
	}
	for (int n = 1; n <= 8; n *= 2) {
		gradcomp_error err = {0};
		seen *s = calloc(1, sizeof *s);
		s->fails = MANY;
		is_int(thread_pool_each(n, MANY, each, s, &err), GRADCOMP_OK, "numbers over %d threads", n);
		ok(once(s) == MANY && !s->shared, "each once, and no worker twice at a time");
		memset(s, 0, sizeof *s);
		s->fails = 17;
		is_int(thread_pool_each(n, MANY, each, s, &err), GRADCOMP_ERR_RANGE, "a failure is returned");
		is_str(err.text, "number 17", "the first one, whichever failed before");
		ok(n > 1 || once(s) == 18, "and alone it is the last call");
		free(s);
	}
	is_int(thread_pool_each(3, 0, each, NULL, NULL), GRADCOMP_OK, "nothing to do");
	thread_pool_close(NULL);
	return done_testing();
}
