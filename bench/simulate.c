/* How long the simulator takes: ranks that each have their own speed, every layer a bucket
 * of its own, which is the most there can be to do.
 *
 *     bench/simulate [RANKS [LAYERS [STEPS]]]        16384, 1000 and 1 unless given
 */
#include "base/clock.h"
#include "schedule/sim.h"
#include "reducer/reducer.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>

static uint32_t argument(int argc, char **argv, int i, uint32_t usual)
{
	long v = argc > i ? atol(argv[i]) : usual;
	return v < 1 ? 1 : v > 10000000 ? 10000000 : (uint32_t)v;
}

static double run(uint32_t nranks, uint32_t n, uint32_t steps)
{
	const gradcomp_plan rounds = {.nrounds = 1};
	sim_bucket alike = {.seconds = {0, 1e-5, 1e-4, 1e-5, 0}};
	double *passes = calloc(n, sizeof *passes), start = -1;
	sim_bucket *buckets = calloc(n, sizeof *buckets);
	sim_class *classes = calloc(nranks, sizeof *classes);
	uint32_t *end = calloc(n, sizeof *end);
	step_plan plan = {.nbuckets = n, .end = end};
	const sim_input in = {.n = n,
	                      .forward = passes,
	                      .backward = passes,
	                      .plan = &plan,
	                      .window = REDUCER_WORKSPACES,
	                      .buckets = buckets,
	                      .classes = classes,
	                      .nclasses = nranks,
	                      .beside_application = 0.8,
	                      .beside_exchange = 0.9,
	                      .steps = steps};
	gradcomp_error e;
	sim_output out;
	alike.ntasks = (uint32_t)task_list_make(&rounds, 0, alike.tasks);
	if (!passes || !buckets || !classes || !end)
		goto done;
	for (uint32_t i = 0; i < n; i++) {
		passes[i] = 1e-4 * (1 + i % 7);
		buckets[i] = alike;
		end[i] = i + 1;
	}
	for (uint32_t c = 0; c < nranks; c++)
		classes[c] = (sim_class){1, 0.9 + 0.1 * c / nranks};
	start = clock_now();
	if (sim_run(&in, 0, &out, &e)) {
		fprintf(stderr, "%s\n", e.text);
		start = -1;
		goto done;
	}
	start = clock_now() - start;
	printf("%6u classes x %u layers, %u steps: %.3f s (a step of %.4f s)\n", nranks, n, steps, start, out.step);
done:
	free(passes);
	free(buckets);
	free(classes);
	free(end);
	return start;
}

int main(int argc, char **argv)
{
	uint32_t nranks = argument(argc, argv, 1, 16384), n = argument(argc, argv, 2, 1000),
		 steps = argument(argc, argv, 3, 1);
	struct rusage used;
	if (run(1, n, 3) < 0 || run(nranks, n, steps) < 0)
		return 1;
	getrusage(RUSAGE_SELF, &used);
	printf("memory: %ld MiB\n", used.ru_maxrss / 1024);
	return 0;
}
