/* dion: low-rank updates whose directions all weigh the same, out of a momentum that each rank keeps
 * (Ahn, Xu, Abreu, Fan, Magakyan, Sharma, Zhan, Langford: Dion: distributed orthonormalized updates,
 * arXiv 2504.05295, 2025). The optimizer must apply no momentum. With Q kept from the step before,
 * rank w does, for every n x m matrix,
 *
 *     encode 0   B_w = M_w + G_w, P_w = B_w Q
 *     decode 0   P := orth(mean of P_w)
 *     encode 1   R_w = B_w^T P
 *     decode 1   R = mean of R_w, M_w = B_w - (1 - momentum) P R_w^T
 *                Q := R with columns of length 1, average = sqrt(n / m) P Q^T
 *
 * What each rank takes out of its momentum is its own part: the sum over ranks is that of the paper,
 * which takes out P R^T. orthogonal=qr makes the columns of Q orthonormal (Orth-Dion, Nakamori et
 * al., arXiv 2605.16341, 2026); orthogonal=no gives P R^T, and Q := orth(R) in the next step.
 *
 * Vectors, matrices that would not shrink, and everything before start_step are averaged
 * uncompressed and get their momentum afterwards: M := momentum (M + mean G), average = M + mean G.
 *
 * Payloads, F32: P_w of the bucket's matrices and the tensors sent uncompressed; R_w. M is the state
 * array. */
#include <float.h>

#include "gradcomp/sdk/lowrank.h"
#include "gradcomp/sdk/passthrough.h"
#include "gradcomp/sdk/payload.h"
#include "gradcomp/sdk/scratch.h"

enum { MOMENTUM = SDK_LOWRANK_PARAMS, ORTHOGONAL };
enum { COLUMNS, QR, NO };

static const char *const factors[] = {[COLUMNS] = "columns", [QR] = "qr", [NO] = "no", NULL};
static const gradcomp_param params[] = {
	[SDK_LOWRANK_RANK] = SDK_LOWRANK_RANK_ROW,
	[SDK_LOWRANK_MIN_RATIO] = SDK_LOWRANK_MIN_RATIO_ROW,
	[SDK_LOWRANK_START_STEP] = SDK_START_STEP_ROW,
	[MOMENTUM] = {.name = "momentum",
                      .type = GRADCOMP_PARAM_FLOAT,
                      .def = "0.95",
                      .min = 0,
                      .max = 0.999999,
                      .help = "what remains of a direction's momentum after it was sent"},
	[ORTHOGONAL] = {.name = "orthogonal",
                        .type = GRADCOMP_PARAM_CHOICE,
                        .def = "columns",
                        .choices = factors,
                        .help = "the right factor: columns of length 1, orthonormal ones, or as it is"},
};

typedef struct dion {
	sdk_lowrank l;
	float momentum;
	int64_t orthogonal;
	float **M; /* one call's: where each tensor's momentum is */
} dion;

static gradcomp_status dion_create(const gradcomp_host *host, const gradcomp_value *values,
                                   const gradcomp_layout *layout, void **instance, gradcomp_error *err)
{
	dion *p = host->alloc(sizeof *p);
	gradcomp_status st;
	if (!p)
		return host->fail(err, GRADCOMP_ERR_NOMEM, "dion: no memory");
	st = sdk_lowrank_open(&p->l, host, values, layout, "dion", SDK_LOWRANK_KEEP_Q, "", err);
	if (st) {
		host->release(p);
		return st;
	}
	p->M = host->alloc((layout->ntensors + 1) * sizeof *p->M);
	if (!p->M) {
		sdk_lowrank_close(&p->l);
		host->release(p);
		return host->fail(err, GRADCOMP_ERR_NOMEM, "dion: no memory for %u tensors", layout->ntensors);
	}
	p->momentum = (float)values[MOMENTUM].f;
	p->orthogonal = values[ORTHOGONAL].i;
	*instance = p;
	return GRADCOMP_OK;
}

static void dion_destroy(void *instance)
{
	dion *p = instance;
	if (!p)
		return;
	sdk_lowrank_close(&p->l);
	p->l.host->release(p->M);
	p->l.host->release(p);
}

/* Scratch: P; M Q, later Q; R_w; what was sent uncompressed, times momentum; the operators' scratch. */
typedef struct parts {
	float *P, *Q, *own, *uncompressed;
	void *operator_scratch;
} parts;

static parts divide(const dion *p, const gradcomp_bucket *bucket, sdk_scratch *scratch)
{
	sdk_lowrank_extent size = sdk_lowrank_sizes(&p->l, bucket);
	parts s = {.P = sdk_scratch_take(scratch, size.P * sizeof(float))};
	/* For Q and for the product that is added to P. */
	s.Q = sdk_scratch_take(scratch, (size.Q > size.P ? size.Q : size.P) * sizeof(float));
	s.own = sdk_scratch_take(scratch, size.Q * sizeof(float));
	s.uncompressed = sdk_scratch_take(scratch, size.uncompressed * sizeof(float));
	s.operator_scratch = sdk_scratch_take(scratch, 0);
	return s;
}

static parts parts_of(const dion *p, const gradcomp_work *work)
{
	return divide(p, work->bucket, &(sdk_scratch){.memory = work->scratch});
}

/* Returns M of the bucket's tensor i. */
static float *momentum_of(const dion *p, const gradcomp_work *work, uint32_t i)
{
	return work->state[0] + (p->l.layout->tensors[work->bucket->first + i].offset - work->bucket->offset);
}

/* Describes the bucket with M in place of x, or as what lowrank_finish() leaves its rest in. */
static gradcomp_work beside(const dion *p, const gradcomp_work *work, int as_x)
{
	gradcomp_work other = *work;
	for (uint32_t i = 0; i < work->bucket->ntensors; i++)
		p->M[i] = momentum_of(p, work, i);
	if (as_x)
		other.x = p->M;
	other.error = p->M;
	return other;
}

static uint64_t floats(const dion *p, const gradcomp_bucket *bucket, uint32_t round)
{
	sdk_lowrank_extent size = sdk_lowrank_sizes(&p->l, bucket);
	return round ? size.Q : size.P + size.uncompressed;
}

static gradcomp_status dion_plan(void *instance, const gradcomp_bucket *bucket, uint64_t step, gradcomp_plan *plan,
                                 gradcomp_error *err)
{
	const dion *p = instance;
	sdk_scratch scratch = {0};
	(void)err;
	if (sdk_lowrank_is_passthrough(&p->l, bucket, step)) {
		sdk_passthrough_plan(bucket, plan);
		return GRADCOMP_OK;
	}
	plan->nrounds = 2;
	for (uint32_t r = 0; r < 2; r++)
		plan->rounds[r] = sdk_passthrough_round(floats(p, bucket, r));
	divide(p, bucket, &scratch);
	plan->scratch_bytes = scratch.bytes + sdk_lowrank_scratch(&p->l, bucket);
	return GRADCOMP_OK;
}

static gradcomp_status dion_encode(void *instance, const gradcomp_work *work, uint32_t round, gradcomp_payload *out,
                                   gradcomp_error *err)
{
	const dion *p = instance;
	const sdk_lowrank *l = &p->l;
	const gradcomp_operators *op = work->operators;
	sdk_lowrank_extent size = sdk_lowrank_sizes(l, work->bucket);
	parts s = parts_of(p, work);
	float *to = out->data;
	if (round) {
		sdk_lowrank_product_mtp(l, work, s.own, s.P, s.operator_scratch);
		op->copy(work->queue, to, s.own, size.Q * sizeof *to);
	} else {
		gradcomp_work momentum = beside(p, work, 1);
		op->copy(work->queue, s.own, l->Q + l->tensors[work->bucket->first].at.Q, size.Q * sizeof *s.own);
		if (p->orthogonal == NO)
			sdk_lowrank_orthonormalise_q(l, work, s.own, s.operator_scratch);
		sdk_lowrank_product_mq(l, work, to, s.own, s.operator_scratch);
		sdk_lowrank_product_mq(l, &momentum, s.Q, s.own, s.operator_scratch);
		op->add(work->queue, to, s.Q, size.P);
		sdk_lowrank_pack(l, work, to + size.P);
	}
	out->bytes = floats(p, work->bucket, round) * sizeof *to;
	return sdk_lowrank_overflow(l, work, to, round ? size.Q : size.P, err);
}

/* x := M + x. */
static void add_momentum(const dion *p, const gradcomp_work *work)
{
	if (work->flat) {
		work->operators->add(work->queue, work->flat, work->state[0], work->bucket->numel);
		return;
	}
	for (uint32_t i = 0; i < work->bucket->ntensors; i++) {
		const gradcomp_tensor *t = &p->l.layout->tensors[work->bucket->first + i];
		work->operators->add(work->queue, work->x[i], momentum_of(p, work, i), t->numel);
	}
}

/* M := momentum x, of tensors that were averaged uncompressed: x is packed. */
static void keep_momentum(const dion *p, const gradcomp_work *work, float *packed)
{
	uint64_t count = sdk_lowrank_sizes(&p->l, work->bucket).uncompressed;
	gradcomp_work momentum = beside(p, work, 1);
	work->operators->scale(work->queue, packed, p->momentum, count);
	sdk_lowrank_unpack(&p->l, &momentum, packed);
}

/* Does the same with all, after a step that compressed none. */
static void keep_all(const dion *p, const gradcomp_work *work)
{
	work->operators->copy(work->queue, work->state[0], work->flat, work->bucket->numel * sizeof(float));
	work->operators->scale(work->queue, work->state[0], p->momentum, work->bucket->numel);
}

static gradcomp_status decode_last(dion *p, const gradcomp_work *work, const float *mean, gradcomp_error *err)
{
	sdk_lowrank *l = &p->l;
	sdk_lowrank_extent size = sdk_lowrank_sizes(l, work->bucket);
	uint64_t count = size.Q;
	parts s = parts_of(p, work);
	sdk_lowrank_pack(l, work, s.uncompressed);
	gradcomp_status st = sdk_overflow(l->host, "dion", work, s.uncompressed, size.uncompressed, FLT_MAX, err);
	if (st)
		return st;
	gradcomp_work with_rest = beside(p, work, 0);
	work->operators->copy(work->queue, s.Q, mean, count * sizeof *s.Q);
	work->operators->scale(work->queue, s.own, 1 - p->momentum, count);
	if (p->orthogonal == QR)
		sdk_lowrank_orthonormalise_q(l, work, s.Q, s.operator_scratch);
	else if (p->orthogonal == COLUMNS)
		sdk_lowrank_normalise_q(l, work, s.Q, 0);
	sdk_lowrank_keep(work, l->Q + l->tensors[work->bucket->first].at.Q, s.Q, count);
	if (p->orthogonal != NO)
		sdk_lowrank_normalise_q(l, work, s.Q, 1);
	sdk_lowrank_finish(l, &with_rest, s.P, s.own, s.Q);
	keep_momentum(p, work, s.uncompressed);
	return GRADCOMP_OK;
}

static gradcomp_status dion_decode(void *instance, const gradcomp_work *work, uint32_t round,
                                   const gradcomp_payload *in, uint32_t n, gradcomp_error *err)
{
	dion *p = instance;
	sdk_lowrank *l = &p->l;
	(void)n;
	if (sdk_lowrank_is_passthrough(l, work->bucket, work->step)) {
		add_momentum(p, work);
		keep_all(p, work);
		return sdk_overflow(l->host, "dion", work, work->flat, work->bucket->numel, FLT_MAX, err);
	}
	gradcomp_status st =
		sdk_lowrank_expect(l, work, round, in, floats(p, work->bucket, round) * sizeof(float), err);
	if (st)
		return st;
	if (round)
		return decode_last(p, work, in->data, err);
	uint64_t count = sdk_lowrank_sizes(l, work->bucket).P;
	parts s = parts_of(p, work);
	work->operators->copy(work->queue, s.P, in->data, count * sizeof *s.P);
	sdk_lowrank_orthonormalise_p(l, work, s.P, s.operator_scratch);
	sdk_lowrank_unpack(l, work, (const float *)in->data + count);
	add_momentum(p, work);
	return GRADCOMP_OK;
}

static gradcomp_status dion_cost(void *instance, const gradcomp_bucket *bucket, uint64_t step, gradcomp_cost *cost,
                                 gradcomp_error *err)
{
	const dion *p = instance;
	int dense = sdk_lowrank_is_passthrough(&p->l, bucket, step);
	(void)err;
	cost->rounds = dense ? 1 : 2;
	cost->wire_bytes = 4.0 * (double)(dense ? bucket->numel : floats(p, bucket, 0) + floats(p, bucket, 1));
	cost->passes = dense ? 3 : 8;
	cost->flops = dense ? 0 : sdk_lowrank_flops(&p->l, bucket, 5);
	return GRADCOMP_OK;
}

GRADCOMP_EXPORT const struct gradcomp_compressor_v1 gradcomp_compressor_v1 = {
	.info =
		{
			.abi_version = GRADCOMP_ABI_VERSION,
			.struct_size = sizeof gradcomp_compressor_v1,
			.name = "dion",
			.version = "1.0",
			.summary = "orthonormalised low-rank updates out of each rank's momentum",
			.licence = "MIT",
			.params = params,
			.nparams = sizeof params / sizeof params[0],
		},
	.traits = GRADCOMP_TRAIT_OWN_MOMENTUM | GRADCOMP_TRAIT_SHAPED | GRADCOMP_TRAIT_CUDA | GRADCOMP_TRAIT_HOLDS |
                  GRADCOMP_TRAIT_ALIKE,
	.patterns = GRADCOMP_PATTERN_BIT(GRADCOMP_SUMMED),
	.state_arrays = 1,
	.create = dion_create,
	.destroy = dion_destroy,
	.plan = dion_plan,
	.encode = dion_encode,
	.decode = dion_decode,
	.save = sdk_lowrank_save,
	.load = sdk_lowrank_load,
	.cost = dion_cost,
	.choice = sdk_lowrank_choice,
	.neutral = "momentum=0,orthogonal=no",
};
