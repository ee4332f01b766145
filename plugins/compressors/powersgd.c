/* powersgd: low-rank compression by one step of subspace iteration (Vogels,
 * Karimireddy, Jaggi: PowerSGD, NeurIPS 2019). With Q kept from the step before,
 * rank w does, for every matrix M_w,
 *
 *     encode 0   Q := orth(Q), P_w = M_w Q
 *     decode 0   P := orth(mean of P_w)
 *     encode 1   Q_w = M_w^T P
 *     decode 1   Q := mean of Q_w, average = P Q^T, error = M_w - P Q_w^T
 *
 * The error is against the rank's own Q_w: the sum over ranks is the same, and
 * no rank drifts by what the others sent.
 *
 * One iteration a step follows a gradient that turns slowly. With restart=T
 * (PowerSGD+, arXiv 2509.11254) every T-th step takes EXTRA iterations more, two
 * rounds each, and begins with Q and some noise, so that a direction Q has
 * nothing of can enter. What converges is the subspace of the mean of M_w.
 *
 * Payloads, F32: even rounds have P_w of the bucket's matrices, round 0 after
 * these the tensors sent uncompressed; odd rounds have Q_w. */
#include <math.h>

#include "gradcomp/sdk/passthrough.h"
#include "gradcomp/sdk/lowrank.h"
#include "gradcomp/sdk/scratch.h"

enum { WARM_START = SDK_LOWRANK_PARAMS, RESTART };
enum { EXTRA = 2 };
#define NOISE 0.1 /* part of the length of a column of Q */

static const gradcomp_param params[] = {
	[SDK_LOWRANK_RANK] = SDK_LOWRANK_RANK_ROW,
	[SDK_LOWRANK_MIN_RATIO] = SDK_LOWRANK_MIN_RATIO_ROW,
	[SDK_LOWRANK_START_STEP] = SDK_START_STEP_ROW,
	[WARM_START] = {.name = "warm_start",
                        .type = GRADCOMP_PARAM_BOOL,
                        .def = "yes",
                        .help = "begin each step with the factor of the step before, not with a random one"},
	[RESTART] = {.name = "restart",
                     .type = GRADCOMP_PARAM_INT,
                     .def = "0",
                     .min = 0,
                     .max = 1e9,
                     .help = "every so many steps iterate three times, to find a gradient that has turned; 0: never"},
};

typedef struct powersgd {
	sdk_lowrank l;
	uint64_t restart;
} powersgd;

static gradcomp_status powersgd_create(const gradcomp_host *host, const gradcomp_value *values,
                                       const gradcomp_layout *layout, void **instance, gradcomp_error *err)
{
	powersgd *p = host->alloc(sizeof *p);
	gradcomp_status st;
	if (!p)
		return host->fail(err, GRADCOMP_ERR_NOMEM, "powersgd: no memory");
	st = sdk_lowrank_open(&p->l, host, values, layout, "powersgd", values[WARM_START].i ? SDK_LOWRANK_KEEP_Q : 0,
	                      "", err);
	if (st) {
		host->release(p);
		return st;
	}
	p->restart = (uint64_t)values[RESTART].i;
	*instance = p;
	return GRADCOMP_OK;
}

static void powersgd_destroy(void *instance)
{
	powersgd *p = instance;
	if (!p)
		return;
	sdk_lowrank_close(&p->l);
	p->l.host->release(p);
}

static int restarts(const powersgd *p, uint64_t step)
{
	return p->restart && (step - p->l.start_step) % p->restart == 0;
}

static uint32_t rounds(const powersgd *p, uint64_t step)
{
	return restarts(p, step) ? 2 * (1 + EXTRA) : 2;
}

/* Scratch: P, Q, the noise of a restart, and the operators' scratch. */
typedef struct parts {
	float *P, *Q, *noise;
	void *operator_scratch;
} parts;

static parts divide(const powersgd *p, const gradcomp_bucket *bucket, uint64_t step, sdk_scratch *scratch)
{
	sdk_lowrank_extent size = sdk_lowrank_sizes(&p->l, bucket);
	parts s = {.P = sdk_scratch_take(scratch, size.P * sizeof(float))};
	s.Q = sdk_scratch_take(scratch, size.Q * sizeof(float));
	s.noise = sdk_scratch_take(scratch, restarts(p, step) ? size.Q * sizeof(float) : 0);
	s.operator_scratch = sdk_scratch_take(scratch, 0);
	return s;
}

static parts parts_of(const powersgd *p, const gradcomp_work *work)
{
	return divide(p, work->bucket, work->step, &(sdk_scratch){.memory = work->scratch});
}

static uint64_t floats(const powersgd *p, const gradcomp_bucket *bucket, uint32_t round)
{
	sdk_lowrank_extent size = sdk_lowrank_sizes(&p->l, bucket);
	return round % 2 ? size.Q : round ? size.P : size.P + size.uncompressed;
}

static gradcomp_status powersgd_plan(void *instance, const gradcomp_bucket *bucket, uint64_t step, gradcomp_plan *plan,
                                     gradcomp_error *err)
{
	const powersgd *p = instance;
	sdk_scratch scratch = {0};
	(void)err;
	if (sdk_lowrank_is_passthrough(&p->l, bucket, step)) {
		sdk_passthrough_plan(bucket, plan);
		return GRADCOMP_OK;
	}
	plan->nrounds = rounds(p, step);
	for (uint32_t r = 0; r < plan->nrounds; r++)
		plan->rounds[r] = sdk_passthrough_round(floats(p, bucket, r));
	divide(p, bucket, step, &scratch);
	plan->scratch_bytes = scratch.bytes + sdk_lowrank_scratch(&p->l, bucket);
	return GRADCOMP_OK;
}

static void first_q(const powersgd *p, const gradcomp_work *work, const parts *s)
{
	const sdk_lowrank *l = &p->l;
	const gradcomp_operators *op = work->operators;
	const gradcomp_bucket *b = work->bucket;
	const sdk_lowrank_tensor *t = &l->tensors[b->first];
	uint64_t from = t->at.Q;
	if (l->Q)
		op->copy(work->queue, s->Q, l->Q + from, sdk_lowrank_sizes(l, b).Q * sizeof *s->Q);
	else
		sdk_lowrank_random_q(l, work, s->Q, 2 + work->step);
	sdk_lowrank_orthonormalise_q(l, work, s->Q, s->operator_scratch);
	if (!restarts(p, work->step))
		return;
	sdk_lowrank_random_q(l, work, s->noise, 2 + work->step);
	for (const sdk_lowrank_tensor *end = t + b->ntensors; t < end; t++)
		if (t->r)
			op->axpy(work->queue, s->Q + (t->at.Q - from), (float)(NOISE / sqrt((double)t->m)),
			         s->noise + (t->at.Q - from), t->m * t->r);
}

static gradcomp_status powersgd_encode(void *instance, const gradcomp_work *work, uint32_t round, gradcomp_payload *out,
                                       gradcomp_error *err)
{
	const powersgd *p = instance;
	const sdk_lowrank *l = &p->l;
	parts s = parts_of(p, work);
	sdk_lowrank_extent size = sdk_lowrank_sizes(l, work->bucket);
	float *to = out->data;
	if (round % 2) {
		sdk_lowrank_product_mtp(l, work, s.Q, s.P, s.operator_scratch);
		work->operators->copy(work->queue, to, s.Q, size.Q * sizeof *to);
	} else {
		if (!round) {
			first_q(p, work, &s);
			sdk_lowrank_pack(l, work, to + size.P);
		}
		sdk_lowrank_product_mq(l, work, to, s.Q, s.operator_scratch);
	}
	out->bytes = floats(p, work->bucket, round) * sizeof *to;
	return sdk_lowrank_overflow(l, work, to, round % 2 ? size.Q : size.P, err);
}

static gradcomp_status powersgd_decode(void *instance, const gradcomp_work *work, uint32_t round,
                                       const gradcomp_payload *in, uint32_t n, gradcomp_error *err)
{
	powersgd *p = instance;
	sdk_lowrank *l = &p->l;
	const gradcomp_operators *op = work->operators;
	const gradcomp_bucket *b = work->bucket;
	(void)n;
	if (sdk_lowrank_is_passthrough(l, b, work->step)) {
		sdk_passthrough_decode(work);
		return GRADCOMP_OK;
	}
	gradcomp_status st = sdk_lowrank_expect(l, work, round, in, floats(p, b, round) * sizeof(float), err);
	parts s = parts_of(p, work);
	sdk_lowrank_extent size = sdk_lowrank_sizes(l, b);
	const float *mean = in->data;
	if (st)
		return st;
	if (round % 2 == 0) {
		op->copy(work->queue, s.P, mean, size.P * sizeof *s.P);
		sdk_lowrank_orthonormalise_p(l, work, s.P, s.operator_scratch);
		if (!round)
			sdk_lowrank_unpack(l, work, mean + size.P);
	} else if (round + 1 < rounds(p, work->step)) {
		op->copy(work->queue, s.Q, mean, size.Q * sizeof *s.Q);
		sdk_lowrank_orthonormalise_q(l, work, s.Q, s.operator_scratch);
	} else {
		sdk_lowrank_finish(l, work, s.P, s.Q, mean);
		if (l->Q)
			sdk_lowrank_keep(work, l->Q + l->tensors[b->first].at.Q, mean, size.Q);
	}
	return GRADCOMP_OK;
}

static gradcomp_status powersgd_cost(void *instance, const gradcomp_bucket *bucket, uint64_t step, gradcomp_cost *cost,
                                     gradcomp_error *err)
{
	const powersgd *p = instance;
	(void)err;
	if (sdk_lowrank_is_passthrough(&p->l, bucket, step)) {
		cost->rounds = 1;
		cost->wire_bytes = 4.0 * (double)bucket->numel;
		return GRADCOMP_OK;
	}
	cost->rounds = rounds(p, step);
	for (uint32_t r = 0; r < cost->rounds; r++)
		cost->wire_bytes += 4.0 * (double)floats(p, bucket, r);
	cost->passes = 3 + cost->rounds;
	cost->flops = sdk_lowrank_flops(&p->l, bucket, 2 + (int)cost->rounds);
	return GRADCOMP_OK;
}

GRADCOMP_EXPORT const struct gradcomp_compressor_v1 gradcomp_compressor_v1 = {
	.info =
		{
			.abi_version = GRADCOMP_ABI_VERSION,
			.struct_size = sizeof gradcomp_compressor_v1,
			.name = "powersgd",
			.version = "1.0",
			.summary = "low-rank factors by one warm-started power iteration a step",
			.licence = "MIT",
			.params = params,
			.nparams = sizeof params / sizeof params[0],
		},
	.traits = GRADCOMP_TRAIT_ERROR_FEEDBACK | GRADCOMP_TRAIT_SHAPED | GRADCOMP_TRAIT_CUDA | GRADCOMP_TRAIT_HOLDS |
                  GRADCOMP_TRAIT_ALIKE,
	.patterns = GRADCOMP_PATTERN_BIT(GRADCOMP_SUMMED),
	.create = powersgd_create,
	.destroy = powersgd_destroy,
	.plan = powersgd_plan,
	.encode = powersgd_encode,
	.decode = powersgd_decode,
	.save = sdk_lowrank_save,
	.load = sdk_lowrank_load,
	.cost = powersgd_cost,
	.choice = sdk_lowrank_choice,
};
