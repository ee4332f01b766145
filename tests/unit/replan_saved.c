/* A job that measures itself, saved and loaded: the plan, and what lags was told. And what lags makes of what it is
 * told again, at the densities chosen. */
#include "tests/support/replan_fixture.h"

typedef struct saved_run {
	uint64_t uninterrupted[MAX_RANKS], resumed[MAX_RANKS]; /* fingerprints of the steps after the save */
	double before[MAX_RANKS], after[MAX_RANKS];            /* planned bytes of a payload */
	uint32_t nbuckets[MAX_RANKS][2];
	int failed[MAX_RANKS];
} saved_run;

/* Bytes that the compressor plans to send of the whole model in the next step. */
static double planned(gradcomp_reducer *r)
{
	double bytes = 0;
	for (uint32_t b = 0; b < reducer_of(r)->eng.list.nbuckets; b++) {
		gradcomp_plan p = {.struct_size = sizeof p};
		gradcomp_error err;
		if (reducer_of(r)->eng.compressor->plan(reducer_of(r)->eng.instance,
		                                        &reducer_of(r)->eng.list.buckets[b].pub,
		                                        reducer_of(r)->eng.step, &p, &err))
			return -1;
		for (uint32_t k = 0; k < p.nrounds; k++)
			bytes += task_round_bytes(&p.rounds[k]);
	}
	return bytes;
}

static uint64_t steps_of(gradcomp_reducer *r, int rank, int from, int to, const times *t, float **grad, int *failed)
{
	uint64_t print = 0;
	gradcomp_error err = {0};
	for (int s = from; s < to; s++) {
		*failed |= step(r, rank, s, grad, &err) != 0;
		for (int i = 0; i < N; i++)
			for (uint64_t k = 0; k < numel_of(i); k++) {
				uint32_t bits;
				memcpy(&bits, &grad[i][k], sizeof bits);
				print = id_mix(print, bits);
			}
		pthread_mutex_lock(&reducer_of(r)->lock);
		run_step_replan_settle(reducer_of(r));
		pthread_mutex_unlock(&reducer_of(r)->lock);
		pretend(r, t, rank);
	}
	if (err.status)
		printf("# rank %d: %s\n", rank, err.text);
	return print;
}

static void saved_body(gradcomp_job *job, int rank, int P, void *arg)
{
	static const char lags[] = "lags:adaptive=yes,density=0.5,measure_steps=1000";
	saved_run *run = arg;
	gradcomp_error err = {0};
	gradcomp_reducer *r;
	float *grad[N];
	uint64_t bytes = 0;
	void *state = NULL;
	(void)P;
	for (int i = 0; i < N; i++)
		grad[i] = calloc(numel_of(i), sizeof(float));
	run->failed[rank] = open_reducer(gradcomp_job_world(job), lags, "mgwfbp", &r, &err) != 0;
	if (run->failed[rank]) {
		printf("# rank %d: %s\n", rank, err.text);
		return;
	}
	steps_of(r, rank, 0, 16, &usual, grad, &run->failed[rank]);
	run->before[rank] = planned(r);
	steps_of(r, rank, 16, 24, &usual, grad, &run->failed[rank]);
	run->after[rank] = planned(r);
	run->failed[rank] |= gradcomp_reducer_save(r, NULL, 0, &bytes, &err) != 0;
	state = malloc(bytes);
	run->failed[rank] |= gradcomp_reducer_save(r, state, bytes, &bytes, &err) != 0;
	run->nbuckets[rank][0] = reducer_of(r)->eng.list.nbuckets;
	run->uninterrupted[rank] = steps_of(r, rank, 24, 40, &usual, grad, &run->failed[rank]);
	gradcomp_reducer_free(r);
	run->failed[rank] |= open_reducer(gradcomp_job_world(job), lags, "mgwfbp", &r, &err) != 0;
	run->failed[rank] |= gradcomp_reducer_load(r, state, bytes, &err) != 0;
	run->nbuckets[rank][1] = reducer_of(r)->eng.list.nbuckets;
	run->resumed[rank] = steps_of(r, rank, 24, 40, &usual, grad, &run->failed[rank]);
	gradcomp_reducer_free(r);
	if (err.status)
		printf("# rank %d: %s\n", rank, err.text);
	for (int i = 0; i < N; i++)
		free(grad[i]);
	free(state);
}

static void saved(void)
{
	saved_run *run = calloc(1, sizeof *run);
	int failed = 0, same = 1;
	run_ranks(3, settings, saved_body, run);
	for (int p = 0; p < 3; p++) {
		failed |= run->failed[p];
		same &= run->uninterrupted[p] == run->resumed[p] && run->uninterrupted[p] == run->uninterrupted[0] &&
		        run->nbuckets[p][0] == run->nbuckets[p][1];
	}
	ok(!failed && run->before[0] != run->after[0] && run->after[1] == run->after[0],
	   "lags is told what was measured: %.0f bytes a step, then %.0f", run->before[0], run->after[0]);
	ok(!failed && same && run->nbuckets[0][0] > 1,
	   "a resumed job goes on to the bit, with the plan of %u messages and the densities it was saved with",
	   run->nbuckets[0][0]);
	free(run);
}

typedef struct told_run {
	const times *t;
	double bytes[3][MAX_RANKS];  /* planned of a step: before it is told, then after each time */
	double latest[3][MAX_RANKS]; /* seconds a byte of the line that it was told last */
	int failed[MAX_RANKS];
} told_run;

static void told_body(gradcomp_job *job, int rank, int P, void *arg)
{
	/* The schedule profiles 18 steps, and looks again every 8. */
	static const int until[] = {16, 20, 30};
	told_run *run = arg;
	gradcomp_error err = {0};
	gradcomp_reducer *r;
	float *grad[N];
	(void)P;
	run->failed[rank] = open_reducer(gradcomp_job_world(job), "lags:adaptive=yes,density=0.5,measure_steps=1000",
	                                 "wfbp", &r, &err) != 0;
	if (run->failed[rank]) {
		printf("# rank %d: %s\n", rank, err.text);
		return;
	}
	for (int i = 0; i < N; i++)
		grad[i] = calloc(numel_of(i), sizeof(float));
	for (int k = 0, s = 0; k < 3; s = until[k++]) {
		steps_of(r, rank, s, until[k], run->t, grad, &run->failed[rank]);
		run->bytes[k][rank] = planned(r);
		run->latest[k][rank] = reducer_of(r)->replan->last.exchange.b;
	}
	gradcomp_reducer_free(r);
	for (int i = 0; i < N; i++)
		free(grad[i]);
}

static int told(told_run *run, const times *t)
{
	int good = 1;
	*run = (told_run){.t = t};
	run_ranks(3, settings, told_body, run);
	for (int p = 0; p < 3; p++) {
		good &= !run->failed[p];
		for (int k = 0; k < 3; k++)
			good &= run->bytes[k][p] == run->bytes[k][0] && run->latest[k][p] == run->latest[k][0];
	}
	printf("# %.0f bytes a step, then %.0f, then %.0f; %.3g and %.3g s a byte\n", run->bytes[0][0],
	       run->bytes[1][0], run->bytes[2][0], run->latest[1][0], run->latest[2][0]);
	return good;
}

static void told_again(void)
{
	/* On the second, long messages are dear: a line through those says too much of the short ones that follow
	 * from it. */
	const times straight = {.a = 2e-5, .b = 1e-7, .backward = 0.2e-3};
	const times bent = {.a = 2e-5, .b = 1e-7, .backward = 0.2e-3, .knee = 1500, .steep = 4e-7};
	static told_run line, knee;
	ok(told(&line, &straight), "three ranks on a link that is a line plan the same bytes");
	ok(line.bytes[1][0] != line.bytes[0][0], "others than before lags is told");
	ok(fabs(line.bytes[2][0] - line.bytes[1][0]) < 0.02 * line.bytes[1][0], "and these when it is told again");
	ok(told(&knee, &bent), "so do they on a link that is not");
	ok(knee.latest[2][0] < 0.7 * knee.latest[1][0], "the messages that lags then sends are on another line");
	ok(knee.bytes[1][0] != knee.bytes[0][0] && knee.bytes[2][0] > 1.2 * knee.bytes[1][0],
	   "so its densities change when it is told again");
}

int main(void)
{
	settings[1] = plugin_path_setting();
	settings[2] = "schedule.profile_steps=18";
	settings[3] = "schedule.replan_steps=8";
	saved();
	told_again();
	return done_testing();
}
