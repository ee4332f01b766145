/* dgc: top-k with momentum on each rank before the selection (Lin, Han, Mao, Wang,
 * Dally: Deep Gradient Compression, ICLR 2018). The optimizer must apply no
 * momentum. For each matrix, with g clipped first, rank w does
 *
 *     m := mu m + g,  v := v + m             (nesterov: m := mu (m + g), v := v + m + g)
 *     sends the k of largest |v|, then v = 0 and m = 0 there
 *     average = 1/P * sum of what was sent
 *
 * Vectors (biases, norms), and everything before start_step, are averaged uncompressed and
 * get their momentum afterwards, as an optimizer would do it:
 *
 *     m := mu m + mean g, average = m        (nesterov: m := mu (m + mean g), average = m + mean g)
 *
 * so that m of one is m of the other, averaged over ranks, when the warm-up ends.
 * clip=C holds the length of each rank's gradient, tensor by tensor, to C / sqrt(P):
 * then that of a sum of independent ones is about C.
 *
 * Rounds: the tensors averaged uncompressed, SUMMED, if there are any; the parts of the
 * others, GATHERED (sparse.h), if there are any. m and v are the state arrays. */
#include <stdbool.h>
#include <float.h>
#include <math.h>

#include "gradcomp/sdk/payload.h"
#include "gradcomp/sdk/scratch.h"
#include "gradcomp/sdk/sparse.h"

enum { MOMENTUM = SDK_SPARSE_PARAMS, NESTEROV, CLIP };
enum { M, V };
enum { FOUND = 64 }; /* bytes of a norm and what it leaves */

static const gradcomp_param params[] = {
	SDK_SPARSE_SCHEDULE_ROWS,
	SDK_SPARSE_INDICES_ROW,
	SDK_SPARSE_VALUES_ROW,
	[MOMENTUM] = {.name = "momentum",
                      .type = GRADCOMP_PARAM_FLOAT,
                      .def = "0.9",
                      .min = 0,
                      .max = 0.999999,
                      .help = "what remains of the velocity after a step"},
	[NESTEROV] = {.name = "nesterov", .type = GRADCOMP_PARAM_BOOL, .def = "no", .help = "Nesterov's momentum"},
	[CLIP] = {.name = "clip",
                  .type = GRADCOMP_PARAM_FLOAT,
                  .def = "0",
                  .min = 0,
                  .max = 1e30,
                  .help = "longest gradient of a tensor, over all ranks; 0: any"},
};

typedef struct dgc {
	sdk_sparse s;
	float momentum;
	int nesterov;
	double clip; /* one rank's */
} dgc;

static int uncompressed(const dgc *p, uint32_t tensor, uint64_t step)
{
	return sdk_sparse_is_passthrough(&p->s, step) || p->s.layout->tensors[tensor].ndim < 2;
}

static uint64_t kept(const sdk_sparse *s, const sdk_sparse_part *part, uint64_t step)
{
	if (uncompressed((const dgc *)s, part->tensor, step))
		return 0;
	return sdk_sparse_share(sdk_sparse_density(&s->schedule, step), part->d);
}

static gradcomp_status dgc_check(const gradcomp_host *host, const gradcomp_value *values, gradcomp_error *err)
{
	sdk_sparse_schedule s;
	return sdk_sparse_schedule_read(&s, host, values, "dgc", err);
}

static gradcomp_status dgc_create(const gradcomp_host *host, const gradcomp_value *values,
                                  const gradcomp_layout *layout, void **instance, gradcomp_error *err)
{
	void *made;
	gradcomp_status st = sdk_sparse_new(sizeof(dgc), host, values, layout, "dgc", SDK_SPARSE_PARAMS, &made, err);
	if (st)
		return st;
	dgc *p = made;
	p->s.layerwise = 1;
	p->s.kept = kept;
	p->momentum = (float)values[MOMENTUM].f;
	p->nesterov = values[NESTEROV].i != 0;
	p->clip = values[CLIP].f / sqrt((double)layout->nranks);
	*instance = p;
	return GRADCOMP_OK;
}

/* Counts what a bucket has: numbers averaged uncompressed, and bytes of the parts. */
typedef struct sizes {
	uint64_t uncompressed, parts;
	uint32_t rounds;
} sizes;

static sizes measure(const dgc *p, const gradcomp_bucket *bucket, uint64_t step)
{
	sizes a = {.parts = sdk_sparse_payload_bytes(&p->s, bucket, step)};
	for (uint32_t i = bucket->first; i < bucket->first + bucket->ntensors; i++)
		a.uncompressed += uncompressed(p, i, step) ? p->s.layout->tensors[i].numel : 0;
	a.rounds = a.uncompressed && a.parts ? 2 : 1;
	return a;
}

static bool is_sum(const sizes *a, uint32_t round)
{
	return !round && (a->uncompressed || !a->parts);
}

/* Scratch: what the parts need; v with this step's momentum; the mean of the
 * uncompressed tensors; a norm and what it leaves, and the norm's scratch. Floats before
 * each, and bytes. */
typedef struct offsets {
	uint64_t v, mean, norm, bytes;
} offsets;

static offsets divide(const dgc *p, const gradcomp_bucket *bucket, uint64_t step)
{
	uint64_t norm_scratch =
		p->clip > 0 ? FOUND + sdk_layout_operators(p->s.host, p->s.layout)->sum_scratch(bucket->numel) : 0;
	offsets a = {.v = sdk_sparse_scratch(&p->s, bucket, step) / sizeof(float)};
	a.mean = a.v + bucket->numel;
	a.norm = (a.mean + measure(p, bucket, step).uncompressed + 15) / 16 * 16;
	a.bytes = a.norm * sizeof(float) + norm_scratch;
	return a;
}

static gradcomp_status dgc_plan(void *instance, const gradcomp_bucket *bucket, uint64_t step, gradcomp_plan *plan,
                                gradcomp_error *err)
{
	const dgc *p = instance;
	sizes a = measure(p, bucket, step);
	(void)err;
	plan->nrounds = a.rounds;
	for (uint32_t r = 0; r < a.rounds; r++)
		plan->rounds[r] = is_sum(&a, r) ? sdk_passthrough_round(a.uncompressed) : sdk_gathered_round(a.parts);
	plan->scratch_bytes = divide(p, bucket, step).bytes;
	return GRADCOMP_OK;
}

/* How much of a tensor's gradient is left after clipping, found where the gradient is; NULL:
 * all of it. Holds until it is called again. */
static const float *clipped(const dgc *p, const gradcomp_work *work, uint32_t i)
{
	const gradcomp_operators *op = work->operators;
	if (!(p->clip > 0))
		return NULL;
	double *squares = (double *)(void *)((float *)work->scratch + divide(p, work->bucket, work->step).norm);
	float *left = (float *)(squares + 1), *all = left + 1;
	op->sum_squares(work->queue, squares, work->x[i], p->s.layout->tensors[work->bucket->first + i].numel,
	                (char *)squares + FOUND);
	op->moment(work->queue, left, squares, 1, p->clip, GRADCOMP_INVERSE_ROOT);
	op->fill(work->queue, all, 1, 1);
	op->reduce(work->queue, left, all, 1, GRADCOMP_F32, GRADCOMP_MIN);
	return left;
}

/* y += a g; a NULL: g. */
static void add_clipped(const gradcomp_work *work, float *y, const float *a, const float *g, uint64_t n)
{
	if (a)
		work->operators->axpy_by(work->queue, y, a, g, n);
	else
		work->operators->add(work->queue, y, g, n);
}

/* m after this step; a g is the clipped gradient. */
static void accumulate(const dgc *p, const gradcomp_work *work, float *m, const float *g, const float *a, uint64_t n)
{
	const gradcomp_operators *op = work->operators;
	if (!p->nesterov)
		op->scale(work->queue, m, p->momentum, n);
	add_clipped(work, m, a, g, n);
	if (p->nesterov)
		op->scale(work->queue, m, p->momentum, n);
}

/* Where tensor i of the bucket begins in it. */
static uint64_t from(const dgc *p, const gradcomp_work *work, uint32_t i)
{
	return p->s.layout->tensors[work->bucket->first + i].offset - work->bucket->offset;
}

/* out = v after this step, before anything is sent. On the host in runs that stay in
 * the cache. Where m overflows, v does. */
static gradcomp_status gather_velocity(const dgc *p, const gradcomp_work *work, float *out, uint32_t i,
                                       gradcomp_error *err)
{
	const gradcomp_operators *op = work->operators;
	gradcomp_status st = GRADCOMP_OK;
	uint64_t d = p->s.layout->tensors[work->bucket->first + i].numel;
	uint64_t run = work->device == GRADCOMP_HOST ? 8192 : d;
	const float *a = clipped(p, work, i);
	for (uint64_t at = 0; !st && at < d; at += run) {
		uint64_t n = d - at < run ? d - at : run, in_bucket = from(p, work, i) + at;
		const float *g = work->x[i] + at;
		op->copy(work->queue, out + in_bucket, work->state[M] + in_bucket, n * sizeof *out);
		accumulate(p, work, out + in_bucket, g, a, n);
		if (p->nesterov)
			add_clipped(work, out + in_bucket, a, g, n);
		op->add(work->queue, out + in_bucket, work->state[V] + in_bucket, n);
		st = sdk_overflow(p->s.host, "dgc", work, out + in_bucket, n, FLT_MAX, err);
	}
	/* Numbers that are sent all the same must be sound. */
	if (work->device != GRADCOMP_HOST)
		op->fill_if(work->queue, out + from(p, work, i), 0, d, &work->fault[1]);
	return st;
}

static gradcomp_status dgc_encode(void *instance, const gradcomp_work *work, uint32_t round, gradcomp_payload *out,
                                  gradcomp_error *err)
{
	const dgc *p = instance;
	const gradcomp_operators *op = work->operators;
	const gradcomp_bucket *b = work->bucket;
	sizes size = measure(p, b, work->step);
	float *to = out->data, *v = (float *)work->scratch + divide(p, b, work->step).v;
	gradcomp_status st = GRADCOMP_OK;
	for (uint32_t i = 0; !st && i < b->ntensors; i++) {
		uint64_t n = p->s.layout->tensors[b->first + i].numel;
		if (uncompressed(p, b->first + i, work->step) != is_sum(&size, round))
			continue;
		if (!is_sum(&size, round)) {
			st = gather_velocity(p, work, v, i, err);
			continue;
		}
		const float *a = clipped(p, work, i);
		if (a)
			op->scale_by(work->queue, to, a, work->x[i], n);
		else
			op->copy(work->queue, to, work->x[i], n * sizeof *to);
		to += n;
	}
	out->bytes = size.uncompressed * sizeof *to;
	return st || is_sum(&size, round) ? st : sdk_sparse_encode_from(&p->s, work, v, out, err);
}

/* The parts: m and v of this step, cleared where they were sent; x is the average. */
static gradcomp_status decode_parts(const dgc *p, const gradcomp_work *work, const gradcomp_payload *in, uint32_t n,
                                    gradcomp_error *err)
{
	const gradcomp_bucket *b = work->bucket;
	const float *v = (const float *)work->scratch + divide(p, b, work->step).v;
	const gradcomp_payload *own = &in[p->s.layout->rank];
	gradcomp_status st = sdk_sparse_verify(&p->s, work, in, n, err);
	if (st)
		return st;
	for (uint32_t i = 0; i < b->ntensors; i++) {
		uint64_t d = p->s.layout->tensors[b->first + i].numel, at = from(p, work, i);
		if (uncompressed(p, b->first + i, work->step))
			continue;
		accumulate(p, work, work->state[M] + at, work->x[i], clipped(p, work, i), d);
		work->operators->copy(work->queue, work->state[V] + at, v + at, d * sizeof *v);
	}
	sdk_sparse_clear(&p->s, work, own, work->state[M]);
	sdk_sparse_add(&p->s, work, own, -1, work->state[V]);
	sdk_sparse_average(&p->s, work, in, n);
	return GRADCOMP_OK;
}

static gradcomp_status decode_whole(const dgc *p, const gradcomp_work *work, const float *mean, gradcomp_error *err)
{
	const gradcomp_operators *op = work->operators;
	gradcomp_status st = GRADCOMP_OK;
	for (uint32_t i = 0; !st && i < work->bucket->ntensors; i++) {
		uint64_t d = p->s.layout->tensors[work->bucket->first + i].numel;
		float *m = work->state[M] + from(p, work, i);
		if (!uncompressed(p, work->bucket->first + i, work->step))
			continue;
		accumulate(p, work, m, mean, NULL, d);
		op->copy(work->queue, work->x[i], m, d * sizeof *m);
		if (p->nesterov)
			op->add(work->queue, work->x[i], mean, d);
		st = sdk_overflow(p->s.host, "dgc", work, work->x[i], d, FLT_MAX, err);
		mean += d;
	}
	return st;
}

static gradcomp_status dgc_decode(void *instance, const gradcomp_work *work, uint32_t round, const gradcomp_payload *in,
                                  uint32_t n, gradcomp_error *err)
{
	const dgc *p = instance;
	sizes size = measure(p, work->bucket, work->step);
	float *mean = (float *)work->scratch + divide(p, work->bucket, work->step).mean;
	gradcomp_status st = GRADCOMP_OK;
	if (is_sum(&size, round)) {
		if (in->bytes != size.uncompressed * sizeof *mean)
			return p->s.host->fail(err, GRADCOMP_ERR_INTERNAL,
			                       "dgc: a sum of %llu bytes for bucket %u, %llu are right",
			                       (unsigned long long)in->bytes, work->bucket->index,
			                       (unsigned long long)(size.uncompressed * sizeof *mean));
		work->operators->copy(work->queue, mean, in->data, size.uncompressed * sizeof *mean);
	} else {
		st = decode_parts(p, work, in, n, err);
	}
	if (!st && round + 1 == size.rounds)
		st = decode_whole(p, work, mean, err);
	return st;
}

static gradcomp_status dgc_cost(void *instance, const gradcomp_bucket *bucket, uint64_t step, gradcomp_cost *cost,
                                gradcomp_error *err)
{
	const dgc *p = instance;
	sizes size = measure(p, bucket, step);
	(void)err;
	cost->rounds = size.rounds;
	cost->wire_bytes = 4.0 * (double)size.uncompressed + (double)size.parts;
	cost->passes = size.parts ? 12 : 6;
	return GRADCOMP_OK;
}

static const char *dgc_choice(void *instance, uint32_t tensor)
{
	const dgc *p = instance;
	return tensor >= p->s.layout->ntensors ? NULL : p->s.layout->tensors[tensor].ndim < 2 ? "dense" : "top-k";
}

GRADCOMP_EXPORT const struct gradcomp_compressor_v1 gradcomp_compressor_v1 = {
	.info =
		{
			.abi_version = GRADCOMP_ABI_VERSION,
			.struct_size = sizeof gradcomp_compressor_v1,
			.name = "dgc",
			.version = "1.0",
			.summary = "top-k of each matrix, with momentum before the selection",
			.licence = "MIT",
			.params = params,
			.nparams = sizeof params / sizeof params[0],
		},
	.traits = GRADCOMP_TRAIT_OWN_MOMENTUM | GRADCOMP_TRAIT_CUDA,
	.patterns = GRADCOMP_PATTERN_BIT(GRADCOMP_GATHERED) | GRADCOMP_PATTERN_BIT(GRADCOMP_SUMMED),
	.state_arrays = 2,
	.max_bucket = UINT32_MAX,
	.check = dgc_check,
	.create = dgc_create,
	.destroy = sdk_sparse_destroy,
	.plan = dgc_plan,
	.encode = dgc_encode,
	.decode = dgc_decode,
	.cost = dgc_cost,
	.choice = dgc_choice,
	.neutral = "momentum=0,clip=0",
};
