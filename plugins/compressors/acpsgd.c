/* acpsgd: low rank with one reduction a step, half the bytes of powersgd and no
 * communication between its products (Zhang et al.: Evaluation and Optimization of
 * Gradient Compression for Distributed Deep Learning, ICDCS 2023). The factors
 * alternate. Of the steps that compress, rank w does for every matrix M_w
 *
 *     even   Q := orth(Q), P_w = M_w Q,   P := mean of P_w, average = P Q^T, error = M_w - P_w Q^T
 *     odd    P := orth(P), Q_w = M_w^T P, Q := mean of Q_w, average = P Q^T, error = M_w - P Q_w^T
 *
 * The errors are of what the rank sent itself, known before the reduction; since
 * the mean is linear in the factors they add up to what the average lacks.
 *
 * Payload, F32: P_w or Q_w of the bucket's matrices, then the tensors sent uncompressed. */
#include "gradcomp/sdk/passthrough.h"
#include "gradcomp/sdk/lowrank.h"
#include "gradcomp/sdk/scratch.h"

static const gradcomp_param params[] = {
	[SDK_LOWRANK_RANK] = SDK_LOWRANK_RANK_ROW,
	[SDK_LOWRANK_MIN_RATIO] = SDK_LOWRANK_MIN_RATIO_ROW,
	[SDK_LOWRANK_START_STEP] = SDK_START_STEP_ROW,
};

static gradcomp_status acpsgd_create(const gradcomp_host *host, const gradcomp_value *values,
                                     const gradcomp_layout *layout, void **instance, gradcomp_error *err)
{
	sdk_lowrank *l = host->alloc(sizeof *l);
	gradcomp_status st;
	if (!l)
		return host->fail(err, GRADCOMP_ERR_NOMEM, "acpsgd: no memory");
	st = sdk_lowrank_open(l, host, values, layout, "acpsgd", SDK_LOWRANK_KEEP_P | SDK_LOWRANK_KEEP_Q, "", err);
	if (st)
		host->release(l);
	else
		*instance = l;
	return st;
}

static void acpsgd_destroy(void *instance)
{
	sdk_lowrank *l = instance;
	if (!l)
		return;
	sdk_lowrank_close(l);
	l->host->release(l);
}

/* Returns 1 when this step sends Q. */
static int sends_q(const sdk_lowrank *l, uint64_t step)
{
	return (step - l->start_step) % 2 == 1;
}

/* Floats of the factor that is held, and of the one that is sent. */
typedef struct sizes {
	uint64_t held, sent, uncompressed;
} sizes;

static sizes measure(const sdk_lowrank *l, const gradcomp_bucket *bucket, uint64_t step)
{
	sdk_lowrank_extent size = sdk_lowrank_sizes(l, bucket);
	return sends_q(l, step) ? (sizes){size.P, size.Q, size.uncompressed}
	                        : (sizes){size.Q, size.P, size.uncompressed};
}

/* Scratch: the factor that is held, orthonormal; this rank's other one; scratch of the
 * products. */
typedef struct parts {
	float *held, *own;
	void *operator_scratch;
} parts;

static parts divide(const sizes *n, sdk_scratch *scratch)
{
	parts s = {.held = sdk_scratch_take(scratch, n->held * sizeof(float))};
	s.own = sdk_scratch_take(scratch, n->sent * sizeof(float));
	s.operator_scratch = sdk_scratch_take(scratch, 0);
	return s;
}

static parts parts_of(const sizes *n, const gradcomp_work *work)
{
	return divide(n, &(sdk_scratch){.memory = work->scratch});
}

static gradcomp_status acpsgd_plan(void *instance, const gradcomp_bucket *bucket, uint64_t step, gradcomp_plan *plan,
                                   gradcomp_error *err)
{
	const sdk_lowrank *l = instance;
	sdk_scratch scratch = {0};
	(void)err;
	if (sdk_lowrank_is_passthrough(l, bucket, step)) {
		sdk_passthrough_plan(bucket, plan);
		return GRADCOMP_OK;
	}
	sizes n = measure(l, bucket, step);
	plan->nrounds = 1;
	plan->rounds[0] = sdk_passthrough_round(n.sent + n.uncompressed);
	divide(&n, &scratch);
	plan->scratch_bytes = scratch.bytes + sdk_lowrank_scratch(l, bucket);
	return GRADCOMP_OK;
}

static gradcomp_status acpsgd_encode(void *instance, const gradcomp_work *work, uint32_t round, gradcomp_payload *out,
                                     gradcomp_error *err)
{
	const sdk_lowrank *l = instance;
	const gradcomp_operators *op = work->operators;
	const sdk_lowrank_extent *at = &l->tensors[work->bucket->first].at;
	sizes n = measure(l, work->bucket, work->step);
	parts s = parts_of(&n, work);
	float *to = out->data;
	(void)round;
	if (sends_q(l, work->step)) {
		op->copy(work->queue, s.held, l->P + at->P, n.held * sizeof *to);
		sdk_lowrank_orthonormalise_p(l, work, s.held, s.operator_scratch);
		sdk_lowrank_product_mtp(l, work, s.own, s.held, s.operator_scratch);
	} else {
		op->copy(work->queue, s.held, l->Q + at->Q, n.held * sizeof *to);
		sdk_lowrank_orthonormalise_q(l, work, s.held, s.operator_scratch);
		sdk_lowrank_product_mq(l, work, s.own, s.held, s.operator_scratch);
	}
	op->copy(work->queue, to, s.own, n.sent * sizeof *to);
	sdk_lowrank_pack(l, work, to + n.sent);
	out->bytes = (n.sent + n.uncompressed) * sizeof *to;
	return sdk_lowrank_overflow(l, work, s.own, n.sent, err);
}

static gradcomp_status acpsgd_decode(void *instance, const gradcomp_work *work, uint32_t round,
                                     const gradcomp_payload *in, uint32_t count, gradcomp_error *err)
{
	sdk_lowrank *l = instance;
	const gradcomp_bucket *b = work->bucket;
	const sdk_lowrank_extent *at = &l->tensors[b->first].at;
	(void)count;
	if (sdk_lowrank_is_passthrough(l, b, work->step)) {
		sdk_passthrough_decode(work);
		return GRADCOMP_OK;
	}
	sizes n = measure(l, b, work->step);
	parts s = parts_of(&n, work);
	const float *mean = in->data;
	gradcomp_status st = sdk_lowrank_expect(l, work, round, in, (n.sent + n.uncompressed) * sizeof *mean, err);
	if (st)
		return st;
	sdk_lowrank_unpack(l, work, mean + n.sent);
	if (sends_q(l, work->step)) {
		sdk_lowrank_finish(l, work, s.held, s.own, mean);
		sdk_lowrank_keep(work, l->Q + at->Q, mean, n.sent);
	} else {
		/* The operator's local factor is on the other side: once for the error
		 * and once for the average. */
		sdk_lowrank_finish(l, work, s.own, s.held, s.held);
		sdk_lowrank_finish(l, work, mean, NULL, s.held);
		sdk_lowrank_keep(work, l->P + at->P, mean, n.sent);
	}
	return GRADCOMP_OK;
}

static gradcomp_status acpsgd_cost(void *instance, const gradcomp_bucket *bucket, uint64_t step, gradcomp_cost *cost,
                                   gradcomp_error *err)
{
	const sdk_lowrank *l = instance;
	int dense = sdk_lowrank_is_passthrough(l, bucket, step);
	sizes n = measure(l, bucket, step);
	(void)err;
	cost->rounds = 1;
	cost->wire_bytes = 4.0 * (double)(dense ? bucket->numel : n.sent + n.uncompressed);
	cost->passes = dense ? 0 : sends_q(l, step) ? 4 : 5;
	cost->flops = dense ? 0 : sdk_lowrank_flops(l, bucket, sends_q(l, step) ? 3 : 4);
	return GRADCOMP_OK;
}

GRADCOMP_EXPORT const struct gradcomp_compressor_v1 gradcomp_compressor_v1 = {
	.info =
		{
			.abi_version = GRADCOMP_ABI_VERSION,
			.struct_size = sizeof gradcomp_compressor_v1,
			.name = "acpsgd",
			.version = "1.0",
			.summary = "low-rank factors, one of the two each step: half the bytes, one reduction",
			.licence = "MIT",
			.params = params,
			.nparams = sizeof params / sizeof params[0],
		},
	.traits = GRADCOMP_TRAIT_ERROR_FEEDBACK | GRADCOMP_TRAIT_SHAPED | GRADCOMP_TRAIT_CUDA | GRADCOMP_TRAIT_HOLDS |
                  GRADCOMP_TRAIT_ALIKE,
	.patterns = GRADCOMP_PATTERN_BIT(GRADCOMP_SUMMED),
	.create = acpsgd_create,
	.destroy = acpsgd_destroy,
	.plan = acpsgd_plan,
	.encode = acpsgd_encode,
	.decode = acpsgd_decode,
	.save = sdk_lowrank_save,
	.load = sdk_lowrank_load,
	.cost = acpsgd_cost,
	.choice = sdk_lowrank_choice,
};
