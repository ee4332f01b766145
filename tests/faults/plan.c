/* gradcomp plan with every allocation failing in turn, threads among them: it ends in words or needs it not,
 * and nothing is kept. */
#include "tests/support/inject/inject.h"

#include "tests/support/dir_entries.h"
#include "tests/support/thread_ranks.h"
#include "tools/plan_sweep.c"

static uint64_t dims[] = {64, 64};
static model_tensor tensors[] = {
	{.name = (char[]){"a"}, .dims = dims, .ndim = 2, .forward = 1e-4, .backward = 2e-4},
	{.name = (char[]){"b"}, .dims = dims, .ndim = 1, .forward = 1e-4, .backward = 2e-4},
	{.name = (char[]){"c"}, .dims = dims, .ndim = 2, .forward = 1e-4, .backward = 2e-4}};
static model_file model = {.ntensors = 3, .name = "small", .tensors = tensors};
static compressor_curve curves[] = {{.compressor = (char[]){"powersgd"}, .encode = {1e-5, 4e-10}, .decode = {1e-5, 4e-10}}};
static machine_file machine = {.nodes = 4, .ranks_per_node = 1, .name = "m", .level = {{3e-6, 2e-10}, {5e-5, 8.4e-9}},
                               .reduce = 3e-10, .memory = 2e-10, .beside_application = 1, .beside_exchange = 1,
                               .curves = curves, .ncurves = 1};

static gradcomp_status sweep_once(int threads, int *rows, gradcomp_error *err)
{
	static plan p;
	gradcomp_status st;

	p = (plan){.model = &model, .machine = &machine, .nodes = {2, 4}, .ranks_per_node = 1, .nnodes = 2,
	           .compressors = {.spec = {{"powersgd", "powersgd"}, {"signsgd", "signsgd"}}, .n = 2},
	           .collectives = {.spec = {{"ring", "ring"}}, .n = 1}, .schedules = {.spec = {{"auto", "auto"}}, .n = 1}};
	st = plan_sweep(&p, threads, err);
	*rows = p.tables[0].n + p.tables[1].n;
	p.model = NULL;
	p.machine = NULL;
	plan_free(&p);
	return st;
}

static void each(int threads)
{
	int bad = 0, failed = 0, rows, fds = entries("/proc/self/fd");
	unsigned long n = 1;

	for (;; n++) {
		gradcomp_error err = {.text = ""};
		gradcomp_status st;
		inject_counts seen;
		char fault[40];

		snprintf(fault, sizeof fault, "alloc=%lu", n);
		if (inject_set(fault))
			abort();
		inject_on();
		st = sweep_once(threads, &rows, &err);
		inject_off();
		seen = inject_seen();
		if ((st ? st != GRADCOMP_ERR_NOMEM || st != err.status || !*err.text : rows != 2) || seen.live ||
		    entries("/proc/self/fd") != fds) {
			printf("# allocation %lu: status %d, '%s', %d rows, %lu kept\n", n, st, err.text, rows, seen.live);
			bad++;
		}
		failed += st != 0;
		if (!seen.faults)
			break;
	}
	tap_tried(n - 1, "injected faults");
	ok(!bad && failed > 100, "%d threads: of %lu allocations %d are needed, none is lost", threads, n - 1, failed);
}

int main(void)
{
	gradcomp_error err = {.text = ""};
	int rows;

	setenv("GRADCOMP_PLUGIN_PATH", strchr(plugin_path_setting(), '=') + 1, 1);
	/* Plugins stay. */
	is_int(sweep_once(1, &rows, &err), GRADCOMP_OK, "a plan: %s", err.text);
	is_int(rows, 2, "of what the machine says something of");
	each(1);
	each(3);
	return done_testing();
}
