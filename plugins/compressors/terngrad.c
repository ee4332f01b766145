/* terngrad: a number is sent as -s, 0 or s, at random so that the mean is the number;
 * s belongs to its tensor and to all ranks (Wen et al., NeurIPS 2017).
 *
 *     c_w = u_w held within clip * sigma_w, sigma_w the root mean square of the tensor on rank w
 *     s = max over ranks of max|c_w|        t_w = sign(c_w) with probability |c_w| / s, else 0
 *     average = s / P * sum over ranks of t_w
 *
 * E[average] is exactly the mean of c: with clip=0 that of the gradients, so nothing
 * is lost in the long run; otherwise what lies beyond clip * sigma is cut off, for
 * good, for the sake of a smaller s and so a smaller variance. (The paper's sigma is
 * about the mean, which makes nothing of a tensor of equal numbers.)
 *
 * Two rounds. First the s_w, 4 bytes a tensor. Then, when that is no more bytes on
 * the wire, t_w five to a byte, gathered: (P - 1) ceil(n / 5) a tensor and rank;
 * else, from 11 ranks on, a byte each and summed on the way, which a ring does with
 * 2 (P - 1) / P n: sums are within -P..P, and a byte holds them up to P = 127. */
#include "gradcomp/compressor.h"

#include "gradcomp/sdk/codes.h"
#include "gradcomp/sdk/passthrough.h"
#include "gradcomp/sdk/random_stream.h"
#include "gradcomp/sdk/payload.h"
#include "gradcomp/sdk/scratch.h"

enum { CLIP, START_STEP };
enum { SUMMED_FROM = 11, SUMMED_TO = 127, FOUND = 64 };

static const gradcomp_param params[] = {
	[CLIP] = {.name = "clip",
                  .type = GRADCOMP_PARAM_FLOAT,
                  .def = "2.5",
                  .min = 0,
                  .max = 1e6,
                  .help = "root mean squares beyond which a number is cut off; 0: none is"},
	[START_STEP] = SDK_START_STEP_ROW,
};

typedef struct terngrad {
	const gradcomp_host *host;
	const gradcomp_layout *layout;
	double clip;
	uint64_t start_step;
	int summed;
} terngrad;

static gradcomp_status terngrad_create(const gradcomp_host *host, const gradcomp_value *values,
                                       const gradcomp_layout *layout, void **instance, gradcomp_error *err)
{
	terngrad *t = host->alloc(sizeof *t);
	if (!t)
		return host->fail(err, GRADCOMP_ERR_NOMEM, "terngrad: no memory");
	t->host = host;
	t->layout = layout;
	t->clip = values[CLIP].f;
	t->start_step = (uint64_t)values[START_STEP].i;
	t->summed = layout->nranks >= SUMMED_FROM && layout->nranks <= SUMMED_TO;
	*instance = t;
	return GRADCOMP_OK;
}

static void terngrad_destroy(void *instance)
{
	terngrad *t = instance;
	if (t)
		t->host->release(t);
}

static const gradcomp_tensor *tensor(const terngrad *t, const gradcomp_bucket *bucket, uint32_t i)
{
	return &t->layout->tensors[bucket->first + i];
}

/* Returns the bytes of a tensor's t_w. */
static uint64_t part(const terngrad *t, const gradcomp_tensor *of)
{
	return t->summed ? of->numel : (of->numel + 4) / 5;
}

static uint64_t payload_bytes(const terngrad *t, const gradcomp_bucket *bucket)
{
	uint64_t bytes = 0;
	for (uint32_t i = 0; i < bucket->ntensors; i++)
		bytes += part(t, tensor(t, bucket, i));
	return bytes;
}

/* Scratch: s of every tensor; before that a sum, where it cuts off, and what the sum takes to make. */
static gradcomp_status terngrad_plan(void *instance, const gradcomp_bucket *bucket, uint64_t step, gradcomp_plan *plan,
                                     gradcomp_error *err)
{
	const terngrad *t = instance;
	uint64_t bytes = payload_bytes(t, bucket), scales = 4 * (uint64_t)bucket->ntensors,
		 sums = FOUND + sdk_layout_operators(t->host, t->layout)->sum_scratch(bucket->numel);
	(void)err;
	if (step < t->start_step) {
		sdk_passthrough_plan(bucket, plan);
		return GRADCOMP_OK;
	}
	plan->nrounds = 2;
	plan->rounds[0] = sdk_gathered_round(scales);
	plan->rounds[1] = !t->summed
	                          ? sdk_gathered_round(bytes)
	                          : (gradcomp_round){.pattern = GRADCOMP_SUMMED, .dtype = GRADCOMP_U8, .count = bytes};
	plan->scratch_bytes = scales > sums ? scales : sums;
	return GRADCOMP_OK;
}

/* s_w of a tensor: where its numbers are cut off, or the largest if that is less. */
static void own_scale(const terngrad *t, const gradcomp_work *work, float *s, const float *x, uint64_t n)
{
	const gradcomp_operators *op = work->operators;
	double *sum = work->scratch;
	float *limit = (float *)(sum + 1);
	void *operator_scratch = (char *)work->scratch + FOUND;
	op->absmax(work->queue, s, x, n, operator_scratch);
	if (!n || t->clip <= 0)
		return;
	op->sum_squares(work->queue, sum, x, n, operator_scratch);
	op->moment(work->queue, limit, sum, (double)n, t->clip, GRADCOMP_ROOT);
	op->reduce(work->queue, s, limit, 1, GRADCOMP_F32, GRADCOMP_MIN);
}

/* t_w as integers: codes of a quantiser whose step is s. */
static gradcomp_quantiser integers(const float *s, uint32_t levels)
{
	return (gradcomp_quantiser){.struct_size = sizeof(gradcomp_quantiser),
	                            .bits = 8,
	                            .levels = levels,
	                            .block = 32,
	                            .norm = GRADCOMP_NORM_GIVEN,
	                            .rounding = GRADCOMP_TO_EITHER,
	                            .given = s};
}

static gradcomp_status terngrad_encode(void *instance, const gradcomp_work *work, uint32_t round, gradcomp_payload *out,
                                       gradcomp_error *err)
{
	const terngrad *t = instance;
	uint64_t stream = sdk_random_stream(t->layout, work->step);
	uint8_t *to = out->data;
	float *s = round == 0 ? out->data : work->scratch;
	(void)err;
	for (uint32_t i = 0; i < work->bucket->ntensors; i++) {
		const gradcomp_tensor *of = tensor(t, work->bucket, i);
		if (round == 0) {
			own_scale(t, work, &s[i], work->x[i], of->numel);
		} else if (t->summed) {
			gradcomp_quantiser q = integers(&s[i], 1);
			q.seed = t->layout->seed;
			q.stream = stream;
			q.first = of->offset;
			work->operators->quantise(work->queue, to, work->x[i], of->numel, &q);
		} else {
			work->operators->ternary_pack(work->queue, to, work->x[i], of->numel, &s[i], t->layout->seed,
			                              stream, of->offset);
		}
		to += part(t, of);
	}
	out->bytes = round == 0 ? 4 * (uint64_t)work->bucket->ntensors : payload_bytes(t, work->bucket);
	return GRADCOMP_OK;
}

/* Gathered codes of every tensor, or the scales of all. */
typedef struct walk {
	const terngrad *t;
	const gradcomp_work *work;
	uint64_t at;
} walk;

static void scales_part(void *ctx, uint32_t i, gradcomp_coded *to)
{
	const walk *w = ctx;
	(void)i;
	*to = (gradcomp_coded){.y = w->work->scratch, .n = w->work->bucket->ntensors};
}

static void ternary_part(void *ctx, uint32_t i, gradcomp_coded *to)
{
	walk *w = ctx;
	const gradcomp_tensor *of = tensor(w->t, w->work->bucket, i);
	w->at = i ? w->at : 0;
	*to = (gradcomp_coded){
		.y = w->work->x[i], .n = of->numel, .codes = w->at, .scale = (const float *)w->work->scratch + i};
	w->at += part(w->t, of);
}

/* Checks what n ranks sent in a coding, part by part, and puts a times its sum on the queue. */
static gradcomp_status sum_up(const terngrad *t, const gradcomp_work *work, const gradcomp_payload *in, uint32_t n,
                              uint32_t kind, uint32_t parts, void (*part_of)(void *, uint32_t, gradcomp_coded *),
                              const char *fault, float a, gradcomp_error *err)
{
	const gradcomp_coding coding = {.struct_size = sizeof coding, .kind = kind};
	walk w = {t, work, 0};
	const sdk_codes codes = {.host = t->host,
	                         .name = "terngrad",
	                         .work = work,
	                         .coding = &coding,
	                         .fault = fault,
	                         .parts = parts,
	                         .part = part_of,
	                         .ctx = &w};
	gradcomp_status st = sdk_codes_check(&codes, in, n, err);
	if (!st)
		sdk_codes_sum(&codes, in, n, a);
	return st;
}

/* Everybody's s_w: s goes to scratch, and x within its own. */
static gradcomp_status agree(const terngrad *t, const gradcomp_work *work, const gradcomp_payload *in, uint32_t n,
                             gradcomp_error *err)
{
	const gradcomp_operators *op = work->operators;
	const float *own = in[t->layout->rank].data;
	gradcomp_status st = sum_up(t, work, in, n, GRADCOMP_CODING_LARGEST, 1, scales_part,
	                            "a scale that is negative or not finite", 1, err);
	for (uint32_t i = 0; !st && t->clip > 0 && i < work->bucket->ntensors; i++)
		op->clamp(work->queue, work->x[i], work->x[i], &own[i], tensor(t, work->bucket, i)->numel);
	return st;
}

static gradcomp_status decode_summed(const terngrad *t, const gradcomp_work *work, const gradcomp_payload *in,
                                     gradcomp_error *err)
{
	const float *s = work->scratch;
	const uint8_t *from = in->data;
	for (uint32_t i = 0; i < work->bucket->ntensors; i++) {
		uint64_t numel = tensor(t, work->bucket, i)->numel;
		gradcomp_quantiser q = integers(&s[i], (uint32_t)t->layout->nranks);
		int bad = 0;
		work->operators->quantised_check(work->queue, sdk_gathered_fault(work, &bad), from, numel, &q);
		if (bad)
			return t->host->fail(err, GRADCOMP_ERR_MISMATCH,
			                     "terngrad: a sum in bucket %u is outside of -%d..%d: some rank sent "
			                     "something else than -1, 0 or 1",
			                     work->bucket->index, t->layout->nranks, t->layout->nranks);
		work->operators->dequantise(work->queue, work->x[i], from, numel, &q);
		from += numel;
	}
	work->operators->scale(work->queue, work->flat, 1.0f / (float)t->layout->nranks, work->bucket->numel);
	return GRADCOMP_OK;
}

static gradcomp_status terngrad_decode(void *instance, const gradcomp_work *work, uint32_t round,
                                       const gradcomp_payload *in, uint32_t n, gradcomp_error *err)
{
	const terngrad *t = instance;
	uint64_t scales = 4 * (uint64_t)work->bucket->ntensors, bytes = payload_bytes(t, work->bucket);
	gradcomp_status st;
	if (work->step < t->start_step)
		return GRADCOMP_OK;
	if (round == 1 && t->summed)
		return decode_summed(t, work, in, err);
	st = sdk_gathered_expect(t->host, t->layout, "terngrad", work, in, n, round ? bytes : scales, err);
	if (st)
		return st;
	return round == 0 ? agree(t, work, in, n, err)
	                  : sum_up(t, work, in, n, GRADCOMP_CODING_TERNARY, work->bucket->ntensors, ternary_part,
	                           "a byte above 242", 1.0f / (float)n, err);
}

static gradcomp_status terngrad_cost(void *instance, const gradcomp_bucket *bucket, uint64_t step, gradcomp_cost *cost,
                                     gradcomp_error *err)
{
	const terngrad *t = instance;
	int dense = step < t->start_step;
	(void)err;
	cost->rounds = dense ? 1 : 2;
	cost->wire_bytes =
		dense ? 4.0 * (double)bucket->numel : (double)payload_bytes(t, bucket) + 4.0 * (double)bucket->ntensors;
	cost->passes = dense ? 0 : 5 + (t->summed ? 2 : 2 * t->layout->nranks);
	return GRADCOMP_OK;
}

GRADCOMP_EXPORT const struct gradcomp_compressor_v1 gradcomp_compressor_v1 = {
	.info =
		{
			.abi_version = GRADCOMP_ABI_VERSION,
			.struct_size = sizeof gradcomp_compressor_v1,
			.name = "terngrad",
			.version = "1.0",
			.summary = "-1, 0 or 1 times a scale that all ranks share, at random without bias",
			.licence = "MIT",
			.params = params,
			.nparams = sizeof params / sizeof params[0],
		},
	.traits = GRADCOMP_TRAIT_UNBIASED | GRADCOMP_TRAIT_STOCHASTIC | GRADCOMP_TRAIT_CUDA,
	.patterns = GRADCOMP_PATTERN_BIT(GRADCOMP_GATHERED) | GRADCOMP_PATTERN_BIT(GRADCOMP_SUMMED),
	.create = terngrad_create,
	.destroy = terngrad_destroy,
	.plan = terngrad_plan,
	.encode = terngrad_encode,
	.decode = terngrad_decode,
	.cost = terngrad_cost,
	.neutral = "clip=0",
};
