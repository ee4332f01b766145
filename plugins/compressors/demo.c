/* demo: decoupled momentum. Each rank keeps a momentum of its own, sends the largest components
 * of its cosine transform, and takes what it sent out of it (Peng, Quesnelle, Kingma: DeMo:
 * decoupled momentum optimization, arXiv 2411.19870, 2024). The optimizer must apply no momentum.
 *
 *     m := decay m + g
 *     q = the k largest coefficients of the DCT-II of each chunk of m
 *     m := m - DCT^-1(q)            average = DCT^-1(mean over ranks of q)
 *
 * and with sign=yes its sign, as in the paper. A tensor is a matrix, its first dimension by the
 * product of the others, or one row; chunks are its squares of chunk x chunk numbers, smaller
 * ones at its ends. The transform is orthonormal, in both directions. What is not sent stays in
 * m, the state array, which is the error memory, too: with decay=1 nothing is lost.
 *
 * With form=published it is the authors' program: a coefficient is the mean of those ranks that sent it, so that
 * the average is no mean over all ranks, and the sides of chunks are the largest divisors
 * of the matrix's up to `chunk`.
 *
 * Payload: of all chunks the coefficients (F32), then their places in their chunks, row by row (16
 * bits, ascending), padded to 4 bytes: 6 bytes for each of min(k, numbers of the chunk). */
#include <float.h>

#include "gradcomp/compressor.h"

#include "gradcomp/sdk/payload.h"

enum { CHUNK, K, DECAY, SIGN, FORM };
enum { CONSERVING, PUBLISHED };
enum { LONGEST = 64 }; /* dct_topk() takes no longer ones */

static const char *const forms[] = {[CONSERVING] = "conserving", [PUBLISHED] = "published", NULL};

static const gradcomp_param params[] = {
	[CHUNK] = {.name = "chunk",
                   .type = GRADCOMP_PARAM_INT,
                   .def = "64",
                   .min = 2,
                   .max = LONGEST,
                   .help = "rows and columns of a chunk"},
	[K] = {.name = "k",
               .type = GRADCOMP_PARAM_INT,
               .def = "32",
               .min = 1,
               .max = LONGEST * LONGEST,
               .help = "coefficients of a chunk that are sent"},
	[DECAY] = {.name = "decay",
                   .type = GRADCOMP_PARAM_FLOAT,
                   .def = "0.999",
                   .min = 0,
                   .max = 1,
                   .help = "what remains of the momentum after a step"},
	[SIGN] = {.name = "sign", .type = GRADCOMP_PARAM_BOOL, .def = "no", .help = "give the optimizer signs"},
	[FORM] = {.name = "form",
                  .type = GRADCOMP_PARAM_CHOICE,
                  .def = "conserving",
                  .choices = forms,
                  .help = "divide a coefficient by all ranks, or as the paper's authors do by those that sent it"},
};

typedef struct demo {
	const gradcomp_host *host;
	const gradcomp_layout *layout;
	uint64_t chunk, k;
	float decay;
	int sign, published;
	/* These are one call's: its tensors as matrices, and what ranks sent. */
	gradcomp_matrix *matrices;
	gradcomp_coefficients *sent;
} demo;

static void demo_destroy(void *instance)
{
	demo *p = instance;
	if (!p)
		return;
	p->host->release(p->matrices);
	p->host->release(p->sent);
	p->host->release(p);
}

static gradcomp_status demo_create(const gradcomp_host *host, const gradcomp_value *values,
                                   const gradcomp_layout *layout, void **instance, gradcomp_error *err)
{
	demo *p;
	/* One call of dct_back() counts how many ranks sent a coefficient. */
	if (values[FORM].i == PUBLISHED && layout->device != GRADCOMP_HOST && layout->nranks > GRADCOMP_DCT_RANKS)
		return host->fail(err, GRADCOMP_ERR_UNSUPPORTED,
		                  "demo: form=published takes at most %d ranks on a device, not %d", GRADCOMP_DCT_RANKS,
		                  layout->nranks);
	p = host->alloc(sizeof *p);
	if (!p)
		return host->fail(err, GRADCOMP_ERR_NOMEM, "demo: no memory");
	*p = (demo){.host = host,
	            .layout = layout,
	            .chunk = (uint64_t)values[CHUNK].i,
	            .k = (uint64_t)values[K].i,
	            .decay = (float)values[DECAY].f,
	            .sign = values[SIGN].i != 0,
	            .published = values[FORM].i == PUBLISHED};
	p->matrices = host->alloc((layout->ntensors + 1) * sizeof *p->matrices);
	p->sent = host->alloc((size_t)layout->nranks * sizeof *p->sent);
	if (!p->matrices || !p->sent) {
		demo_destroy(p);
		return host->fail(err, GRADCOMP_ERR_NOMEM, "demo: no memory for %u tensors", layout->ntensors);
	}
	*instance = p;
	return GRADCOMP_OK;
}

static void shape(const gradcomp_tensor *t, uint64_t *n, uint64_t *m)
{
	*n = t->ndim > 1 && t->numel ? t->dims[0] : t->numel > 0;
	*m = *n ? t->numel / *n : 0;
}

/* The bucket's tensors in `x`, which is as work->flat. */
static const gradcomp_matrix *matrices(const demo *p, const gradcomp_bucket *bucket, float *x)
{
	for (uint32_t i = 0; i < bucket->ntensors; i++) {
		const gradcomp_tensor *t = &p->layout->tensors[bucket->first + i];
		p->matrices[i].x = x + (t->offset - bucket->offset);
		shape(t, &p->matrices[i].n, &p->matrices[i].m);
	}
	return p->matrices;
}

static uint64_t least(uint64_t a, uint64_t b)
{
	return a < b ? a : b;
}

/* Returns how long the chunks are along a side of a matrix that is `length` long. */
static uint64_t side(const demo *p, uint64_t length)
{
	uint64_t s = p->chunk;
	while (p->published && length > p->chunk && s > 1 && length % s)
		s--;
	return s;
}

/* A chunk of a bucket; begins as {0}, and next() goes on. */
typedef struct place {
	uint32_t tensor;                  /* the bucket's tensor that comes next */
	uint64_t n, m, row, column;       /* the tensor's, and where the chunk is in it */
	uint64_t most_rows, most_columns; /* the largest of the tensor's chunks */
	uint64_t rows, columns, k;        /* the chunk's */
	uint64_t sent;                    /* coefficients of those before it */
} place;

static int next(const demo *p, const gradcomp_bucket *bucket, place *c)
{
	c->sent += c->k;
	c->column += c->columns;
	if (c->column >= c->m) {
		c->column = 0;
		c->row += c->rows;
	}
	while (c->row >= c->n) {
		if (c->tensor == bucket->ntensors)
			return 0;
		shape(&p->layout->tensors[bucket->first + c->tensor++], &c->n, &c->m);
		c->most_rows = side(p, c->n);
		c->most_columns = side(p, c->m);
		c->row = c->column = 0;
	}
	c->rows = least(c->most_rows, c->n - c->row);
	c->columns = least(c->most_columns, c->m - c->column);
	c->k = least(p->k, c->rows * c->columns);
	return 1;
}

/* Counts the coefficients of a row of chunks that has `rows` rows. */
static uint64_t band(const demo *p, uint64_t rows, uint64_t columns, uint64_t m)
{
	return m / columns * least(p->k, rows * columns) + least(p->k, rows * (m % columns));
}

/* Tensors of a bucket whose chunks have the same sides, which go together; begins as {0}, and next_batch() goes on. */
typedef struct batch {
	uint32_t first, count; /* the bucket's */
	uint32_t sides;        /* in the form that operators take */
	uint64_t before, sent; /* coefficients of others, and of these */
} batch;

static int next_batch(const demo *p, const gradcomp_bucket *bucket, batch *b)
{
	*b = (batch){.first = b->first + b->count, .before = b->before + b->sent};
	for (; b->first + b->count < bucket->ntensors; b->count++) {
		uint64_t n, m, rows, columns;
		shape(&p->layout->tensors[bucket->first + b->first + b->count], &n, &m);
		rows = side(p, n);
		columns = side(p, m);
		uint32_t sides = rows == columns ? (uint32_t)rows : GRADCOMP_DCT_SIDES(rows, columns);
		if (b->count && sides != b->sides)
			break;
		b->sides = sides;
		b->sent += n / rows * band(p, rows, columns, m) + band(p, n % rows, columns, m);
	}
	return b->count > 0;
}

static uint64_t coefficients(const demo *p, const gradcomp_bucket *bucket)
{
	batch b = {0};
	while (next_batch(p, bucket, &b))
		;
	return b.before;
}

static uint64_t payload_bytes(uint64_t sent)
{
	return sent * sizeof(float) + (sent * sizeof(uint16_t) + 3) / 4 * 4;
}

static uint16_t *places_in(const gradcomp_payload *payload, uint64_t sent)
{
	return (uint16_t *)(void *)((float *)payload->data + sent);
}

static gradcomp_status demo_plan(void *instance, const gradcomp_bucket *bucket, uint64_t step, gradcomp_plan *plan,
                                 gradcomp_error *err)
{
	const demo *p = instance;
	(void)step, (void)err;
	plan->nrounds = 1;
	plan->rounds[0] = sdk_gathered_round(payload_bytes(coefficients(p, bucket)));
	plan->scratch_bytes = bucket->numel * sizeof(float);
	return GRADCOMP_OK;
}

/* m = decay m + g */
static void accumulate(const demo *p, const gradcomp_work *work, float *m)
{
	work->operators->scale(work->queue, m, p->decay, work->bucket->numel);
	work->operators->add(work->queue, m, work->flat, work->bucket->numel);
}

static gradcomp_status demo_encode(void *instance, const gradcomp_work *work, uint32_t round, gradcomp_payload *out,
                                   gradcomp_error *err)
{
	const demo *p = instance;
	const gradcomp_operators *op = work->operators;
	const gradcomp_bucket *b = work->bucket;
	uint64_t sent = coefficients(p, b);
	uint16_t *where = places_in(out, sent);
	float *m = work->scratch;
	(void)round;
	op->copy(work->queue, m, work->state[0], b->numel * sizeof *m);
	accumulate(p, work, m);
	/* The numbers that are taken out of m leave it finite. */
	gradcomp_status st = sdk_overflow(p->host, "demo", work, m, b->numel, FLT_MAX / 2, err);
	if (st)
		return st;
	/* The padding is sent, too. */
	if (sent % 2)
		op->fill(work->queue, (float *)(void *)(where + sent - 1), 0, 1);
	const gradcomp_matrix *t = matrices(p, b, m);
	for (batch s = {0}; next_batch(p, b, &s);)
		op->dct_topk(work->queue, (float *)out->data + s.before, where + s.before, t + s.first, s.count,
		             s.sides, (uint32_t)p->k);
	out->bytes = payload_bytes(sent);
	return GRADCOMP_OK;
}

/* On the host, which can name the rank; on a device dct_back() looks. */
static gradcomp_status verify(const demo *p, const gradcomp_work *work, const gradcomp_payload *in, uint32_t n,
                              uint64_t sent, gradcomp_error *err)
{
	gradcomp_status st = sdk_gathered_expect(p->host, p->layout, "demo", work, in, n, payload_bytes(sent), err);
	for (uint32_t w = 0; w < n && !st && work->device == GRADCOMP_HOST; w++) {
		const uint16_t *where = places_in(&in[w], sent);
		int bad = 0, wild = 0;
		work->operators->nonfinite(work->queue, in[w].data, sent, &wild);
		for (place c = {0}; next(p, work->bucket, &c);)
			for (uint64_t j = 0; j < c.k; j++)
				bad |= where[c.sent + j] >= c.rows * c.columns ||
				       (j && where[c.sent + j] <= where[c.sent + j - 1]);
		if (bad || wild)
			st = sdk_gathered_refuse(p->host, "demo", work, w,
			                         bad ? "places that do not ascend within a chunk"
			                             : "coefficients that are not finite",
			                         err);
	}
	return st;
}

/* Transforms what some ranks sent back into x. */
static void back(const demo *p, const gradcomp_work *work, float *x, const gradcomp_payload *in, uint32_t ranks,
                 float a, uint32_t flags, int *fault)
{
	const uint64_t sent = coefficients(p, work->bucket);
	const gradcomp_matrix *t = matrices(p, work->bucket, x);
	for (batch s = {0}; next_batch(p, work->bucket, &s);) {
		for (uint32_t w = 0; w < ranks; w++)
			p->sent[w] = (gradcomp_coefficients){(float *)in[w].data + s.before,
			                                     places_in(&in[w], sent) + s.before};
		work->operators->dct_back(work->queue, t + s.first, s.count, s.sides, (uint32_t)p->k, p->sent, ranks, a,
		                          flags, fault);
	}
}

static gradcomp_status demo_decode(void *instance, const gradcomp_work *work, uint32_t round,
                                   const gradcomp_payload *in, uint32_t n, gradcomp_error *err)
{
	const demo *p = instance;
	const uint32_t most = p->published ? n : GRADCOMP_DCT_RANKS;
	int mine = 0, *fault = sdk_gathered_fault(work, &mine);
	gradcomp_status st = verify(p, work, in, n, coefficients(p, work->bucket), err);
	(void)round;
	if (st)
		return st;
	accumulate(p, work, work->state[0]);
	back(p, work, work->state[0], &in[p->layout->rank], 1, -1, GRADCOMP_DCT_ADD, fault);
	for (uint32_t w = 0; w < n; w += most) {
		uint32_t ranks = n - w < most ? n - w : most;
		uint32_t flags = (p->published ? GRADCOMP_DCT_SENDERS : 0) | (w ? GRADCOMP_DCT_ADD : 0) |
		                 (p->sign && w + ranks == n ? GRADCOMP_DCT_SIGN : 0);
		back(p, work, work->flat, in + w, ranks, p->published ? 1 : 1.0f / (float)n, flags, fault);
	}
	return GRADCOMP_OK;
}

static gradcomp_status demo_cost(void *instance, const gradcomp_bucket *bucket, uint64_t step, gradcomp_cost *cost,
                                 gradcomp_error *err)
{
	const demo *p = instance;
	(void)step, (void)err;
	cost->rounds = 1;
	cost->wire_bytes = (double)payload_bytes(coefficients(p, bucket));
	cost->passes = 6;
	cost->flops = 16.0 * (double)p->chunk * (double)bucket->numel;
	return GRADCOMP_OK;
}

static int demo_conserves(const gradcomp_value *values)
{
	return values[FORM].i != PUBLISHED;
}

GRADCOMP_EXPORT const struct gradcomp_compressor_v1 gradcomp_compressor_v1 = {
	.info =
		{
			.abi_version = GRADCOMP_ABI_VERSION,
			.struct_size = sizeof gradcomp_compressor_v1,
			.name = "demo",
			.version = "1.0",
			.summary = "the largest cosine components of each rank's momentum",
			.licence = "MIT",
			.params = params,
			.nparams = sizeof params / sizeof params[0],
		},
	.traits = GRADCOMP_TRAIT_OWN_MOMENTUM | GRADCOMP_TRAIT_CUDA,
	.patterns = GRADCOMP_PATTERN_BIT(GRADCOMP_GATHERED),
	.state_arrays = 1,
	.create = demo_create,
	.destroy = demo_destroy,
	.plan = demo_plan,
	.encode = demo_encode,
	.decode = demo_decode,
	.cost = demo_cost,
	.neutral = "decay=1,sign=no",
	.conserves = demo_conserves,
};
