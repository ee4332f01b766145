/* gradcomp plan on several threads: the tables, what is left out and the error are those of one thread,
 * to the bit. The first sweep is on many, so that plugins and what they keep are first met there; under
 * ThreadSanitizer this is the test of all that a prediction calls. */
#include "tests/support/thread_ranks.h"
#include "tools/plan_sweep.c"

enum { TENSORS = 14, CURVES = 6 };

static uint64_t dims[TENSORS][2];
static model_tensor tensors[TENSORS];
static model_file model = {.ntensors = TENSORS, .name = "small", .tensors = tensors};
static compressor_curve curves[CURVES];
static collective_cost calls[] = {
	{.collective = (char[]){"ring"}, .primitive = GRADCOMP_CAN_ALLREDUCE, .cost = {1e-4, 2e-9}},
	{.collective = (char[]){"tree:chnk=1"}, .primitive = GRADCOMP_CAN_ALLREDUCE, .cost = {1e-4, 2e-9}},
	{.collective = (char[]){"rhd:chnk=1"}, .primitive = GRADCOMP_CAN_ALLREDUCE, .cost = {1e-4, 2e-9}},
};
static machine_file machine = {.nodes = 4,
                               .ranks_per_node = 2,
                               .name = "m",
                               .level = {{3e-6, 2e-10}, {5e-5, 8.4e-9}},
                               .reduce = 3e-10,
                               .memory = 2e-10,
                               .beside_application = 1,
                               .beside_exchange = 0.9,
                               .slowed_by_exchange = 0.1,
                               .curves = curves,
                               .calls = calls};

/* The machine says something of the first ones. One is not installed. */
static const char *const compressors[] = {
	"none",     "cast:type=fp16", "topk:density=0.01",    "powersgd:rank=2",   "signsgd", "block:bits=8",
	"terngrad", "nope",           "randomk:density=0.01", "gtopk:density=0.01"};
static const char *const collectives[] = {"ring", "tree", "rhd", "hier", "direct", "auto", "sparse"};
static const char *const schedules[] = {"single", "wfbp", "mgwfbp", "auto"};
static const uint32_t nodes[] = {1, 3, 64};

static void fill(plan_specs *to, const char *const *from, int n)
{
	for (to->n = 0; to->n < n; to->n++) {
		snprintf(to->spec[to->n].text, PLAN_SPEC, "%s", from[to->n]);
		snprintf(to->spec[to->n].shown, PLAN_SPEC, "%s", from[to->n]);
	}
}

#define FILL(to, from) fill(to, from, (int)(sizeof(from) / sizeof *(from)))

static void make_model(void)
{
	for (uint64_t i = 0; i < TENSORS; i++) {
		dims[i][0] = i % 3 ? 64 + 16 * i : 512;
		dims[i][1] = 32 + i * i;
		tensors[i] = (model_tensor){.name = (char[]){"t"},
		                            .dims = dims[i],
		                            .ndim = i % 3 ? 2 : 1,
		                            .forward = 1e-4 * (double)(i % 5),
		                            .backward = 2e-4 * (double)(1 + i % 4)};
	}
	for (machine.ncurves = 0; machine.ncurves < CURVES; machine.ncurves++)
		curves[machine.ncurves] = (compressor_curve){.compressor = strdup(compressors[machine.ncurves]),
		                                             .encode = {1e-5, 4e-10},
		                                             .decode = {1e-5, 4e-10},
		                                             .gathered = 1e-9};
}

static plan *new_plan(void)
{
	plan *p = calloc(1, sizeof *p);
	p->model = &model;
	p->machine = &machine;
	p->ranks_per_node = 2;
	p->nnodes = (int)(sizeof nodes / sizeof *nodes);
	memcpy(p->nodes, nodes, sizeof nodes);
	FILL(&p->compressors, compressors);
	FILL(&p->collectives, collectives);
	FILL(&p->schedules, schedules);
	p->dense = p->compressors.spec[0];
	p->half = p->compressors.spec[1];
	return p;
}

static void end_plan(plan *p)
{
	p->model = NULL;
	p->machine = NULL;
	plan_free(p);
	free(p);
}

static bool same_seconds(const cost_prediction *a, const cost_prediction *b)
{
	const double x[] = {a->step_s,   a->least_s,    a->most_s,   a->compute_s,  a->exposed_s,
	                    a->encode_s, a->exchange_s, a->decode_s, a->sent_bytes, a->node_bytes};
	const double y[] = {b->step_s,   b->least_s,    b->most_s,   b->compute_s,  b->exposed_s,
	                    b->encode_s, b->exchange_s, b->decode_s, b->sent_bytes, b->node_bytes};
	return a->buckets == b->buckets && !memcmp(x, y, sizeof x);
}

static bool same_table(const plan_table *a, const plan_table *b)
{
	bool same = a->nodes == b->nodes && a->n == b->n && a->best - a->rows == b->best - b->rows &&
	            a->dense - a->rows == b->dense - b->rows && a->half - a->rows == b->half - b->rows;
	for (int i = 0; same && i < a->n; i++) {
		const plan_row *x = &a->rows[i], *y = &b->rows[i];

		same = plan_same(x->compressor, y->compressor) && plan_same(x->collective, y->collective) &&
		       plan_same(x->schedule, y->schedule) && same_seconds(&x->p, &y->p);
	}
	return same;
}

static bool same_skips(const plan *a, const plan *b)
{
	bool same = a->nskips == b->nskips;
	for (int i = 0; same && i < a->nskips; i++)
		same = !strcmp(a->skips[i].what, b->skips[i].what) && !strcmp(a->skips[i].why, b->skips[i].why);
	return same;
}

/* Checks that what is left out has been asked for in this order. */
static void says(const plan *p, const char *first, const char *second)
{
	int at = 0;
	while (at < p->nskips && strcmp(p->skips[at].what, first) != 0)
		at++;
	while (at < p->nskips && strcmp(p->skips[at].what, second) != 0)
		at++;
	ok(at < p->nskips, "what is left out: %s, and behind it %s", first, second);
}

static void sweeps(void)
{
	static const int threads[] = {8, 1, 3};
	plan *of[sizeof threads / sizeof *threads], *one;
	gradcomp_error err = {.text = ""};
	int rows = 0;
	for (size_t k = 0; k < sizeof threads / sizeof *threads; k++) {
		of[k] = new_plan();
		is_int(plan_sweep(of[k], threads[k], &err), GRADCOMP_OK, "a sweep on %d threads: %s", threads[k],
		       err.text);
	}
	one = of[1];
	for (int n = 0; n < one->nnodes; n++)
		rows += one->tables[n].n;
	ok(rows > 300 && one->nskips > 5, "%d combinations are predicted, %d lines are left out", rows, one->nskips);
	says(one, "terngrad over ring", "nope");
	says(one, "nope", "gtopk:density=0.01 over tree");
	for (size_t k = 0; k < sizeof threads / sizeof *threads; k++) {
		int same = 0;

		for (int n = 0; n < one->nnodes; n++)
			same += same_table(&of[k]->tables[n], &one->tables[n]);
		is_int(same, one->nnodes, "%d threads: tables as of one", threads[k]);
		ok(same_skips(of[k], one), "and as much is left out, in that order");
	}
	for (size_t k = 0; k < sizeof threads / sizeof *threads; k++)
		end_plan(of[k]);
}

/* Two collectives whose measured calls have a slip: what one thread would meet first is what is said. */
static void failures(void)
{
	machine.ncalls = sizeof calls / sizeof *calls;
	for (int threads = 1; threads <= 16; threads *= 2) {
		int wrong = 0;

		for (int k = 0; k < 5; k++) {
			gradcomp_error err = {.text = ""};
			plan *p = new_plan();
			gradcomp_status st;

			p->schedules.n = 1;
			st = plan_sweep(p, threads, &err);

			wrong += st != GRADCOMP_ERR_INVALID || st != err.status ||
			         !strstr(err.text, "collective 'tree:chnk=1'");
			if (wrong == 1)
				printf("# status %d: %s\n", st, err.text);
			end_plan(p);
		}
		is_int(wrong, 0, "a file with two slips on %d threads: ends with the first", threads);
	}
	machine.ncalls = 1;
}

static void nothing(void)
{
	gradcomp_error err;
	plan *p = new_plan();
	p->collectives.n = 0;
	is_int(plan_sweep(p, 4, &err), GRADCOMP_OK, "no collective");
	ok(!p->tables[0].n && !p->tables[0].best && !p->nskips, "nothing is advised");
	end_plan(p);
}

int main(void)
{
	setenv("GRADCOMP_PLUGIN_PATH", strchr(plugin_path_setting(), '=') + 1, 1);
	make_model();
	machine.ncalls = 1;
	sweeps();
	failures();
	nothing();
	for (uint32_t i = 0; i < machine.ncurves; i++)
		free(curves[i].compressor);
	return done_testing();
}
