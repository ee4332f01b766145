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
 * Payload: of all chunks the coefficients (F32), then their places in their chunks, row by row (16
 * bits, ascending), padded to 4 bytes: 6 bytes for each of min(k, numbers of the chunk). */
#include <math.h>
#include <string.h>

#include "gradcomp/compressor.h"

#include "gradcomp/sdk/payload.h"
#include "gradcomp/sdk/scratch.h"

enum { CHUNK, K, DECAY, SIGN };
enum { LONGEST = 64 }; /* of what the products take */

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
};

typedef struct demo {
	const gradcomp_host *host;
	const gradcomp_layout *layout;
	uint64_t chunk, k;
	float decay;
	int sign;
	/* Of the transforms of 1, 2, ... chunk numbers, n x n: number j of coefficient b, at [j][b] and
	 * at [b][j]. */
	float *bases, *waves;
} demo;

/* cos(pi t / (2 n)), 0 <= t < 4 n, by its series: ranks on other machines need the same bits, which
 * no C library promises. */
static double cosine(uint64_t t, uint64_t n)
{
	t = t > 2 * n ? 4 * n - t : t;
	double x = 3.14159265358979323846 / 2 * (double)(t > n ? 2 * n - t : t) / (double)n, term = 1, sum = 1;
	for (int i = 2; i <= 26; i += 2) {
		term *= -(x * x) / (i * (i - 1));
		sum += term;
	}
	return t > n ? -sum : sum;
}

/* Floats of the transforms of fewer than n numbers. */
static uint64_t before(uint64_t n)
{
	return (n - 1) * n * (2 * n - 1) / 6;
}

static const float *basis(const demo *p, uint64_t n)
{
	return p->bases + before(n);
}

static void demo_destroy(void *instance)
{
	demo *p = instance;
	if (!p)
		return;
	p->host->release(p->bases);
	p->host->release(p->waves);
	p->host->release(p);
}

static gradcomp_status demo_create(const gradcomp_host *host, const gradcomp_value *values,
                                   const gradcomp_layout *layout, void **instance, gradcomp_error *err)
{
	demo *p = host->alloc(sizeof *p);
	if (!p)
		return host->fail(err, GRADCOMP_ERR_NOMEM, "demo: no memory");
	*p = (demo){.host = host, .layout = layout, .chunk = (uint64_t)values[CHUNK].i, .k = (uint64_t)values[K].i,
	            .decay = (float)values[DECAY].f, .sign = values[SIGN].i != 0};
	p->bases = host->alloc(before(p->chunk + 1) * sizeof *p->bases);
	p->waves = host->alloc(before(p->chunk + 1) * sizeof *p->waves);
	if (!p->bases || !p->waves) {
		demo_destroy(p);
		return host->fail(err, GRADCOMP_ERR_NOMEM, "demo: no memory for transforms of %llu numbers",
		                  (unsigned long long)values[CHUNK].i);
	}
	for (uint64_t n = 1; n <= p->chunk; n++)
		for (uint64_t j = 0; j < n; j++)
			for (uint64_t b = 0; b < n; b++) {
				double length = sqrt((b ? 2.0 : 1.0) / (double)n);
				p->bases[before(n) + j * n + b] = p->waves[before(n) + b * n + j] =
					(float)(length * cosine((2 * j + 1) * b % (4 * n), n));
			}
	*instance = p;
	return GRADCOMP_OK;
}

/* A chunk of a bucket; begins as {0}, and next() goes on. */
typedef struct place {
	uint32_t tensor; /* of the bucket, the one that comes next */
	uint64_t n, m, start, row, column; /* of the tensor, and where the chunk is in it */
	uint64_t at, rows, columns, k; /* of the chunk: where it begins in the bucket */
	uint64_t sent;                 /* coefficients of those before it */
} place;

static uint64_t least(uint64_t a, uint64_t b)
{
	return a < b ? a : b;
}

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
		const gradcomp_tensor *t = &p->layout->tensors[bucket->first + c->tensor++];
		c->n = t->ndim > 1 && t->numel ? t->dims[0] : t->numel > 0;
		c->m = c->n ? t->numel / c->n : 0;
		c->start = t->offset - bucket->offset;
		c->row = c->column = 0;
	}
	c->at = c->start + c->row * c->m + c->column;
	c->rows = least(p->chunk, c->n - c->row);
	c->columns = least(p->chunk, c->m - c->column);
	c->k = least(p->k, c->rows * c->columns);
	return 1;
}

static uint64_t coefficients(const demo *p, const gradcomp_bucket *bucket)
{
	place c = {0};
	while (next(p, bucket, &c))
		;
	return c.sent;
}

static uint64_t payload_bytes(uint64_t sent)
{
	return sent * sizeof(float) + (sent * sizeof(uint16_t) + 3) / 4 * 4;
}

static uint16_t *places_in(const gradcomp_payload *payload, uint64_t sent)
{
	return (uint16_t *)(void *)((float *)payload->data + sent);
}

/* Scratch: chunks in a row each, and what choosing takes. */
typedef struct rooms {
	float *u, *left, *a, *b, *c, *largest;
	uint32_t *chosen;
	void *operator_scratch;
} rooms;

static rooms divide(const demo *p, sdk_scratch *scratch)
{
	uint64_t one = p->chunk * p->chunk * sizeof(float);
	rooms r = {.u = sdk_scratch_take(scratch, one)};
	r.left = sdk_scratch_take(scratch, one);
	r.a = sdk_scratch_take(scratch, one);
	r.b = sdk_scratch_take(scratch, one);
	r.c = sdk_scratch_take(scratch, one);
	r.largest = sdk_scratch_take(scratch, one);
	r.chosen = sdk_scratch_take(scratch, one);
	r.operator_scratch = sdk_scratch_take(scratch, 0);
	return r;
}

static rooms rooms_of(const demo *p, const gradcomp_work *work)
{
	return divide(p, &(sdk_scratch){.memory = work->scratch});
}

static gradcomp_status demo_plan(void *instance, const gradcomp_bucket *bucket, uint64_t step, gradcomp_plan *plan,
                                 gradcomp_error *err)
{
	const demo *p = instance;
	uint64_t choose = 0;
	sdk_scratch scratch = {0};
	(void)step, (void)err;
	for (place c = {0}; next(p, bucket, &c);) {
		uint64_t bytes = p->host->operators->topk_scratch(c.rows * c.columns, c.k);
		choose = choose > bytes ? choose : bytes;
	}
	plan->nrounds = 1;
	plan->rounds[0] = sdk_gathered_round(payload_bytes(coefficients(p, bucket)));
	divide(p, &scratch);
	plan->scratch_bytes = scratch.bytes + choose;
	return GRADCOMP_OK;
}

/* u = decay m + g of a chunk. */
static void momentum(const demo *p, const gradcomp_work *work, const place *c, float *u)
{
	for (uint64_t i = 0; i < c->rows; i++) {
		const float *g = work->flat + c->at + i * c->m, *m = work->state[0] + c->at + i * c->m;
		for (uint64_t j = 0; j < c->columns; j++)
			u[i * c->columns + j] = p->decay * m[j] + g[j];
	}
}

static gradcomp_status demo_encode(void *instance, const gradcomp_work *work, uint32_t round, gradcomp_payload *out,
                                   gradcomp_error *err)
{
	const demo *p = instance;
	const gradcomp_operators *op = work->operators;
	const float limit = 1e32f; /* so that no sum of a chunk overflows; the rest stays in m */
	uint64_t sent = coefficients(p, work->bucket);
	rooms r = rooms_of(p, work);
	float *to = out->data;
	uint16_t *where = places_in(out, sent);
	(void)round, (void)err;
	for (place c = {0}; next(p, work->bucket, &c);) {
		momentum(p, work, &c, r.u);
		op->clamp(work->queue, r.u, r.u, &limit, c.rows * c.columns);
		op->product_mq(work->queue, r.a, r.u, basis(p, c.columns), c.rows, c.columns, c.columns);
		op->product_mtp(work->queue, r.b, basis(p, c.rows), r.a, c.rows, c.rows, c.columns);
		op->topk(work->queue, r.chosen, r.largest, r.b, c.rows * c.columns, c.k, r.operator_scratch);
		memcpy(to + c.sent, r.largest, c.k * sizeof *to);
		for (uint64_t j = 0; j < c.k; j++)
			where[c.sent + j] = (uint16_t)r.chosen[j];
	}
	if (sent % 2)
		where[sent] = 0;
	out->bytes = payload_bytes(sent);
	return GRADCOMP_OK;
}

static gradcomp_status verify(const demo *p, const gradcomp_work *work, const gradcomp_payload *in, uint32_t n,
                              uint64_t sent, gradcomp_error *err)
{
	gradcomp_status st = sdk_gathered_expect(p->host, p->layout, "demo", work, in, n, payload_bytes(sent), err);
	for (uint32_t w = 0; w < n && !st; w++) {
		const uint16_t *where = places_in(&in[w], sent);
		int bad = 0, wild = 0;
		work->operators->nonfinite(work->queue, in[w].data, sent, &wild);
		for (place c = {0}; next(p, work->bucket, &c);)
			for (uint64_t j = 0; j < c.k; j++)
				bad |= where[c.sent + j] >= c.rows * c.columns ||
				       (j && where[c.sent + j] <= where[c.sent + j - 1]);
		if (bad || wild)
			st = sdk_gathered_refuse(p->host, "demo", work, w,
			                         bad ? "places that do not ascend within a chunk" : "coefficients that are not finite", err);
	}
	return st;
}

/* out (columns x rows): the rows of coefficients transformed back, those of one rank or the mean of
 * n. Coefficients are few: each adds its wave to its row, in `room`. */
static void rows_back(const demo *p, const gradcomp_payload *in, uint32_t n, uint64_t sent, const place *at, float *room,
                      float *out)
{
	uint64_t columns = at->columns;
	memset(room, 0, at->rows * columns * sizeof *room);
	for (uint32_t w = 0; w < n; w++) {
		const float *value = (const float *)in[w].data + at->sent;
		const uint16_t *where = places_in(&in[w], sent) + at->sent;
		for (uint64_t i = 0; i < at->k; i++) {
			float a = 1.0f / (float)n * value[i], *row = room + where[i] / columns * columns;
			const float *wave = p->waves + before(columns) + where[i] % columns * columns;
			for (uint64_t j = 0; j < columns; j++)
				row[j] += a * wave[j];
		}
	}
	for (uint64_t i = 0; i < at->rows; i++)
		for (uint64_t j = 0; j < columns; j++)
			out[j * at->rows + i] = room[i * columns + j];
}

static gradcomp_status demo_decode(void *instance, const gradcomp_work *work, uint32_t round,
                                   const gradcomp_payload *in, uint32_t n, gradcomp_error *err)
{
	const demo *p = instance;
	uint64_t sent = coefficients(p, work->bucket);
	rooms r = rooms_of(p, work);
	gradcomp_status st = verify(p, work, in, n, sent, err);
	(void)round;
	if (st)
		return st;
	for (place c = {0}; next(p, work->bucket, &c);) {
		momentum(p, work, &c, r.u);
		rows_back(p, &in[p->layout->rank], 1, sent, &c, r.c, r.a);
		rows_back(p, in, n, sent, &c, r.c, r.b);
		work->operators->low_rank_finish(work->queue, r.u, r.left, basis(p, c.rows), r.a, r.b, c.rows, c.columns,
		                                 c.rows);
		for (uint64_t i = 0; i < c.rows; i++) {
			float *x = work->flat + c.at + i * c.m;
			memcpy(work->state[0] + c.at + i * c.m, r.left + i * c.columns, c.columns * sizeof *x);
			memcpy(x, r.u + i * c.columns, c.columns * sizeof *x);
			for (uint64_t j = 0; p->sign && j < c.columns; j++)
				x[j] = (float)((x[j] > 0) - (x[j] < 0));
		}
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
	.traits = GRADCOMP_TRAIT_OWN_MOMENTUM,
	.patterns = GRADCOMP_PATTERN_BIT(GRADCOMP_GATHERED),
	.state_arrays = 1,
	.create = demo_create,
	.destroy = demo_destroy,
	.plan = demo_plan,
	.encode = demo_encode,
	.decode = demo_decode,
	.cost = demo_cost,
};
