/* powersgd: low-rank compression by one step of subspace iteration (Vogels,
 * Karimireddy, Jaggi: PowerSGD, NeurIPS 2019).
 *
 * A tensor is an n x m matrix M: n its first dimension, m the product of the
 * others. With Q (m x r) kept from the step before, rank w does
 *
 *     encode 0   Q := orth(Q), P_w = M_w Q
 *     decode 0   P := orth(mean of P_w)
 *     encode 1   Q_w = M_w^T P
 *     decode 1   Q := mean of Q_w, average = P Q^T, error = M_w - P Q_w^T
 *
 * The error is against the rank's own Q_w: the sum over ranks is the same, and
 * no rank drifts by what the others sent. Vectors, and tensors that would not
 * shrink min_ratio times, are averaged as they are and leave no error.
 *
 * Payloads, F32, the tensors of the bucket in order: round 0 has P_w (n x r) of
 * the compressed and the whole of the others, round 1 has Q_w (m x r) of the
 * compressed; a bucket without any has one round. */
#include <string.h>

#include "gradcomp/compressor.h"

enum { RANK, MIN_RATIO, START_STEP, WARM_START };

static const gradcomp_param params[] = {
	[RANK] = {.name = "rank", .type = GRADCOMP_PARAM_INT, .def = "4", .min = 1, .max = 64,
	          .help = "columns of the factors; more is closer to the gradient and more to send"},
	[MIN_RATIO] = {.name = "min_ratio", .type = GRADCOMP_PARAM_FLOAT, .def = "2", .min = 0, .max = 1e6,
	               .help = "a tensor that would not shrink by more than this factor is sent whole"},
	[START_STEP] = {.name = "start_step", .type = GRADCOMP_PARAM_INT, .def = "0", .min = 0, .max = 1e15,
	                .help = "this many steps at the start send everything whole"},
	[WARM_START] = {.name = "warm_start", .type = GRADCOMP_PARAM_BOOL, .def = "yes",
	                .help = "begin each step with the factor of the step before, not with a random one"},
};

typedef struct matrix {
	uint64_t n, m, r; /* r = 0: sent whole */
	uint64_t q;       /* where its Q starts in powersgd.Q, in floats */
} matrix;

typedef struct powersgd {
	const gradcomp_host *host;
	const gradcomp_layout *layout;
	uint64_t start_step;
	int warm;
	matrix *tensors; /* one for each of the layout */
	float *Q;        /* warm start only */
	uint64_t q_floats;
} powersgd;

static matrix shape(const gradcomp_tensor *t, const gradcomp_value *values)
{
	matrix a = {0};
	uint64_t rank = (uint64_t)values[RANK].i;
	if (t->ndim < 2 || !t->numel)
		return a;
	a.n = t->dims[0];
	a.m = t->numel / a.n;
	uint64_t small = a.n < a.m ? a.n : a.m;
	a.r = rank < small ? rank : small;
	if (((double)a.n + (double)a.m) * (double)a.r * values[MIN_RATIO].f >= (double)a.n * (double)a.m)
		a.r = 0;
	return a;
}

static void draw(const powersgd *p, uint32_t tensor, uint64_t step, const gradcomp_operators *op, void *queue, float *Q)
{
	uint64_t floats = p->tensors[tensor].m * p->tensors[tensor].r;
	op->random_normal(queue, Q, floats, p->layout->seed, tensor, step * floats);
}

static void powersgd_destroy(void *instance)
{
	powersgd *p = instance;
	if (!p)
		return;
	const gradcomp_host *host = p->host;
	host->release(p->tensors);
	host->release(p->Q);
	host->release(p);
}

static gradcomp_status powersgd_create(const gradcomp_host *host, const gradcomp_value *values,
                                       const gradcomp_layout *layout, void **instance, gradcomp_error *err)
{
	powersgd *p = host->alloc(sizeof *p);
	if (!p)
		return host->fail(err, GRADCOMP_ERR_NOMEM, "powersgd: no memory");
	p->host = host;
	p->layout = layout;
	p->start_step = (uint64_t)values[START_STEP].i;
	p->warm = values[WARM_START].i != 0;
	p->tensors = host->alloc((layout->ntensors + 1) * sizeof *p->tensors);
	if (!p->tensors)
		goto fail;
	for (uint32_t i = 0; i < layout->ntensors; i++) {
		matrix *t = &p->tensors[i];
		*t = shape(&layout->tensors[i], values);
		t->q = p->q_floats;
		p->q_floats += p->warm ? t->m * t->r : 0;
	}
	if (p->q_floats && !(p->Q = host->alloc(p->q_floats * sizeof *p->Q)))
		goto fail;
	for (uint32_t i = 0; p->Q && i < layout->ntensors; i++)
		draw(p, i, 0, host->operators, NULL, p->Q + p->tensors[i].q);
	*instance = p;
	return GRADCOMP_OK;
fail:
	host->fail(err, GRADCOMP_ERR_NOMEM, "powersgd: no memory for the factors of %u tensors (%llu bytes)",
	           layout->ntensors, (unsigned long long)(p->q_floats * sizeof *p->Q));
	powersgd_destroy(p);
	return GRADCOMP_ERR_NOMEM;
}

static int whole(const powersgd *p, const matrix *t, uint64_t step)
{
	return !t->r || step < p->start_step;
}

/* Where a tensor's pieces are, in floats: in the two payloads, and in scratch,
 * which holds P and behind it Q_w. */
typedef struct place {
	uint64_t first, second, P, Q;
} place;

/* From tensor to tensor; the one before the first is at {0}, with end as its end. */
static void place_next(const powersgd *p, uint32_t tensor, uint64_t step, place *at, place *end)
{
	const matrix *t = &p->tensors[tensor];
	*at = *end;
	if (whole(p, t, step)) {
		end->first += p->layout->tensors[tensor].numel;
		return;
	}
	at->Q = at->P + (t->n * t->r + 15) / 16 * 16;
	end->first += t->n * t->r;
	end->second += t->m * t->r;
	end->P = at->Q + (t->m * t->r + 15) / 16 * 16;
}

static gradcomp_status powersgd_plan(void *instance, const gradcomp_bucket *bucket, uint64_t step,
                                     gradcomp_plan *plan, gradcomp_error *err)
{
	const powersgd *p = instance;
	place at, end = {0};
	(void)err;
	for (uint32_t i = 0; i < bucket->ntensors; i++)
		place_next(p, bucket->first + i, step, &at, &end);
	plan->nrounds = end.second ? 2 : 1;
	for (uint32_t r = 0; r < plan->nrounds; r++)
		plan->rounds[r] = (gradcomp_round){
			.pattern = GRADCOMP_SUMMED,
			.dtype = GRADCOMP_F32,
			.flags = GRADCOMP_ROUND_MEAN,
			.count = r ? end.second : end.first,
		};
	plan->scratch_bytes = end.P * sizeof(float);
	return GRADCOMP_OK;
}

static void encode_first(const powersgd *p, const gradcomp_work *work, uint32_t i, place at, float *out)
{
	uint32_t tensor = work->bucket->first + i;
	const matrix *t = &p->tensors[tensor];
	const gradcomp_operators *op = work->operators;
	if (whole(p, t, work->step)) {
		if (p->layout->tensors[tensor].numel)
			memcpy(out + at.first, work->x[i], p->layout->tensors[tensor].numel * sizeof *out);
		return;
	}
	float *Q = (float *)work->scratch + at.Q;
	if (p->warm)
		memcpy(Q, p->Q + t->q, t->m * t->r * sizeof *Q);
	else
		draw(p, tensor, work->step, op, work->queue, Q);
	op->orthonormalise(work->queue, Q, t->m, t->r);
	op->product_mq(work->queue, out + at.first, work->x[i], Q, t->n, t->m, t->r);
}

static gradcomp_status powersgd_encode(void *instance, const gradcomp_work *work, uint32_t round,
                                       gradcomp_payload *out, gradcomp_error *err)
{
	const powersgd *p = instance;
	const gradcomp_operators *op = work->operators;
	place at, end = {0};
	(void)err;
	for (uint32_t i = 0; i < work->bucket->ntensors; i++) {
		const matrix *t = &p->tensors[work->bucket->first + i];
		place_next(p, work->bucket->first + i, work->step, &at, &end);
		if (!round) {
			encode_first(p, work, i, at, out->data);
		} else if (!whole(p, t, work->step)) {
			float *scratch = work->scratch;
			op->product_mtp(work->queue, scratch + at.Q, work->x[i], scratch + at.P, t->n, t->m, t->r);
			memcpy((float *)out->data + at.second, scratch + at.Q, t->m * t->r * sizeof *scratch);
		}
	}
	out->bytes = (round ? end.second : end.first) * sizeof(float);
	return GRADCOMP_OK;
}

/* A tensor sent whole is done after round 0; a bucket's error memory is written
 * at the end, when nothing can fail any more. */
static void decode_first(const powersgd *p, const gradcomp_work *work, uint32_t i, place at, const float *in)
{
	uint32_t tensor = work->bucket->first + i;
	const matrix *t = &p->tensors[tensor];
	if (whole(p, t, work->step)) {
		if (p->layout->tensors[tensor].numel)
			memcpy(work->x[i], in + at.first, p->layout->tensors[tensor].numel * sizeof *in);
		return;
	}
	float *P = (float *)work->scratch + at.P;
	memcpy(P, in + at.first, t->n * t->r * sizeof *P);
	work->operators->orthonormalise(work->queue, P, t->n, t->r);
}

/* Finite gradients can still be so large that a product is not. Then the tensor's
 * average is NaN on every rank, as a plain sum's would be, and its memory stays. */
static void decode_last(powersgd *p, const gradcomp_work *work, uint32_t i, place at, const float *in)
{
	uint32_t tensor = work->bucket->first + i;
	const matrix *t = &p->tensors[tensor];
	const gradcomp_operators *op = work->operators;
	uint64_t numel = p->layout->tensors[tensor].numel;
	const float *P = (const float *)work->scratch + at.P, *local = (const float *)work->scratch + at.Q;
	int bad;
	if (whole(p, t, work->step)) {
		if (numel)
			memset(work->error[i], 0, numel * sizeof *work->error[i]);
		return;
	}
	op->nonfinite(work->queue, in + at.second, t->m * t->r, &bad);
	if (bad) {
		memset(work->x[i], 0xff, numel * sizeof *work->x[i]);
		return;
	}
	op->low_rank_finish(work->queue, work->x[i], work->error[i], P, local, in + at.second, t->n, t->m, t->r);
	if (p->warm)
		memcpy(p->Q + t->q, in + at.second, t->m * t->r * sizeof *p->Q);
}

static gradcomp_status powersgd_decode(void *instance, const gradcomp_work *work, uint32_t round,
                                       const gradcomp_payload *in, uint32_t n, gradcomp_error *err)
{
	powersgd *p = instance;
	place at, end = {0};
	(void)n;
	for (uint32_t i = 0; i < work->bucket->ntensors; i++)
		place_next(p, work->bucket->first + i, work->step, &at, &end);
	uint64_t want = (round ? end.second : end.first) * sizeof(float);
	if (in->bytes != want)
		return p->host->fail(err, GRADCOMP_ERR_INTERNAL, "powersgd: round %u of bucket %u brought %llu bytes, not %llu",
		                     round, work->bucket->index, (unsigned long long)in->bytes,
		                     (unsigned long long)want);
	int last = round || !end.second;
	end = (place){0};
	for (uint32_t i = 0; i < work->bucket->ntensors; i++) {
		place_next(p, work->bucket->first + i, work->step, &at, &end);
		if (!round)
			decode_first(p, work, i, at, in->data);
		if (last)
			decode_last(p, work, i, at, in->data);
	}
	return GRADCOMP_OK;
}

/* The saved state: this header, then Q of all compressed tensors, in the byte
 * order of the machine. */
typedef struct saved {
	char magic[8];
	uint32_t version, warm;
	uint64_t floats, shapes;
} saved;

static saved header(const powersgd *p)
{
	saved s = {.magic = "powersgd", .version = 1, .warm = (uint32_t)p->warm, .floats = p->q_floats,
	           .shapes = 14695981039346656037u};
	for (uint32_t i = 0; i < p->layout->ntensors; i++) {
		const uint64_t dims[] = {p->tensors[i].n, p->tensors[i].m, p->tensors[i].r};
		for (int k = 0; k < 3; k++)
			s.shapes = (s.shapes ^ dims[k]) * 1099511628211u;
	}
	return s;
}

static gradcomp_status powersgd_save(void *instance, void *out, uint64_t capacity, uint64_t *bytes,
                                     gradcomp_error *err)
{
	const powersgd *p = instance;
	saved s = header(p);
	*bytes = sizeof s + p->q_floats * sizeof *p->Q;
	if (!out)
		return GRADCOMP_OK;
	if (capacity < *bytes)
		return p->host->fail(err, GRADCOMP_ERR_INVALID, "powersgd: state needs %llu bytes, there is room for %llu",
		                     (unsigned long long)*bytes, (unsigned long long)capacity);
	memcpy(out, &s, sizeof s);
	if (p->Q)
		memcpy((char *)out + sizeof s, p->Q, p->q_floats * sizeof *p->Q);
	return GRADCOMP_OK;
}

static gradcomp_status powersgd_load(void *instance, const void *in, uint64_t bytes, gradcomp_error *err)
{
	powersgd *p = instance;
	saved want = header(p), got;
	uint64_t total = sizeof want + p->q_floats * sizeof *p->Q;
	if (bytes < sizeof got)
		return p->host->fail(err, GRADCOMP_ERR_INVALID, "powersgd: a state of %llu bytes is cut short",
		                     (unsigned long long)bytes);
	memcpy(&got, in, sizeof got);
	if (memcmp(got.magic, want.magic, sizeof got.magic))
		return p->host->fail(err, GRADCOMP_ERR_INVALID, "powersgd: this is not a state of powersgd");
	if (got.version != want.version)
		return p->host->fail(err, GRADCOMP_ERR_UNSUPPORTED, "powersgd: state of version %u, this plugin reads %u",
		                     got.version, want.version);
	if (got.shapes != want.shapes || got.floats != want.floats || got.warm != want.warm || bytes != total)
		return p->host->fail(err, GRADCOMP_ERR_MISMATCH,
		                     "powersgd: state of another model or other parameters (%llu floats in %llu bytes, "
		                     "this one has %llu in %llu)", (unsigned long long)got.floats,
		                     (unsigned long long)bytes, (unsigned long long)want.floats,
		                     (unsigned long long)total);
	if (p->Q)
		memcpy(p->Q, (const char *)in + sizeof got, p->q_floats * sizeof *p->Q);
	return GRADCOMP_OK;
}

static gradcomp_status powersgd_cost(void *instance, const gradcomp_bucket *bucket, uint64_t step,
                                     gradcomp_cost *cost, gradcomp_error *err)
{
	const powersgd *p = instance;
	place at, end = {0};
	(void)err;
	for (uint32_t i = 0; i < bucket->ntensors; i++) {
		const matrix *t = &p->tensors[bucket->first + i];
		place_next(p, bucket->first + i, step, &at, &end);
		if (!whole(p, t, step))
			cost->flops += 8.0 * (double)t->n * (double)t->m * (double)t->r;
	}
	cost->rounds = end.second ? 2 : 1;
	cost->wire_bytes = 4.0 * ((double)end.first + (double)end.second);
	cost->passes = 5;
	return GRADCOMP_OK;
}

GRADCOMP_EXPORT const struct gradcomp_compressor_v1 gradcomp_compressor_v1 = {
	.info = {
		.abi_version = GRADCOMP_ABI_VERSION,
		.struct_size = sizeof gradcomp_compressor_v1,
		.name = "powersgd",
		.version = "1.0",
		.summary = "low-rank factors by one warm-started power iteration a step",
		.licence = "MIT",
		.params = params,
		.nparams = sizeof params / sizeof params[0],
	},
	.traits = GRADCOMP_TRAIT_ERROR_FEEDBACK | GRADCOMP_TRAIT_SHAPED,
	.patterns = GRADCOMP_PATTERN_BIT(GRADCOMP_SUMMED),
	.create = powersgd_create,
	.destroy = powersgd_destroy,
	.plan = powersgd_plan,
	.encode = powersgd_encode,
	.decode = powersgd_decode,
	.save = powersgd_save,
	.load = powersgd_load,
	.cost = powersgd_cost,
};
