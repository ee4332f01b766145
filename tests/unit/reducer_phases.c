/* gradcomp_watch_phases(): who watches is told of each phase of each bucket, in order and in pairs, and of nothing before or
 * after. */
#include "tests/support/small_model.h"

#include <pthread.h>

enum { P = 2, STEPS = 3, EVENTS = 4096 };

typedef struct event {
	pthread_t thread;
	gradcomp_phase phase;
	uint32_t bucket;
	int begins;
} event;

typedef struct events {
	event e[EVENTS];
	int n;
} events;

typedef struct seen {
	int failed[P];
	uint32_t buckets[P];
} seen;

static void watch(void *ctx, gradcomp_phase phase, uint32_t bucket, int begins)
{
	events *l = ctx;
	int at = __atomic_fetch_add(&l->n, 1, __ATOMIC_SEQ_CST);
	if (at < EVENTS)
		l->e[at] = (event){pthread_self(), phase, bucket, begins};
}

static events first, second;

static void body(gradcomp_job *job, int rank, int nranks, void *arg)
{
	seen *s = arg;
	gradcomp_group *world = gradcomp_job_world(job);
	gradcomp_error err = {0};
	gradcomp_reducer_stats stats = {.struct_size = sizeof stats};
	model m;
	(void)nranks;
	s->failed[rank] = model_open(&m, world, "topk:density=0.2", 4096, &err);
	for (int step = 0; !s->failed[rank] && step < STEPS + 2; step++) {
		/* One step has the first watcher, the next ones have the second, the last has none. */
		if (rank == 0)
			gradcomp_watch_phases(step > STEPS ? NULL : watch, step ? &second : &first);
		s->failed[rank] = gradcomp_barrier(world, &err);
		if (!s->failed[rank])
			s->failed[rank] = model_step(&m, rank, step, &err);
		if (!s->failed[rank])
			s->failed[rank] = gradcomp_barrier(world, &err);
	}
	if (s->failed[rank]) {
		printf("# rank %d: %s\n", rank, err.text);
		return;
	}
	gradcomp_reducer_get_stats(m.red, &stats);
	s->buckets[rank] = stats.buckets;
	model_close(&m);
}

/* Returns how many phases there are of this kind, or -1 when one ends that has not begun on that thread. */
static int pairs(const events *l, gradcomp_phase phase)
{
	int n = 0;
	for (int i = 0; i < l->n; i++) {
		int open = 0;
		if (l->e[i].phase != phase || l->e[i].begins)
			continue;
		for (int k = 0; k < i; k++)
			if (l->e[k].phase == phase && l->e[k].bucket == l->e[i].bucket &&
			    pthread_equal(l->e[k].thread, l->e[i].thread))
				open += l->e[k].begins ? 1 : -1;
		if (open != 1)
			return -1;
		n++;
	}
	return n;
}

static int begun(const events *l)
{
	int n = 0;
	for (int i = 0; i < l->n; i++)
		n += l->e[i].begins;
	return n;
}

int main(void)
{
	const char *const settings[] = {plugin_path_setting(), "gradcomp.log=error", NULL};
	seen s = {0};
	model_seed();
	run_ranks(P, settings, body, &s);
	ok(!s.failed[0] && !s.failed[1] && s.buckets[0] > 1, "two ranks take steps of %u buckets", s.buckets[0]);
	const events *logs[] = {&first, &second};
	for (int k = 0; k < 2; k++) {
		const events *l = logs[k];
		int steps = k ? STEPS : 1, least = P * steps * (int)s.buckets[0], all = 0;
		for (gradcomp_phase g = GRADCOMP_ENCODE; g <= GRADCOMP_DECODE; g++) {
			int n = pairs(l, g);
			ok(l->n < EVENTS && n >= least,
			   "watcher %d, phase %u: %d, which end where they begin, of at least %d", k + 1, g, n, least);
			all += n;
		}
		ok(begun(l) == all && l->n == 2 * all, "watcher %d: none is left open", k + 1);
	}
	int before = second.n;
	gradcomp_watch_phases(watch, &second);
	gradcomp_watch_phases(NULL, NULL);
	ok(second.n == before, "nothing is told where nothing is done");
	return done_testing();
}
