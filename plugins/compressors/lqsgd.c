/* lqsgd: low-rank factors that are sent in 8 or 4 bits (LQ-SGD; PowerSGD, Vogels
 * et al. 2019, with quantised factors). With ~ for what a payload decodes to, rank w
 * does, for every matrix M_w,
 *
 *     Q := orth(Q), P_w = M_w Q               sends P_w
 *     P := orth(mean of P~_w), Q_w = M_w^T P   sends Q_w
 *     Q := mean of Q~_w, average = P Q^T, error = M_w - P Q~_w^T
 *
 * What quantising P loses only turns the subspace, for all ranks alike. What
 * quantising Q_w loses is in the error, since each rank subtracts what it sent:
 *
 *     sum of errors = sum of M_w - P (sum of Q~_w)^T = sum of M_w - nranks * average
 *
 * Numbers share a step by blocks of `block`, of one tensor and factor: the largest
 * magnitude is the highest level. With levels=log, as in the paper (Li et al., arXiv
 * 2506.17974, 2025), levels stand closer where numbers are small (log_levels.h).
 *
 * Rounds: the tensors sent uncompressed, if there are any, SUMMED; P_w and Q_w, GATHERED,
 * the matrices in order: steps (F32) and codes of each, padded to 4 bytes. */
#include "gradcomp/sdk/codes.h"
#include "gradcomp/sdk/passthrough.h"
#include "gradcomp/sdk/payload.h"
#include "gradcomp/sdk/log_levels.h"
#include "gradcomp/sdk/lowrank.h"
#include "gradcomp/sdk/scratch.h"

enum { BITS = SDK_LOWRANK_PARAMS, BLOCK, LEVELS, ALPHA };

static const char *const widths[] = {"8", "4", NULL};
static const char *const spacings[] = {"linear", "log", NULL};

static const gradcomp_param params[] = {
	[SDK_LOWRANK_RANK] = SDK_LOWRANK_RANK_ROW,
	[SDK_LOWRANK_MIN_RATIO] = SDK_LOWRANK_MIN_RATIO_ROW,
	[SDK_LOWRANK_START_STEP] = SDK_START_STEP_ROW,
	[BITS] = {.name = "bits",
                  .type = GRADCOMP_PARAM_CHOICE,
                  .def = "8",
                  .choices = widths,
                  .help = "bits of a number of a factor"},
	[BLOCK] = {.name = "block",
                   .type = GRADCOMP_PARAM_INT,
                   .def = "256",
                   .min = 32,
                   .max = 65536,
                   .help = "numbers that share a scale, a multiple of 32"},
	[LEVELS] = {.name = "levels",
                    .type = GRADCOMP_PARAM_CHOICE,
                    .def = "linear",
                    .choices = spacings,
                    .help = "how levels are spaced; log: closer where numbers are small"},
	[ALPHA] = {.name = "alpha",
                   .type = GRADCOMP_PARAM_FLOAT,
                   .def = "10",
                   .min = 0.01,
                   .max = 1e6,
                   .help = "how much closer, with levels=log"},
};

/* Bytes of payload before a tensor. */
typedef struct extent {
	uint64_t P, Q;
} extent;

typedef struct lqsgd {
	sdk_lowrank l;
	gradcomp_quantiser q;
	gradcomp_levels *log; /* NULL: linear */
	extent *at;           /* ntensors + 1 */
} lqsgd;

static gradcomp_status lqsgd_check(const gradcomp_host *host, const gradcomp_value *values, gradcomp_error *err)
{
	if (values[BLOCK].i % 32)
		return host->fail(err, GRADCOMP_ERR_INVALID, "lqsgd: block=%lld is not a multiple of 32",
		                  (long long)values[BLOCK].i);
	return GRADCOMP_OK;
}

static void lqsgd_destroy(void *instance)
{
	lqsgd *p = instance;
	if (!p)
		return;
	sdk_lowrank_close(&p->l);
	p->l.host->release(p->log);
	p->l.host->release(p->at);
	p->l.host->release(p);
}

static gradcomp_status lqsgd_create(const gradcomp_host *host, const gradcomp_value *values,
                                    const gradcomp_layout *layout, void **instance, gradcomp_error *err)
{
	uint32_t bits = values[BITS].i ? 4 : 8;
	lqsgd *p = host->alloc(sizeof *p);
	gradcomp_status st;
	if (!p)
		return host->fail(err, GRADCOMP_ERR_NOMEM, "lqsgd: no memory");
	st = sdk_lowrank_open(&p->l, host, values, layout, "lqsgd", SDK_LOWRANK_KEEP_Q,
	                      bits == 8 ? ", 8 bits" : ", 4 bits", err);
	if (st) {
		host->release(p);
		return st;
	}
	p->q = (gradcomp_quantiser){.struct_size = sizeof p->q,
	                            .bits = bits,
	                            .levels = (1u << (bits - 1)) - 1,
	                            .block = (uint32_t)values[BLOCK].i,
	                            .norm = GRADCOMP_NORM_ABSMAX,
	                            .rounding = GRADCOMP_TO_NEAREST};
	p->at = host->alloc((layout->ntensors + 1) * sizeof *p->at);
	p->log = values[LEVELS].i ? host->alloc(sizeof *p->log) : NULL;
	if (p->log)
		sdk_log_levels_make(p->log, &p->q, values[ALPHA].f);
	if (!p->at || (values[LEVELS].i && !p->log)) {
		lqsgd_destroy(p);
		return host->fail(err, GRADCOMP_ERR_NOMEM, "lqsgd: no memory for %u tensors", layout->ntensors);
	}
	for (uint32_t i = 0; i < layout->ntensors; i++) {
		const sdk_lowrank_tensor *t = &p->l.tensors[i];
		const gradcomp_operators *op = host->operators;
		p->at[i + 1] = p->at[i];
		if (!t->r)
			continue;
		p->at[i + 1].P += (op->quantised_bytes(&p->q, t->n * t->r) + 3) / 4 * 4;
		p->at[i + 1].Q += (op->quantised_bytes(&p->q, t->m * t->r) + 3) / 4 * 4;
	}
	*instance = p;
	return GRADCOMP_OK;
}

/* A round sends one of these. */
enum { UNCOMPRESSED, SEND_P, SEND_Q };

static int sends(const lqsgd *p, const gradcomp_bucket *bucket, uint32_t round)
{
	return (int)round + (sdk_lowrank_sizes(&p->l, bucket).uncompressed ? UNCOMPRESSED : SEND_P);
}

/* Scratch: P, Q, what this rank sent of Q, whether a factor is not finite, and the operators' scratch. */
typedef struct parts {
	float *P, *Q, *own;
	int *wild;
	void *operator_scratch;
} parts;

static parts divide(const lqsgd *p, const gradcomp_bucket *bucket, sdk_scratch *scratch)
{
	sdk_lowrank_extent size = sdk_lowrank_sizes(&p->l, bucket);
	parts s = {.P = sdk_scratch_take(scratch, size.P * sizeof(float))};
	s.Q = sdk_scratch_take(scratch, size.Q * sizeof(float));
	s.own = sdk_scratch_take(scratch, size.Q * sizeof(float));
	s.wild = sdk_scratch_take(scratch, sizeof *s.wild);
	s.operator_scratch = sdk_scratch_take(scratch, 0);
	return s;
}

static parts parts_of(const lqsgd *p, const gradcomp_work *work)
{
	return divide(p, work->bucket, &(sdk_scratch){.memory = work->scratch});
}

/* Returns the payload bytes of a factor. */
static uint64_t packed(const lqsgd *p, const gradcomp_bucket *bucket, int factor)
{
	const extent *a = &p->at[bucket->first], *b = a + bucket->ntensors;
	return factor == SEND_P ? b->P - a->P : b->Q - a->Q;
}

static gradcomp_status lqsgd_plan(void *instance, const gradcomp_bucket *bucket, uint64_t step, gradcomp_plan *plan,
                                  gradcomp_error *err)
{
	const lqsgd *p = instance;
	sdk_scratch scratch = {0};
	(void)err;
	if (sdk_lowrank_is_passthrough(&p->l, bucket, step)) {
		sdk_passthrough_plan(bucket, plan);
		return GRADCOMP_OK;
	}
	for (int what; (what = sends(p, bucket, plan->nrounds)) <= SEND_Q; plan->nrounds++)
		plan->rounds[plan->nrounds] =
			what == UNCOMPRESSED ? sdk_passthrough_round(sdk_lowrank_sizes(&p->l, bucket).uncompressed)
					     : sdk_gathered_round(packed(p, bucket, what));
	divide(p, bucket, &scratch);
	plan->scratch_bytes = scratch.bytes + sdk_lowrank_scratch(&p->l, bucket);
	return GRADCOMP_OK;
}

/* Where a matrix's factor is among the bucket's floats and in its payloads. */
typedef struct piece {
	uint64_t at, count, packed;
} piece;

static piece piece_of(const lqsgd *p, const gradcomp_bucket *bucket, uint32_t i, int factor)
{
	const sdk_lowrank_tensor *first = &p->l.tensors[bucket->first], *t = first + i;
	const extent *at = &p->at[bucket->first];
	if (factor == SEND_P)
		return (piece){t->at.P - first->at.P, t->n * t->r, at[i].P - at->P};
	return (piece){t->at.Q - first->at.Q, t->m * t->r, at[i].Q - at->Q};
}

/* Only finite numbers can be quantised, and a device does it whatever they are. */
static void quantise(const lqsgd *p, const gradcomp_work *work, char *out, float *factors, uint64_t floats, int factor)
{
	const gradcomp_operators *op = work->operators;
	int *wild = parts_of(p, work).wild;
	op->nonfinite(work->queue, factors, floats, wild);
	op->fill_if(work->queue, factors, 0, floats, wild);
	/* Padding is sent too. */
	op->fill(work->queue, (float *)(void *)out, 0, packed(p, work->bucket, factor) / sizeof(float));
	for (uint32_t i = 0; i < work->bucket->ntensors; i++) {
		piece f = piece_of(p, work->bucket, i, factor);
		if (f.count && p->log)
			op->levels_pack(work->queue, out + f.packed, factors + f.at, f.count, p->log);
		else if (f.count)
			op->quantise(work->queue, out + f.packed, factors + f.at, f.count, &p->q);
	}
}

static gradcomp_status lqsgd_encode(void *instance, const gradcomp_work *work, uint32_t round, gradcomp_payload *out,
                                    gradcomp_error *err)
{
	const lqsgd *p = instance;
	const sdk_lowrank *l = &p->l;
	sdk_lowrank_extent size = sdk_lowrank_sizes(l, work->bucket);
	parts s = parts_of(p, work);
	int what = sends(p, work->bucket, round);
	gradcomp_status st;
	if (what == UNCOMPRESSED) {
		sdk_lowrank_pack(l, work, out->data);
		out->bytes = size.uncompressed * sizeof(float);
		return GRADCOMP_OK;
	}
	if (what == SEND_P) {
		work->operators->copy(work->queue, s.Q, l->Q + l->tensors[work->bucket->first].at.Q,
		                      size.Q * sizeof *s.Q);
		sdk_lowrank_orthonormalise_q(l, work, s.Q, s.operator_scratch);
		sdk_lowrank_product_mq(l, work, s.P, s.Q, s.operator_scratch);
		st = sdk_lowrank_overflow(l, work, s.P, size.P, err);
		quantise(p, work, out->data, s.P, size.P, what);
	} else {
		sdk_lowrank_product_mtp(l, work, s.own, s.P, s.operator_scratch);
		st = sdk_lowrank_overflow(l, work, s.own, size.Q, err);
		quantise(p, work, out->data, s.own, size.Q, what);
	}
	out->bytes = packed(p, work->bucket, what);
	return st;
}

/* The factors of a bucket's matrices in payloads, and where they are put. */
typedef struct walk {
	const lqsgd *p;
	const gradcomp_bucket *bucket;
	int factor;
	float *to;
} walk;

static void part_of(void *ctx, uint32_t i, gradcomp_coded *to)
{
	const walk *w = ctx;
	const piece f = piece_of(w->p, w->bucket, i, w->factor);
	const uint64_t blocks = (f.count + w->p->q.block - 1) / w->p->q.block;
	*to = (gradcomp_coded){
		.y = w->to + f.at, .n = f.count, .values = f.packed, .codes = f.packed + blocks * sizeof(float)};
}

/* mean = that of what all ranks sent, in their order; own (may be NULL) = what this one did. */
static gradcomp_status average(const lqsgd *p, const gradcomp_work *work, const gradcomp_payload *in, uint32_t n,
                               int factor, float *mean, float *own, gradcomp_error *err)
{
	const gradcomp_coding coding = {.struct_size = sizeof coding,
	                                .kind = p->log ? GRADCOMP_CODING_LEVELS : GRADCOMP_CODING_QUANTISED,
	                                .quantiser = &p->q,
	                                .levels = p->log};
	walk w = {p, work->bucket, factor, mean};
	const sdk_codes codes = {.host = p->l.host,
	                         .name = "lqsgd",
	                         .work = work,
	                         .coding = &coding,
	                         .fault = "a factor that is no quantised matrix",
	                         .parts = work->bucket->ntensors,
	                         .part = part_of,
	                         .ctx = &w};
	gradcomp_status st =
		sdk_gathered_expect(p->l.host, p->l.layout, "lqsgd", work, in, n, packed(p, work->bucket, factor), err);
	if (!st)
		st = sdk_codes_check(&codes, in, n, err);
	if (st)
		return st;
	sdk_codes_sum(&codes, in, n, 1.0f / (float)n);
	w.to = own;
	if (own)
		sdk_codes_sum(&codes, &in[p->l.layout->rank], 1, 1);
	return GRADCOMP_OK;
}

static gradcomp_status decode_last(lqsgd *p, const gradcomp_work *work, const gradcomp_payload *in, uint32_t n,
                                   gradcomp_error *err)
{
	sdk_lowrank *l = &p->l;
	const gradcomp_bucket *b = work->bucket;
	parts s = parts_of(p, work);
	gradcomp_status st = average(p, work, in, n, SEND_Q, s.Q, s.own, err);
	if (st)
		return st;
	sdk_lowrank_finish(l, work, s.P, s.own, s.Q);
	sdk_lowrank_keep(work, l->Q + l->tensors[b->first].at.Q, s.Q, sdk_lowrank_sizes(l, b).Q);
	return GRADCOMP_OK;
}

static gradcomp_status lqsgd_decode(void *instance, const gradcomp_work *work, uint32_t round,
                                    const gradcomp_payload *in, uint32_t n, gradcomp_error *err)
{
	lqsgd *p = instance;
	sdk_lowrank *l = &p->l;
	sdk_lowrank_extent size = sdk_lowrank_sizes(l, work->bucket);
	if (sdk_lowrank_is_passthrough(l, work->bucket, work->step)) {
		sdk_passthrough_decode(work);
		return GRADCOMP_OK;
	}
	int what = sends(p, work->bucket, round);
	if (what == UNCOMPRESSED) {
		gradcomp_status st = sdk_lowrank_expect(l, work, round, in, size.uncompressed * sizeof(float), err);
		if (!st)
			sdk_lowrank_unpack(l, work, in->data);
		return st;
	}
	if (what == SEND_Q)
		return decode_last(p, work, in, n, err);
	parts s = parts_of(p, work);
	gradcomp_status st = average(p, work, in, n, SEND_P, s.P, NULL, err);
	if (!st)
		sdk_lowrank_orthonormalise_p(l, work, s.P, s.operator_scratch);
	return st;
}

static gradcomp_status lqsgd_cost(void *instance, const gradcomp_bucket *bucket, uint64_t step, gradcomp_cost *cost,
                                  gradcomp_error *err)
{
	const lqsgd *p = instance;
	sdk_lowrank_extent size = sdk_lowrank_sizes(&p->l, bucket);
	(void)err;
	if (sdk_lowrank_is_passthrough(&p->l, bucket, step)) {
		cost->rounds = 1;
		cost->wire_bytes = 4.0 * (double)bucket->numel;
		return GRADCOMP_OK;
	}
	cost->rounds = size.uncompressed ? 3 : 2;
	cost->wire_bytes =
		4.0 * (double)size.uncompressed + (double)packed(p, bucket, SEND_P) + (double)packed(p, bucket, SEND_Q);
	cost->passes = 5;
	cost->flops = sdk_lowrank_flops(&p->l, bucket, 4);
	return GRADCOMP_OK;
}

GRADCOMP_EXPORT const struct gradcomp_compressor_v1 gradcomp_compressor_v1 = {
	.info =
		{
			.abi_version = GRADCOMP_ABI_VERSION,
			.struct_size = sizeof gradcomp_compressor_v1,
			.name = "lqsgd",
			.version = "1.0",
			.summary = "low-rank factors sent in 8 or 4 bits",
			.licence = "MIT",
			.params = params,
			.nparams = sizeof params / sizeof params[0],
		},
	.traits = GRADCOMP_TRAIT_ERROR_FEEDBACK | GRADCOMP_TRAIT_SHAPED | GRADCOMP_TRAIT_CUDA | GRADCOMP_TRAIT_HOLDS |
                  GRADCOMP_TRAIT_ALIKE,
	.patterns = GRADCOMP_PATTERN_BIT(GRADCOMP_SUMMED) | GRADCOMP_PATTERN_BIT(GRADCOMP_GATHERED),
	.check = lqsgd_check,
	.create = lqsgd_create,
	.destroy = lqsgd_destroy,
	.plan = lqsgd_plan,
	.encode = lqsgd_encode,
	.decode = lqsgd_decode,
	.save = sdk_lowrank_save,
	.load = sdk_lowrank_load,
	.cost = lqsgd_cost,
	.choice = sdk_lowrank_choice,
};
