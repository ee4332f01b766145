/* `gradcomp plan` and a job search for plans alike: of random models, what a machine file leads
 * to is what the same costs, measured by a reducer, lead to. And what comes of it is sound. */
#include "cost/plan_choice.h"
#include "reducer/bucketing/plan_solve.h"
#include "tests/support/thread_ranks.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { TENSORS = 40, MODELS = 60 };

static gradcomp_error e;
static uint64_t state = 88172645463325252u;

static double uniform(void)
{
	state ^= state << 13;
	state ^= state >> 7;
	state ^= state << 17;
	return (double)(state >> 11) / 9007199254740992.0;
}

static linear message = {2e-4, 3e-9}, encode = {1e-5, 5e-10}, decode = {2e-5, 3e-10};
static collective_cost call = {.collective = (char[]){"ring"}, .primitive = GRADCOMP_CAN_ALLREDUCE};
static compressor_curve curve = {.compressor = (char[]){"cast:type=fp16,sum=wire"}};
static machine_file machine = {.nodes = 4,
                               .ranks_per_node = 1,
                               .name = "m",
                               .level = {{1e-4, 1e-9}, {1e-3, 1e-8}},
                               .reduce = 1e-9,
                               .memory = 1e-10,
                               .beside_application = 1,
                               .beside_exchange = 1,
                               .calls = &call,
                               .ncalls = 1,
                               .curves = &curve,
                               .ncurves = 1};
static uint64_t dims[TENSORS];
static model_tensor tensors[TENSORS];
static model_file model = {.ntensors = TENSORS, .name = "random", .tensors = tensors};

/* In `largest` numbers at most; the first gradient comes at once, since a reducer counts
 * from it. */
static void make_model(double largest)
{
	for (int i = 0; i < TENSORS; i++) {
		/* Sums of such times are exact: rounding decides nothing. */
		double backward = i + 1 < TENSORS ? floor(4096 * uniform() * uniform()) / (1 << 20) : 0;

		dims[i] = 1 + (uint64_t)(largest * uniform() * uniform() * uniform());
		tensors[i] = (model_tensor){.name = (char[]){"t"},
		                            .dims = &dims[i],
		                            .ndim = 1,
		                            .forward = backward / 2,
		                            .backward = backward};
	}
}

/* Makes what a reducer of this model would have measured. */
static void make_fit(fit *f, int codes, int each_layer, double *arrival, double *backward)
{
	*f = (fit){.ntensors = TENSORS,
	           .steps = 10,
	           .arrival = arrival,
	           .backward = backward,
	           .exchange = message,
	           .rounds = 1,
	           .each_layer = each_layer};
	for (int i = 0; i < TENSORS; i++) {
		backward[i] = tensors[TENSORS - 1 - i].backward;
		arrival[i] = (i ? arrival[i - 1] : 0) + backward[i];
		f->forward += tensors[i].forward;
	}
	if (codes) {
		f->compute[COMPUTE_ENCODE] = encode;
		f->compute[COMPUTE_DECODE] = decode;
	} else {
		f->compute[COMPUTE_BEGIN] = (linear){0, sizeof(float) * machine.memory};
	}
}

static int same(const step_plan *a, const step_plan *b)
{
	int equal = a->nbuckets == b->nbuckets && a->lag == b->lag && !a->position == !b->position;
	for (uint32_t i = 0; equal && i < a->nbuckets; i++)
		equal = a->end[i] == b->end[i] && (!a->position || a->position[i] == b->position[i]);
	return equal;
}

/* Each answers for the model; 1: alike. */
static int alike(const char *compressor, schedule_method method, const char *schedule, int each_layer, int *ordered)
{
	double arrival[TENSORS], backward[TENSORS];
	plan_choice planned = {.plan = {0}};
	plan_found solved = {.exposed = 0};
	step_plan simple = {0};
	cost_model c;
	fit f;
	int equal = 0;
	gradcomp_status st = cost_open(&c, &model, &machine, 4, 1, compressor, "ring", &e);
	if (st) {
		printf("# %s\n", e.text);
		return 0;
	}
	reducer r = {.eng = {.layout = c.layout,
	                     .compressor = c.plugins[0]->compressor,
	                     .instance = c.instance,
	                     .step = 1000},
	             .first_bucket_bytes = 1 << 20,
	             .bucket_bytes = 25 << 20};

	make_fit(&f, compressor != NULL, each_layer, arrival, backward);
	st = plan_choose(&c, &(cost_question){.schedule = schedule, .each_layer = each_layer}, &planned, &e);
	if (!st && schedule_measures(method))
		st = plan_solve(&r, &f, method, &solved, NULL, &e);
	else if (!st)
		st = plan_solve_simple(&r, method, &simple, &e);
	if (st)
		printf("# %s\n", e.text);
	else
		equal = same(&planned.plan, simple.end ? &simple : &solved.plan) &&
		        !step_plan_check(&planned.plan, TENSORS, &e);
	if (!equal && !st)
		printf("# %u messages, lag %u, %s, %.9g s; %u, %u, %.9g s, %s\n", planned.plan.nbuckets,
		       planned.plan.lag, planned.plan.position ? "ordered" : "backward", planned.plan.predicted,
		       solved.plan.nbuckets, solved.plan.lag, solved.plan.predicted, solved.name);
	*ordered += planned.plan.position != NULL;
	step_plan_clear(&simple);
	step_plan_clear(&solved.plan);
	plan_choice_clear(&planned);
	cost_clear(&c);
	return equal;
}

static void all(const char *compressor, schedule_method method, const char *schedule, int each_layer)
{
	int equal = 0, ordered = 0;
	for (int i = 0; i < MODELS; i++) {
		/* Every third is larger than the largest bucket. */
		make_model(i % 3 ? 2e6 : 2e7);
		message = (linear){1e-5 + 1e-3 * uniform(), 1e-10 + 4e-9 * uniform()};
		call.cost = message;
		curve.encode = encode;
		curve.decode = decode;
		equal += alike(compressor, method, schedule, each_layer, &ordered);
	}
	is_int(equal, MODELS, "%s with %s%s: as a job of the same costs (%d in an order of their own)", schedule,
	       compressor ? compressor : "no compressor", each_layer ? ", layers are waited for" : "", ordered);
}

int main(void)
{
	static const struct {
		schedule_method method;
		const char *name;
	} methods[] = {{SCHEDULE_WFBP, "wfbp"},
	               {SCHEDULE_SINGLE, "single"},
	               {SCHEDULE_FIXED, "fixed"},
	               {SCHEDULE_MGWFBP, "mgwfbp"},
	               {SCHEDULE_OMGS, "omgs"},
	               {SCHEDULE_AUTO, "auto"},
	               {SCHEDULE_MGWFBP_GREEDY, "mgwfbp:greedy"},
	               {SCHEDULE_OMGS_GREEDY, "omgs:greedy"}};

	setenv("GRADCOMP_PLUGIN_PATH", strchr(plugin_path_setting(), '=') + 1, 1);
	for (size_t i = 0; i < sizeof methods / sizeof methods[0]; i++)
		for (int variant = 0; variant < 4; variant++)
			all(variant & 1 ? "cast:type=fp16,sum=wire" : NULL, methods[i].method, methods[i].name,
			    variant >> 1);
	return done_testing();
}
