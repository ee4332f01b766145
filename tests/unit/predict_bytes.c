/* The bytes that cost_predict() says a rank sends against those that reducers do send, of
 * every compressor over a collective that carries it. */
#include "cost/planning.h"

#include "config/config.h"
#include "tests/support/thread_ranks.h"
#include "plugin/spec_table.h"

#include <math.h>

enum { P = 4, TENSORS = 4, FROM = 4, STEPS = 2 };

static uint64_t dims[TENSORS][2] = {{256, 200}, {256, 1}, {300, 128}, {17, 900}};
static const uint32_t ndims[TENSORS] = {2, 1, 2, 2};

typedef struct pair {
	const char *compressor, *collective;
	double within; /* relative */
} pair;

/* Codes are counted as for one run; each block of a bucket has a rounding of its own. */
static const pair flat[] = {
	{"none", "ring", 1e-9},
	{"none", "rhd", 1e-9},
	{"none", "tree", 1e-9},
	{"none", "direct", 1e-9},
	{"cast", "ring", 1e-3},
	{"cast", "direct", 1e-3},
	{"cast", "auto", 1e-3},
	{"cast:sum=wire", "ring", 1e-9},
	{"powersgd", "ring", 1e-9},
	{"powersgd:rank=2", "rhd", 1e-9},
	{"acpsgd", "ring", 1e-9},
	{"lqsgd", "ring", 1e-9},
	{"dion", "ring", 1e-9},
	{"topk:density=0.05", "ring", 1e-9},
	{"topk:density=0.05,indices=delta", "ring", 1e-9},
	{"mstopk:density=0.05", "ring", 1e-9},
	{"randomk:density=0.05", "ring", 1e-9},
	{"blocktopk:density=0.05", "ring", 1e-9},
	{"blocktopk:density=0.05,rows=yes", "ring", 1e-9},
	{"gtopk:density=0.05", "tree", 1e-9},
	{"demo", "ring", 1e-9},
	{"dgc:density=0.05", "ring", 1e-9},
	{"lags:density=0.05", "ring", 1e-9},
	{"onebit", "ring", 1e-9},
	{"onebit", "direct", 0.01},
	{"signsgd", "ring", 1e-9},
	{"terngrad", "ring", 1e-9},
	{"qsgd", "ring", 1e-9},
	{"block", "ring", 0.01},
	{"block:bits=4", "direct", 0.01},
	{"fp8:scales=e8m0,block=32", "ring", 0.01},
	{"fp4", "ring", 0.01},
	{"fp4:type=mx", "ring", 0.01},
	{"natural", "ring", 0.01},
};
static const pair levels[] = {
	{"none", "hier", 1e-9},
	{"cast", "hier", 1e-3},
	{"cast", "auto", 1e-3},
	{"topk:density=0.05", "hier", 1e-9},
	{"randomk:density=0.05", "hier", 0.002},
	{"blocktopk:density=0.05", "hier", 0.01},
	/* These do something else with a matrix than with its numbers in a row. */
	{"dgc:density=0.05", "hier", 0.002},
	{"onebit", "hier", 0.002},
};

typedef struct run {
	const pair *pair;
	double sent[P];
	gradcomp_status failed;
} run;

static void fill(float *g, uint64_t n, uint64_t seed)
{
	for (uint64_t i = 0; i < n; i++) {
		seed = seed * 6364136223846793005u + 1442695040888963407u;
		g[i] = (float)((double)(seed >> 11) / 9007199254740992.0 - 0.5);
		g[i] *= g[i] * g[i];
	}
}

static void body(gradcomp_job *job, int rank, int nranks, void *arg)
{
	run *r = arg;
	gradcomp_tensor_desc desc[TENSORS];
	gradcomp_reducer_options o = {.struct_size = sizeof o,
	                              .compressor = r->pair->compressor,
	                              .collective = r->pair->collective,
	                              .schedule = "fixed:bytes=100K",
	                              .seed = 1};
	gradcomp_reducer *reducer = NULL;
	gradcomp_error e = {0};
	float *g[TENSORS];
	double before = 0;
	(void)nranks;
	for (int t = 0; t < TENSORS; t++) {
		desc[t] = (gradcomp_tensor_desc){NULL, dims[t], ndims[t], GRADCOMP_F32};
		g[t] = malloc(dims[t][0] * dims[t][1] * sizeof *g[t]);
	}
	gradcomp_status st = gradcomp_reducer_create(gradcomp_job_world(job), desc, TENSORS, &o, &reducer, &e);
	for (uint64_t step = 0; !st && step < FROM + STEPS; step++) {
		gradcomp_reducer_stats stats = {.struct_size = sizeof stats};

		gradcomp_reducer_get_stats(reducer, &stats);
		if (step == FROM)
			before = stats.wire_bytes;
		for (int t = TENSORS; t-- > 0 && !st;) {
			fill(g[t], dims[t][0] * dims[t][1], 1 + step * 100 + (uint64_t)(rank * 10 + t));
			st = gradcomp_reducer_ready(reducer, (uint32_t)t, g[t], &e);
		}
		if (!st)
			st = gradcomp_reducer_wait(reducer, &e);
		gradcomp_reducer_get_stats(reducer, &stats);
		r->sent[rank] = (stats.wire_bytes - before) / STEPS;
	}
	if (st) {
		printf("# %s\n", e.text);
		r->failed = st;
	}
	gradcomp_reducer_free(reducer);
	for (int t = 0; t < TENSORS; t++)
		free(g[t]);
}

/* A machine that knows this compressor alone. */
static double predicted(const pair *p, uint32_t nodes)
{
	compressor_curve curve = {.encode = {0, 1e-9}};
	machine_file machine = {.nodes = 2,
	                        .ranks_per_node = 2,
	                        .name = "m",
	                        .level = {{1e-6, 1e-9}, {1e-5, 1e-8}},
	                        .reduce = 1e-9,
	                        .memory = 1e-10,
	                        .beside_application = 1,
	                        .beside_exchange = 1,
	                        .curves = &curve,
	                        .ncurves = 1};
	model_tensor tensors[TENSORS];
	model_file model = {.ntensors = TENSORS, .name = "m", .tensors = tensors};
	const cost_question q = {.nodes = nodes,
	                         .ranks_per_node = P / nodes,
	                         .compressor = p->compressor,
	                         .collective = p->collective,
	                         .schedule = "fixed:bytes=100K"};
	cost_prediction out = {0};
	const plugin *found;
	gradcomp_error e;
	config *c;
	spec s;
	for (int t = 0; t < TENSORS; t++)
		tensors[t] = (model_tensor){.name = (char[]){"t"}, .dims = dims[t], .ndim = ndims[t]};
	if (config_load(NULL, &c, &e))
		return -1;
	if (!spec_resolve(c, GRADCOMP_KIND_COMPRESSOR, p->compressor, &found, &s, &e)) {
		curve.compressor = s.text;
		if (cost_predict(&model, &machine, &q, &out, &e))
			printf("# %s\n", e.text);
		spec_clear(&s);
	}
	config_free(c);
	return out.sent_bytes;
}

static void compare(const pair *p, uint32_t nodes, const char *const *settings)
{
	run r = {.pair = p};
	double sent = 0, says = predicted(p, nodes);
	run_ranks(P, settings, body, &r);
	for (int k = 0; k < P; k++)
		sent += r.sent[k] / P;
	if (!ok(!r.failed && fabs(says - sent) <= p->within * sent, "%s over %s: %.0f of %.0f bytes a step",
	        p->compressor, p->collective, says, sent))
		printf("# %+.2f %%\n", 100 * (says / sent - 1));
}

int main(void)
{
	static const int apart[P] = {0, 1, 2, 3}, two[P] = {0, 0, 1, 1};
	const char *const settings[] = {plugin_path_setting(), NULL};
	setenv("GRADCOMP_PLUGIN_PATH", strchr(plugin_path_setting(), '=') + 1, 1);
	ranks_on(apart);
	for (size_t i = 0; i < sizeof flat / sizeof flat[0]; i++)
		compare(&flat[i], P, settings);
	ranks_on(two);
	for (size_t i = 0; i < sizeof levels / sizeof levels[0]; i++)
		compare(&levels[i], 2, settings);
	return done_testing();
}
