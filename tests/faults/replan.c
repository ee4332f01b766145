/* A measured plan over slow links: reads and writes that take 1 ms each. */
#include "tests/support/inject/inject.h"
#include "tests/support/replan_fixture.h"

static void body(gradcomp_job *job, int rank, int P, void *arg)
{
	job_run *run = arg;
	gradcomp_error err = {0};
	gradcomp_reducer *r;
	float *grad[N];
	(void)P;
	run->failed[rank] = open_reducer(gradcomp_job_world(job), "none", run->schedule, &r, &err) != 0;
	if (run->failed[rank]) {
		printf("# rank %d: %s\n", rank, err.text);
		return;
	}
	for (int i = 0; i < N; i++)
		grad[i] = calloc(numel_of(i), sizeof(float));
	for (int s = 0; s < run->steps; s++)
		run->failed[rank] |= step(r, rank, s, grad, &err) != 0;
	keep_result(run, r, rank);
	gradcomp_reducer_free(r);
	for (int i = 0; i < N; i++)
		free(grad[i]);
}

/* Over links where a message takes milliseconds and gradients come at once, messages merge:
 * whatever else the machine does, also by falling back. */
static void latency(void)
{
	static const int nodes[] = {0, 1, 2};
	job_run *j = calloc(1, sizeof *j);
	*j = (job_run){.schedule = "mgwfbp", .steps = 10};
	ranks_on(nodes);
	ok(!inject_set("delay=100;delay_us=1000"), "every read and write takes 1 ms");
	inject_on();
	run_ranks(3, settings, body, j);
	inject_off();
	ok(sound(j, 3) && inject_seen().calls && j->nbuckets[0] < N / 2, "calls that take 1 ms: %u messages%s%s",
	   j->nbuckets[0], *j->reason ? ", " : "", j->reason);
	ranks_on(NULL);
	free(j);
}

int main(void)
{
	settings[1] = plugin_path_setting();
	settings[2] = "schedule.profile_steps=9";
	settings[3] = "schedule.replan_steps=8";
	latency();
	return done_testing();
}
