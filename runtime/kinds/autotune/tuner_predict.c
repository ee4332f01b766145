/* The step time of a candidate, before anybody waits for it: the simulator, on the
 * reducer's own schedule, with passes and exchanges as they were measured with the base, the
 * candidate's work as it was timed, and bytes as its plan() tells. */
#include "kinds/autotune/exchange_cost.h"

#include "schedule/plan_file.h"
#include "schedule/plan_search.h"

#include <stdlib.h>
#include <string.h>

static double work_s(linear line, double numel)
{
	return numel > 0 ? linear_at(&line, numel) : 0;
}

/* Adds up what candidate k sends of those tensors [first, end) of the layout that it has. */
static candidate_load load_of(const tuner *c, uint32_t k, const uint8_t *of_tensor, uint32_t first, uint32_t end,
                              uint64_t *numel)
{
	const candidate *of = &c->config.candidate[k];
	candidate_load all = {.exchanges = 1};
	*numel = 0;
	for (uint32_t i = first; i < end; i++) {
		if (of_tensor[c->ntensors - 1 - i] != k)
			continue;
		*numel += c->layout.tensors[i].numel;
		all.exchanges = of->load[i].exchanges > all.exchanges ? of->load[i].exchanges : all.exchanges;
		for (int p = 0; p < 4; p++)
			all.bytes[p] += of->load[i].bytes[p];
	}
	return all;
}

/* A bucket's tasks: of those of its tensors that candidate k has. Returns its payload's bytes. */
static double time_bucket(const tuner *c, uint32_t k, const exchange_cost *w, const uint8_t *of_tensor, uint32_t first,
                          uint32_t end, sim_bucket *b)
{
	const candidate *of = &c->config.candidate[k];
	gradcomp_plan plan = {0};
	uint64_t numel;
	candidate_load all = load_of(c, k, of_tensor, first, end, &numel);
	plan.nrounds = all.exchanges < GRADCOMP_MAX_ROUNDS ? all.exchanges : GRADCOMP_MAX_ROUNDS;
	double rounds = plan.nrounds, exchange = exchange_cost_seconds(of, w, &all, numel);
	double encode = work_s(of->cost.encode, (double)numel), decode = work_s(of->cost.decode, (double)numel);
	/* A code is at work inside the exchange. */
	if (all.bytes[GRADCOMP_CODED] > 0) {
		exchange += encode + decode;
		encode = decode = 0;
	}
	b->ntasks = (uint32_t)task_list_make(&plan, 0, b->tasks);
	for (uint32_t i = 0; i < b->ntasks; i++)
		b->seconds[i] = b->tasks[i].kind == TASK_ENCODE     ? encode / rounds
		                : b->tasks[i].kind == TASK_DECODE   ? decode / rounds
		                : b->tasks[i].kind == TASK_EXCHANGE ? exchange / rounds
		                                                    : 0;
	return all.bytes[GRADCOMP_SUMMED] + all.bytes[GRADCOMP_GATHERED] + all.bytes[GRADCOMP_MERGED] +
	       all.bytes[GRADCOMP_CODED];
}

/* The candidate that has most of the numbers. */
static uint32_t largest(const tuner *c, const uint8_t *of)
{
	double numbers[TUNER_CANDIDATES] = {0};
	uint32_t most = of[0];
	for (uint32_t i = 0; i < c->ntensors; i++)
		numbers[of[c->ntensors - 1 - i]] += (double)c->layout.tensors[i].numel;
	for (uint32_t k = 0; k < c->config.n; k++)
		most = numbers[k] > numbers[most] ? k : most;
	return most;
}

/* Seconds of what the others have, all of it in one bucket that comes last: those parts end
 * with the pass, and how much of them is hidden is not known. */
static double others(const tuner *c, uint32_t k, const exchange_cost *w, const uint8_t *of)
{
	double s = 0;
	for (uint32_t other = 0; other < c->config.n; other++) {
		sim_bucket last;
		if (other == k || !memchr(of, (int)other, c->ntensors))
			continue;
		time_bucket(c, other, w, of, 0, c->ntensors, &last);
		for (uint32_t i = 0; i < last.ntasks; i++)
			s += last.seconds[i];
	}
	return s;
}

typedef struct question {
	const tuner *c;
	uint32_t k;
	const exchange_cost *w;
	const uint8_t *of;
} question;

static gradcomp_status bucket_costs(void *ctx, uint32_t index, uint32_t first, uint32_t end, sim_bucket *out,
                                    double *payload, gradcomp_error *err)
{
	const question *q = ctx;
	(void)index;
	(void)err;
	*payload = time_bucket(q->c, q->k, q->w, q->of, first, end, out);
	return GRADCOMP_OK;
}

/* Predicts a step under the job's schedule. What the job plans from measurements, it will have planned when this
 * candidate has run for a while. */
static double simulated(const tuner *c, uint32_t k, const exchange_cost *w, const uint8_t *of, double *forward,
                        double *message)
{
	uint32_t n = c->ntensors;
	uint64_t *numel = calloc(n, sizeof *numel), hash = 0;
	question q = {.c = c, .k = k, .w = w, .of = of};
	step_plan plan = {0};
	sim_output out = {0};
	double step = -1;
	if (!numel)
		return step;
	for (uint32_t i = 0; i < n; i++) {
		numel[i] = c->layout.tensors[i].numel;
		hash = plan_hash(hash, c->layout.tensors[i].ndim, c->layout.tensors[i].dims);
	}
	forward[0] = *c->choice.metrics.forward;
	const plan_search search = {.sim = {.n = n,
	                                    .forward = forward,
	                                    .backward = c->choice.metrics.backward,
	                                    .window = REDUCER_WORKSPACES,
	                                    .beside_application = 1,
	                                    .beside_exchange = 1,
	                                    .steps = 2},
	                            .numel = numel,
	                            .max_numel = c->config.candidate[k].plugins[0]->compressor->max_bucket,
	                            .first_bytes = c->wants.asked.first_bucket_bytes,
	                            .bytes = c->wants.asked.bucket_bytes,
	                            .bucket = bucket_costs,
	                            .ctx = &q};
	if (!plan_search_plan(&search, &c->wants.asked.spec, hash, &plan, NULL) &&
	    !plan_search_predict(&search, &plan, 0, &out, NULL)) {
		uint64_t sent;
		candidate_load all = load_of(c, k, of, 0, n, &sent);
		step = out.step + others(c, k, w, of);
		if (message)
			*message = exchange_cost_size(c, &c->config.candidate[k], w, &all, sent,
			                              (double)plan.nbuckets * all.exchanges);
	}
	step_plan_clear(&plan);
	free(numel);
	return step;
}

double tuner_predict(tuner *c, uint32_t k, uint8_t *of, double *message)
{
	double *forward = calloc(c->ntensors, sizeof *forward), step = -1;
	const candidate *all = c->config.candidate;
	const exchange_cost w = exchange_cost_of(c, k);
	if (forward && all[0].load && (all[k].load || all[k].mixed) && tensor_assign(c, k, &w, of))
		step = simulated(c, all[k].mixed ? largest(c, of) : k, &w, of, forward, message);
	free(forward);
	return step;
}
