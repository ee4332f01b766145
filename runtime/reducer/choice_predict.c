/* The step time of a candidate, before anybody waits for it: the simulator, on the
 * reducer's own schedule, with passes and exchanges as they were measured with the base, the
 * candidate's work as it was timed, and bytes as its plan() tells.
 *
 * The measured line is that of the base's collective, an all-reduce. What another primitive
 * costs follows from how many messages and bytes its plugin says it takes, against those of
 * that all-reduce. */
#include "choice.h"

#include "gradcomp/collective.h"
#include "model/merge.h"
#include "model/simulate.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { USUAL = 1 << 22 }; /* bytes of an all-reduce whose load stands for the line */

/* Seconds of a message on the critical path, and of a byte there. */
typedef struct wire {
	double message, byte;
	int nranks, nnodes;
} wire;

static double sum(const double x[2])
{
	return x[0] + x[1];
}

/* What one call takes; as a ring would, where the plugin does not say. */
static void load_of(const candidate *k, const wire *w, uint32_t primitive, double bytes, double *messages,
                    double *moved)
{
	gradcomp_call_load l = {.struct_size = sizeof l};
	const plugin *p = k->plugins[1];
	double P = w->nranks, others = P - 1;
	gradcomp_status st = GRADCOMP_ERR_UNSUPPORTED;
	if (p->collective->predict)
		st = p->collective->predict(k->specs[1].values, w->nranks, w->nnodes, primitive, (uint64_t)bytes, &l,
		                            NULL);
	int gathers = primitive == GRADCOMP_CAN_ALLGATHER, merges = primitive == GRADCOMP_CAN_MERGE;
	*messages = gathers ? others : merges ? 2 * log2(P) : 2 * others;
	*moved = bytes * (gathers ? others : merges ? 2 * log2(P) : 2 * others / P);
	if (!st && isfinite(sum(l.messages) + sum(l.bytes)) && sum(l.messages) >= 0 && sum(l.bytes) >= 0) {
		*messages = sum(l.messages);
		*moved = w->nnodes > 1 ? l.bytes[1] : l.bytes[0];
	}
}

static wire wire_of(const choice *c)
{
	wire w = {.nranks = c->group->nranks, .nnodes = channel_links(c->parts->part[0].r->port.channel)->nnodes};
	double messages, moved;
	load_of(&c->wish.candidate[0], &w, GRADCOMP_CAN_ALLREDUCE, USUAL, &messages, &moved);
	w.message = messages > 0 && c->facts.line[0] > 0 ? c->facts.line[0] / messages : 0;
	w.byte = moved > 0 && c->facts.line[1] > 0 ? c->facts.line[1] * USUAL / moved : 0;
	return w;
}

/* Seconds of the exchanges of a bucket: of all its bytes, and of `exchanges` messages' ways. A
 * code's bytes are fewer than the floats' that the primitive is asked about, and coding is
 * part of it. */
static double exchange_s(const candidate *k, const wire *w, const candidate_load *l, uint64_t numel)
{
	double s = 0;
	for (int p = GRADCOMP_SUMMED; p <= GRADCOMP_CODED; p++) {
		double messages, moved, floats = (double)numel * sizeof(float);
		if (l->bytes[p] <= 0)
			continue;
		load_of(k, w, round_primitive((gradcomp_pattern)p, k->plugins[1]->collective->serves),
		        p == GRADCOMP_CODED ? floats : l->bytes[p], &messages, &moved);
		if (p == GRADCOMP_CODED)
			moved *= l->bytes[p] / floats;
		s += w->byte * moved + w->message * messages * l->exchanges;
	}
	return s;
}

static double work_s(gradcomp_line line, double numel)
{
	return numel > 0 ? gradcomp_line_at(&line, numel) : 0;
}

/* What each tensor costs with k against the base, without what a message costs: those that
 * are dearer are out, if that saves more than the exchange that they then need. */
static int choose(choice *c, uint32_t k, const wire *w, uint8_t *in)
{
	const candidate *of = &c->wish.candidate[k], *base = &c->wish.candidate[0];
	wire bytes_only = *w;
	double saved = 0, messages, moved;
	uint32_t out = 0;
	bytes_only.message = 0;
	memset(in, 1, c->ntensors);
	for (uint32_t i = 0; !of->dense && i < c->ntensors; i++) {
		uint64_t numel = c->shape->tensors[i].numel;
		double with = exchange_s(of, &bytes_only, &of->load[i], numel) +
		              (of->cost.encode.b + of->cost.decode.b) * (double)numel;
		double without = exchange_s(base, &bytes_only, &base->load[i], numel) +
		                 (base->cost.encode.b + base->cost.decode.b) * (double)numel;
		if (!numel || with <= without)
			continue;
		in[c->ntensors - 1 - i] = 0;
		saved += with - without;
		out++;
	}
	load_of(base, w, GRADCOMP_CAN_ALLREDUCE, USUAL, &messages, &moved);
	if (out && out < c->ntensors && saved > w->message * messages)
		return 1;
	memset(in, 1, c->ntensors);
	return 0;
}

/* A bucket's tasks: of those of its tensors that are in, or that are not. */
static void time_bucket(const choice *c, uint32_t k, const wire *w, const uint8_t *in, int inside, uint32_t first,
                        uint32_t end, sim_bucket *b)
{
	const candidate *of = &c->wish.candidate[k];
	candidate_load all = {.exchanges = 1};
	gradcomp_plan plan = {0};
	uint64_t numel = 0;
	for (uint32_t i = first; i < end; i++) {
		if (!!in[c->ntensors - 1 - i] != inside)
			continue;
		numel += c->shape->tensors[i].numel;
		all.exchanges = of->load[i].exchanges > all.exchanges ? of->load[i].exchanges : all.exchanges;
		for (int p = 0; p < 4; p++)
			all.bytes[p] += of->load[i].bytes[p];
	}
	plan.nrounds = all.exchanges < GRADCOMP_MAX_ROUNDS ? all.exchanges : GRADCOMP_MAX_ROUNDS;
	double rounds = plan.nrounds, exchange = exchange_s(of, w, &all, numel);
	double encode = work_s(of->cost.encode, (double)numel), decode = work_s(of->cost.decode, (double)numel);
	/* A code is at work inside the exchange. */
	if (all.bytes[GRADCOMP_CODED] > 0) {
		exchange += encode + decode;
		encode = decode = 0;
	}
	b->ntasks = (uint32_t)compose_tasks(&plan, 0, b->tasks);
	for (uint32_t i = 0; i < b->ntasks; i++)
		b->seconds[i] = b->tasks[i].kind == TASK_ENCODE     ? encode / rounds
		                : b->tasks[i].kind == TASK_DECODE   ? decode / rounds
		                : b->tasks[i].kind == TASK_EXCHANGE ? exchange / rounds
		                                                    : 0;
}

/* Of the tensors that are out only the last bucket is known: it ends with the pass. */
static double simulated(const choice *c, uint32_t k, const wire *w, const uint8_t *in, int split, double *forward)
{
	uint32_t n = c->ntensors;
	uint64_t *numel = calloc(n, sizeof *numel);
	uint8_t *cut = calloc(n, 1);
	step_plan plan = {0};
	sim_output out = {0};
	double step = -1;
	for (uint32_t i = 0; numel && i < n; i++)
		numel[i] = c->shape->tensors[i].numel;
	const merge_problem m = {.n = n, .backward = c->facts.backward, .numel = numel};
	if (!numel || !cut)
		goto done;
	merge_fixed(&m, c->shape->first_bucket_bytes / sizeof(float), c->shape->bucket_bytes / sizeof(float), cut);
	if (step_plan_from_cut(&plan, cut, n, NULL))
		goto done;
	sim_bucket *b = calloc(plan.nbuckets + 1, sizeof *b);
	forward[0] = *c->facts.forward;
	const sim_input input = {.n = n,
	                         .forward = forward,
	                         .backward = c->facts.backward,
	                         .plan = &plan,
	                         .window = REDUCER_SLOTS,
	                         .buckets = b,
	                         .beside_application = 1,
	                         .beside_exchange = 1,
	                         .steps = 2};
	for (uint32_t i = 0, first = 0; b && i < plan.nbuckets; first = plan.end[i++])
		time_bucket(c, k, w, in, 1, first, plan.end[i], &b[i]);
	if (b && !simulate(&input, 0, &out, NULL))
		step = out.step;
	if (split && step >= 0) {
		sim_bucket *last = &b[plan.nbuckets];
		time_bucket(c, 0, w, in, 0, 0, n, last);
		for (uint32_t i = 0; i < last->ntasks; i++)
			step += last->seconds[i];
	}
	free(b);
done:
	step_plan_clear(&plan);
	free(numel);
	free(cut);
	return step;
}

double choice_predict(choice *c, uint32_t k, uint8_t *in, int *split)
{
	double *forward = calloc(c->ntensors, sizeof *forward), step = -1;
	const wire w = wire_of(c);
	*split = 0;
	if (forward && c->wish.candidate[k].load && c->wish.candidate[0].load) {
		*split = choose(c, k, &w, in);
		step = simulated(c, k, &w, in, *split, forward);
	}
	free(forward);
	return step;
}
