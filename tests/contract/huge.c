/* 3 * 10^8 numbers through an all-reduce of every installed collective, once: more bytes
 * than 31 bits can count. Runs when huge.t says that there is memory for it: two ranks of
 * 2.4 GB each. */
#include "tests/support/collective_layouts.h"

enum { P = 2 };
static const uint64_t numbers = 300000000;
static int64_t *x[P];
/* Both ranks have the same numbers, so every sum doubles them. */
static int64_t factor = 1;

static int64_t number(uint64_t i)
{
	return (int64_t)(i % 1000003);
}

static void body(gradcomp_job *job, int rank, int nranks, void *arg)
{
	const char *spec = arg;
	uint64_t wrong = 0;
	gradcomp_error err = {0};
	coll_ctx p;
	(void)nranks;
	if (grid_open(job, spec, &p, &err)) {
		skip(err.text, "%s, rank %d", spec, rank);
		return;
	}
	if (p.collective->serves & GRADCOMP_CAN_ALLREDUCE) {
		if (p.collective->allreduce(p.instance, x[rank], numbers, GRADCOMP_I64, GRADCOMP_SUM, 1.0, &err))
			wrong = numbers;
		for (uint64_t i = 0; !wrong && i < numbers; i++)
			wrong += x[rank][i] != 2 * factor * number(i);
		ranks_wait();
		if (rank == 0)
			factor *= 2;
		is_int(wrong, 0, "%s, rank %d: all-reduce of 3 * 10^8 numbers%s%s", spec, rank, *err.text ? ": " : "",
		       err.text);
	}
	group_coll_close(&p);
}

int main(void)
{
	const char *settings[] = {plugin_path_setting(), "transport.timeout=60", "gradcomp.log=error", NULL};
	if (!getenv("TEST_HUGE")) {
		skip("tests/contract/huge.t runs it where there is memory", "3 * 10^8 numbers");
		return done_testing();
	}
	for (int r = 0; r < P; r++) {
		x[r] = malloc(8 * numbers);
		if (!x[r]) {
			skip("no memory for 4.8 GB", "3 * 10^8 numbers");
			return done_testing();
		}
		for (uint64_t i = 0; i < numbers; i++)
			x[r][i] = number(i);
	}
	grid_find(settings);
	for (int k = 0; k < ncollectives; k++)
		run_ranks(P, settings, body, collectives[k]);
	for (int r = 0; r < P; r++)
		free(x[r]);
	return done_testing();
}
