/* Plans of messages made from what a job measures (replan.h). */
#include "tests/support/replan_fixture.h"

static int near(double x, double y)
{
	return fabs(x - y) <= 0.02 * y;
}

static void methods(void)
{
	double published;
	times t = usual;
	job_run *j = run(3, "wfbp", 3, &t);
	ok(sound(j, 3) && j->nbuckets[0] == N && !j->plans[0], "wfbp: %u messages", j->nbuckets[0]);
	j = run(3, "single", 3, &t);
	ok(sound(j, 3) && j->nbuckets[0] == 1, "single: %u message", j->nbuckets[0]);
	j = run(3, "fixed:bytes=8K", 3, &t);
	ok(sound(j, 3) && j->nbuckets[0] > 4 && j->nbuckets[0] < N, "fixed:bytes=8K: %u messages", j->nbuckets[0]);
	j = run(3, "mgwfbp", 20, &t);
	ok(sound(j, 3) && j->nbuckets[0] > 1 && j->nbuckets[0] < 6 && j->plans[0] == 1,
	   "mgwfbp: %u messages where every sixth pass hides one", j->nbuckets[0]);
	ok(near(j->summary.exchange.a, t.a) && near(j->summary.exchange.b, t.b) && j->summary.agreed,
	   "a and b are found again, whoever waits for whom: %g s + %g s", j->summary.exchange.a,
	   j->summary.exchange.b);
	ok(j->predicted[0] > 0 && j->predicted[0] <= j->fixed[0] && j->predicted[2] == j->predicted[0],
	   "all ranks know what is predicted: %.4f s, with fixed buckets %.4f s", j->predicted[0], j->fixed[0]);
	j = run(3, "omgs", 20, &t);
	ok(sound(j, 3) && j->plans[0] == 1 && j->nbuckets[0] < N, "omgs: %u messages", j->nbuckets[0]);
	j = run(3, "auto", 20, &t);
	ok(sound(j, 3) && j->plans[0] == 1 && j->predicted[0] <= j->fixed[0], "auto: '%s', %u messages", j->name,
	   j->nbuckets[0]);
	t.a = 1e-7, t.b = 1e-12;
	j = run(3, "mgwfbp:greedy", 20, &t);
	ok(sound(j, 3) && j->nbuckets[0] == N, "mgwfbp:greedy: %u messages where they cost nothing", j->nbuckets[0]);
	j = run(3, "mgwfbp", 20, &t);
	ok(sound(j, 3) && j->nbuckets[0] > 1 && j->nbuckets[0] < N, "mgwfbp: the last tensors alone: %u",
	   j->nbuckets[0]);
	/* Longer than every gap: the rule makes one message, whatever the bytes take. */
	t.a = 4e-3, t.b = 1e-6;
	j = run(3, "mgwfbp:greedy", 20, &t);
	ok(sound(j, 3) && j->plans[0] == 1, "mgwfbp:greedy: %u messages, %.4f s", j->nbuckets[0], j->predicted[0]);
	published = j->predicted[0];
	j = run(3, "mgwfbp", 20, &t);
	ok(sound(j, 3) && j->plans[0] == 1 && j->predicted[0] <= published, "mgwfbp: %u messages, %.4f s, not longer",
	   j->nbuckets[0], j->predicted[0]);
	j = run(1, "mgwfbp", 20, &t);
	ok(sound(j, 1) && !j->plans[0], "one rank has nothing to plan");
}

/* Gradients of a framework's bucket come at once. */
static void bursts(void)
{
	times t = usual;
	double sum = 0;
	t.together = 6;
	job_run *j = run(3, "auto", 20, &t);
	for (int i = 0; i < N; i++)
		sum += j->backward[i];
	ok(sound(j, 3) && j->nbuckets[0] <= 4, "gradients that come six at a time: %u messages", j->nbuckets[0]);
	ok(near(sum, comes(&t, N - 1) - comes(&t, 5)), "the passes are %.4f s together", sum);
	ok(near(j->backward[7] * (double)numel_of(N - 1 - 8), j->backward[8] * (double)numel_of(N - 1 - 7)) &&
	           j->backward[7] > 0,
	   "who came together share the time by their numbers");
}

static void uneven(void)
{
	times t = usual;
	t.slow[1] = 3;
	job_run *j = run(3, "mgwfbp", 20, &t);
	ok(sound(j, 3) && j->plans[0] == 1 && near(j->summary.forward, 3 * (4e-3 + comes(&t, 0))),
	   "the slowest rank's times count: forward %.4f s", j->summary.forward);
}

static void noise(void)
{
	times t = usual;
	t.jitter = 8;
	job_run *j = run(3, "mgwfbp", 20, &t);
	ok(sound(j, 3) && !j->plans[0] && j->nbuckets[0] == 1 && strstr(j->reason, "the backward pass varies"),
	   "enormous noise: fixed buckets, and why: %s", j->reason);
	settings[2] = "schedule.profile_steps=2";
	j = run(3, "mgwfbp", 4, &usual);
	ok(sound(j, 3) && !j->plans[0] && j->nbuckets[0] == 1 && strstr(j->reason, "of 2 profiled steps 1 can be used"),
	   "too few steps: fixed buckets, and why: %s", j->reason);
	settings[2] = "schedule.profile_steps=18";
}

/* After step 21 messages cost nothing, but bytes do: one more plan, and then no more. */
static void drift(void)
{
	times later = usual;
	later.a = 1e-6;
	later.b = 2e-7;
	later.backward = 1e-3;
	job_run *j = run_more(3, "mgwfbp:greedy", 120, &usual, 21, &later);
	ok(sound(j, 3) && j->after[0] == 1 && j->plans[0] == 2 && j->nbuckets[0] > N / 2,
	   "other times: %u plans, %u messages now", j->plans[0], j->nbuckets[0]);
	later = usual;
	later.a *= 1.1;
	later.backward *= 0.9;
	j = run_more(3, "mgwfbp", 60, &usual, 21, &later);
	ok(sound(j, 3) && j->plans[0] == 1, "times that are 10 %% off: %u plan", j->plans[0]);
	later = usual;
	later.backward *= 2;
	j = run_more(3, "mgwfbp", 60, &usual, 21, &later);
	ok(sound(j, 3) && j->plans[0] == 1, "another time, the same plan: %u plan", j->plans[0]);
}

/* Two levels: compressors work on shards, whose rounds other ranks do not know. */
static void levels(void)
{
	static const int nodes[] = {0, 0, 1, 1};
	job_run *j = calloc(1, sizeof *j);
	int same = 1;
	*j = (job_run){.compressor = "topk:density=0.5", .schedule = "mgwfbp", .steps = 30, .t = usual, .later = usual};
	ranks_on(nodes);
	settings[4] = "gradcomp.collective=hier";
	run_ranks(4, settings, measured_body, j);
	for (int p = 0; p < 4; p++)
		same &= !j->failed[p] && j->print[p] == j->print[0] && j->nbuckets[p] == j->nbuckets[0] &&
		        j->plans[p] == j->plans[0];
	ok(same && (j->plans[0] == 1 || *j->reason), "two levels: %u plan, %u messages %s", j->plans[0], j->nbuckets[0],
	   j->reason);
	settings[4] = NULL;
	ranks_on(NULL);
	free(j);
}

int main(void)
{
	settings[1] = plugin_path_setting();
	settings[2] = "schedule.profile_steps=18";
	settings[3] = "schedule.replan_steps=8";
	methods();
	bursts();
	uneven();
	noise();
	drift();
	levels();
	return done_testing();
}
