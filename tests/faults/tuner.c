/* Every allocation of a change of auto's reducers fails in turn, on whichever rank it is: all
 * ranks change, or none and the job goes on, or the job ends and says so. Nobody waits for a
 * rank that has fallen out. */
#include "tests/support/inject/inject.h"

#include "tests/support/small_model.h"

#include "kinds/autotune/tuner_internal.h"

enum { P = 2 };

typedef struct attempt {
	int n, done;
	gradcomp_status opened[P], st[P];
	int refused[P], stepped[P];
	char text[P][508];
} attempt;

static tuner *front_of(const model *m)
{
	return (tuner *)m->red;
}

static void body(gradcomp_job *job, int rank, int nranks, void *arg)
{
	attempt *a = arg;
	gradcomp_error err = {0};
	model m;
	uint8_t of[T];
	(void)nranks;
	memset(of, 1, sizeof of);
	const assignment to = {1, of};
	a->opened[rank] = model_open(&m, gradcomp_job_world(job), "auto:candidates=none/topk:density=0.1", 1000, &err);
	if (a->opened[rank])
		return;
	front_of(&m)->next_check = UINT64_MAX; /* it stays with that */
	ranks_wait();
	if (rank == 0) {
		char text[32];
		snprintf(text, sizeof text, "alloc=%d", a->n);
		inject_set(text);
		inject_on();
	}
	ranks_wait();
	a->st[rank] = tuner_change(front_of(&m), &to, TUNER_TRIES, &a->refused[rank], &err);
	ranks_wait();
	if (rank == 0) {
		inject_off();
		a->done = !inject_seen().faults;
	}
	a->stepped[rank] = !model_step(&m, rank, 0, &err);
	memcpy(a->text[rank], err.text, sizeof a->text[0]);
	model_close(&m);
}

int main(void)
{
	const char *settings[] = {plugin_path_setting(), "transport.wait_timeout=30", "gradcomp.log=error", NULL};
	const char *const *all[P] = {settings};
	int changed = 0, stayed = 0, ended = 0, apart = 0, waited = 0;
	attempt a = {0};
	model_seed();
	ranks_wait_init(P);
	for (int n = 1; n < 1000 && !a.done; n++) {
		rank_arg results[P];
		a = (attempt){.n = n};
		run_ranks_with(P, all, results, body, &a);
		int good[P], went[P];
		for (int r = 0; r < P; r++) {
			good[r] = !a.st[r] && a.stepped[r];
			went[r] = good[r] && !a.refused[r];
			waited += strstr(a.text[r], "has waited") != NULL;
		}
		if (good[0] != good[1] || went[0] != went[1] || a.opened[0] || a.opened[1]) {
			printf("# allocation %d: %d %d: %s; %s\n", n, a.st[0], a.st[1], a.text[0], a.text[1]);
			apart++;
		}
		changed += went[0];
		stayed += good[0] && !went[0];
		ended += !good[0];
	}
	ranks_wait_end();
	ok(a.done && changed && !apart,
	   "allocations of a change fail: %d times both changed, %d none, and %d jobs ended", changed, stayed, ended);
	ok(!waited, "and nobody waited for the other");
	return done_testing();
}
