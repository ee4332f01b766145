/* Every call on another thread: nothing may hang on which one it is. While merge()
 * runs, the instance is read-only (see ranks_call.c); code() and a decoder run at the same
 * time and must not notice each other. */
#include <pthread.h>
#include <string.h>
#include <time.h>

#include "conformance/call.h"
#include "conformance/kit.h"

enum { RUN = 3001 };
/* Long enough for threads that share one core to meet in the middle of a call. */
#define TOGETHER_S 0.15

/* One instance, one run of floats, its code; two of these work on one instance. */
typedef struct lane {
	const ranks *s;
	float in[RUN], out[RUN];
	_Alignas(8) char wire[4 * RUN + RUN / 64 + 64];
	_Alignas(8) char again[4 * RUN + RUN / 64 + 64];
	uint64_t bytes;
	int differs;
	gradcomp_error err;
	pthread_barrier_t *start;
} lane;

static double seconds(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void *codes(void *ctx)
{
	lane *l = ctx;
	pthread_barrier_wait(l->start);
	for (double end = seconds() + TOGETHER_S; seconds() < end && !l->differs;) {
		uint64_t bytes = 0;
		l->differs = l->s->plugin->code(l->s->instance[0], l->in, RUN, 7, l->again, &bytes, &l->err) ||
		             bytes != l->bytes || memcmp(l->again, l->wire, bytes);
	}
	return NULL;
}

static void *decodes(void *ctx)
{
	static float now[RUN];
	lane *l = ctx;
	pthread_barrier_wait(l->start);
	for (double end = seconds() + TOGETHER_S; seconds() < end && !l->differs;)
		l->differs = l->s->plugin->code_decode(l->s->instance[0], l->wire, l->bytes, now, RUN, &l->err) ||
		             memcmp(now, l->out, sizeof now);
	return NULL;
}

static void codes_together(kit *k)
{
	static lane a, b;
	lane *lanes[2] = {&a, &b};
	pthread_barrier_t start;
	pthread_t thread;
	ranks s;
	if (!kit_open(k, &s, 2, &fixture_models[5]))
		return;
	for (int i = 0; i < 2; i++) {
		lane *l = lanes[i];
		l->s = &s;
		l->start = &start;
		for (int j = 0; j < RUN; j++)
			l->in[j] = random_check_normal();
		if (s.plugin->code_bound(s.instance[0], RUN) > sizeof l->wire ||
		    s.plugin->code(s.instance[0], l->in, RUN, 7, l->wire, &l->bytes, &l->err) ||
		    s.plugin->code_decode(s.instance[0], l->wire, l->bytes, l->out, RUN, &l->err)) {
			kit_fail(k, RULE_CODE, "a run of %d floats is not coded: %s", RUN, l->err.text);
			ranks_close(&s);
			return;
		}
	}
	pthread_barrier_init(&start, NULL, 2);
	call_begin(CALL_CODES, 0, 2, 0);
	if (!pthread_create(&thread, NULL, codes, &a)) {
		decodes(&b);
		pthread_join(thread, NULL);
	}
	call_end();
	pthread_barrier_destroy(&start);
	if (a.differs || b.differs)
		kit_fail(k, RULE_THREADS,
		         "code() and code_decode() at the same time disturb each other\na workspace that both use");
	ranks_close(&s);
}

static void hopping(kit *k, const kit_place *p, int steps)
{
	const uint64_t seed = random_check();
	ranks a, b;
	if (kit_open_at(k, &a, p, seed))
		return;
	if (!kit_open_at(k, &b, p, seed)) {
		b.hop = 1;
		a.light = b.light = steps >= 100;
		kit_run_alike(k, RULE_THREADS, "with every call on another thread", &a, &b, steps);
		ranks_close(&b);
	}
	ranks_close(&a);
}

void threads_group(kit *k)
{
	const fixture *t = &k->fixture;
	const uint32_t since = k->since;
	for (int P = 1; P <= 3; P++)
		hopping(k, &(kit_place){P, &fixture_models[6], 3000, 0, false}, 4);
	k->since = KIT_FURTHER;
	for (int n = 0; n < kit_places(k); n++) {
		kit_place p = kit_reach(k, n);
		hopping(k, &p, 2);
	}
	if (k->options->far)
		hopping(k, &(kit_place){2, &fixture_few, UINT64_MAX, 0, false}, REACH_STEPS / 2);
	k->since = since;
	if (ranks_planned(t->plugin) & GRADCOMP_PATTERN_BIT(GRADCOMP_CODED))
		codes_together(k);
	kit_ok(k, RULE_THREADS, "buckets in turn or interleaved, every call on another thread%s: the same bits",
	       ranks_planned(t->plugin) & GRADCOMP_PATTERN_BIT(GRADCOMP_CODED) ? ", code() beside a decoder"
	       : ranks_planned(t->plugin) & GRADCOMP_PATTERN_BIT(GRADCOMP_MERGED)
	               ? ", the instance read-only in merge()"
	               : "");
}
