/* gradcomp plan with every allocation failing in turn, threads among them: it ends in words or needs it not,
 * and nothing is kept. */
#include "tests/support/inject/each_allocation.h"

#include "tests/support/thread_ranks.h"
#include "tools/plan_sweep.c"

static uint64_t dims[] = {64, 64};
static model_tensor tensors[] = {{.name = (char[]){"a"}, .dims = dims, .ndim = 2, .forward = 1e-4, .backward = 2e-4},
                                 {.name = (char[]){"b"}, .dims = dims, .ndim = 1, .forward = 1e-4, .backward = 2e-4},
                                 {.name = (char[]){"c"}, .dims = dims, .ndim = 2, .forward = 1e-4, .backward = 2e-4}};
static model_file model = {.ntensors = 3, .name = "small", .tensors = tensors};
static compressor_curve curves[] = {
	{.compressor = (char[]){"powersgd"}, .encode = {1e-5, 4e-10}, .decode = {1e-5, 4e-10}}};
static machine_file machine = {.nodes = 4,
                               .ranks_per_node = 1,
                               .name = "m",
                               .level = {{3e-6, 2e-10}, {5e-5, 8.4e-9}},
                               .reduce = 3e-10,
                               .memory = 2e-10,
                               .beside_application = 1,
                               .beside_exchange = 1,
                               .curves = curves,
                               .ncurves = 1};

static int threads, rows;

static bool left_out;

static gradcomp_status sweep_once(gradcomp_error *err)
{
	static plan p;
	gradcomp_status st;
	p = (plan){.model = &model,
	           .machine = &machine,
	           .nodes = {2, 4},
	           .ranks_per_node = 1,
	           .nnodes = 2,
	           .compressors = {.spec = {{"powersgd", "powersgd"}, {"signsgd", "signsgd"}}, .n = 2},
	           .collectives = {.spec = {{"ring", "ring"}}, .n = 1},
	           .schedules = {.spec = {{"auto", "auto"}}, .n = 1}};
	st = plan_sweep(&p, threads, err);
	rows = p.tables[0].n + p.tables[1].n;
	left_out = false; /* with that reason: an instance got no memory, others did */
	for (int i = 0; i < p.nskips; i++)
		left_out |= strstr(p.skips[i].why, "no memory") != NULL;
	p.model = NULL;
	p.machine = NULL;
	plan_free(&p);
	return st;
}

static const char *not_planned(gradcomp_status status)
{
	return (status ? status == GRADCOMP_ERR_NOMEM : rows == 2 || left_out) ? NULL
	                                                                       : "another failure, or not all rows";
}

static void each(int n, const char *what)
{
	threads = n;
	each_allocation_fails(&(each_allocation){what, sweep_once, 100, .wrong = not_planned});
}

int main(void)
{
	gradcomp_error err = {.text = ""};
	setenv("GRADCOMP_PLUGIN_PATH", strchr(plugin_path_setting(), '=') + 1, 1);
	threads = 1;
	/* Plugins stay. */
	is_int(sweep_once(&err), GRADCOMP_OK, "a plan: %s", err.text);
	is_int(rows, 2, "of what the machine says something of");
	each(1, "1 threads");
	each(3, "3 threads");
	return done_testing();
}
