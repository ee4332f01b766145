/* slim: a matrix M of n x m numbers travels as two factors, P of n x r and Q of m x r. They have r (n + m) numbers in
 * place of n m. This is PowerSGD (Vogels, Karimireddy, Jaggi 2019) without its variants, written with the SDK's
 * gradcomp/sdk/lowrank.h. For every matrix, rank w of the job does
 *
 *     encode 0   Q := orth(Q), P_w = M_w Q       sends P_w, and what is not compressed as it is
 *     decode 0   P := orth(mean of P_w)
 *     encode 1   Q_w = M_w^T P                   sends Q_w
 *     decode 1   Q := mean of Q_w, average = P Q^T, error = M_w - P Q_w^T
 *
 * Comments that begin with "Change" say where a method of your own differs. doc/plugin/lowrank.md explains the rest. */
#include <gradcomp/sdk.h>

/* Change: add rows behind these three, which sdk_lowrank_open() reads, and read them in create(). */
static const gradcomp_param params[] = {
	[SDK_LOWRANK_RANK] = SDK_LOWRANK_RANK_ROW,
	[SDK_LOWRANK_MIN_RATIO] = SDK_LOWRANK_MIN_RATIO_ROW,
	[SDK_LOWRANK_START_STEP] = SDK_START_STEP_ROW,
};

/* Change: add what create() takes from the parameters. The SDK's functions take the first member for the instance. */
typedef struct slim {
	sdk_lowrank l;
} slim;

static gradcomp_status create(const gradcomp_host *host, const gradcomp_value *values, const gradcomp_layout *layout,
                              void **instance, gradcomp_error *err)
{
	slim *s = host->alloc(sizeof *s);
	gradcomp_status st;
	if (!s)
		return host->fail(err, GRADCOMP_ERR_NOMEM, "slim: no memory");
	/* Change: keep P too, or nothing (0). What is kept lasts from step to step, and is saved with the job. */
	st = sdk_lowrank_open(&s->l, host, values, layout, "slim", SDK_LOWRANK_KEEP_Q, "", err);
	if (st)
		host->release(s);
	else
		*instance = s;
	return st;
}

static void destroy(void *instance)
{
	slim *s = instance;
	if (!s)
		return;
	sdk_lowrank_close(&s->l);
	s->l.host->release(s);
}

/* Change: add what one call leaves for a later one of the same bucket and step. */
typedef struct parts {
	float *P, *Q;
	void *operator_scratch;
} parts;

static parts divide(const slim *s, const gradcomp_bucket *bucket, sdk_scratch *scratch)
{
	sdk_lowrank_extent size = sdk_lowrank_sizes(&s->l, bucket);
	parts p = {.P = sdk_scratch_take(scratch, size.P * sizeof(float))};
	p.Q = sdk_scratch_take(scratch, size.Q * sizeof(float));
	p.operator_scratch = sdk_scratch_take(scratch, 0);
	return p;
}

/* Change: say how many floats each round sends. */
static uint64_t floats(const slim *s, const gradcomp_bucket *bucket, uint32_t round)
{
	sdk_lowrank_extent size = sdk_lowrank_sizes(&s->l, bucket);
	return round ? size.Q : size.P + size.uncompressed;
}

static gradcomp_status plan(void *instance, const gradcomp_bucket *bucket, uint64_t step, gradcomp_plan *plan,
                            gradcomp_error *err)
{
	const slim *s = instance;
	sdk_scratch scratch = {0};
	(void)err;
	if (sdk_lowrank_is_passthrough(&s->l, bucket, step)) {
		sdk_passthrough_plan(bucket, plan);
		return GRADCOMP_OK;
	}
	plan->nrounds = 2;
	for (uint32_t round = 0; round < 2; round++)
		plan->rounds[round] = sdk_passthrough_round(floats(s, bucket, round));
	divide(s, bucket, &scratch);
	plan->scratch_bytes = scratch.bytes + sdk_lowrank_scratch(&s->l, bucket);
	return GRADCOMP_OK;
}

static gradcomp_status encode(void *instance, const gradcomp_work *work, uint32_t round, gradcomp_payload *out,
                              gradcomp_error *err)
{
	const slim *s = instance;
	const sdk_lowrank *l = &s->l;
	const gradcomp_operators *op = work->operators;
	const sdk_lowrank_extent size = sdk_lowrank_sizes(l, work->bucket);
	const float *kept = l->Q + l->tensors[work->bucket->first].at.Q;
	parts p = divide(s, work->bucket, &(sdk_scratch){.memory = work->scratch});
	float *to = out->data;
	/* Change: make other factors, or make them otherwise. */
	if (!round) {
		op->copy(work->queue, p.Q, kept, size.Q * sizeof *kept);
		sdk_lowrank_orthonormalise_q(l, work, p.Q, p.operator_scratch);
		sdk_lowrank_product_mq(l, work, to, p.Q, p.operator_scratch);
		sdk_lowrank_pack(l, work, to + size.P);
	} else {
		sdk_lowrank_product_mtp(l, work, p.Q, p.P, p.operator_scratch);
		op->copy(work->queue, to, p.Q, size.Q * sizeof *to);
	}
	out->bytes = floats(s, work->bucket, round) * sizeof *to;
	return sdk_lowrank_overflow(l, work, to, round ? size.Q : size.P, err);
}

static gradcomp_status decode(void *instance, const gradcomp_work *work, uint32_t round, const gradcomp_payload *in,
                              uint32_t n, gradcomp_error *err)
{
	slim *s = instance;
	sdk_lowrank *l = &s->l;
	const float *mean = in->data;
	(void)n;
	if (sdk_lowrank_is_passthrough(l, work->bucket, work->step)) {
		sdk_passthrough_decode(work);
		return GRADCOMP_OK;
	}
	const sdk_lowrank_extent size = sdk_lowrank_sizes(l, work->bucket);
	parts p = divide(s, work->bucket, &(sdk_scratch){.memory = work->scratch});
	gradcomp_status st = sdk_lowrank_expect(l, work, round, in, floats(s, work->bucket, round) * sizeof *mean, err);
	if (st)
		return st;
	/* Change: say what the means come to. sdk_lowrank_finish() writes the error and the average. */
	if (!round) {
		work->operators->copy(work->queue, p.P, mean, size.P * sizeof *mean);
		sdk_lowrank_orthonormalise_p(l, work, p.P, p.operator_scratch);
		sdk_lowrank_unpack(l, work, mean + size.P);
	} else {
		sdk_lowrank_finish(l, work, p.P, p.Q, mean);
		sdk_lowrank_keep(work, l->Q + l->tensors[work->bucket->first].at.Q, mean, size.Q);
	}
	return GRADCOMP_OK;
}

GRADCOMP_EXPORT const struct gradcomp_compressor_v1 gradcomp_compressor_v1 = {
	.info = {.abi_version = GRADCOMP_ABI_VERSION,
                 .struct_size = sizeof gradcomp_compressor_v1,
                 .name = "slim",
                 .version = "1.0",
                 /* Change: write what `gradcomp list` says of it. */
                 .summary = "two factors of a matrix in its place, by one power iteration a step",
                 .licence = "MIT",
                 .params = params,
                 .nparams = sizeof params / sizeof params[0]},
	/* Change: remove CUDA if you touch numbers yourself, HOLDS if you keep some other than by sdk_lowrank_keep(). */
	.traits = GRADCOMP_TRAIT_ERROR_FEEDBACK | GRADCOMP_TRAIT_SHAPED | GRADCOMP_TRAIT_CUDA | GRADCOMP_TRAIT_HOLDS |
                  GRADCOMP_TRAIT_ALIKE,
	.patterns = GRADCOMP_PATTERN_BIT(GRADCOMP_SUMMED),
	.create = create,
	.destroy = destroy,
	.plan = plan,
	.encode = encode,
	.decode = decode,
	.save = sdk_lowrank_save,
	.load = sdk_lowrank_load,
	.choice = sdk_lowrank_choice,
};
