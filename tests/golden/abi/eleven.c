/* eleven: everything is sent, by the operators of ABI 1 and 2 that came to an end with ABI 3. Not to be changed: what
 * it is built with are the headers beside it.
 *
 * Each of the eleven is tried on small data, of the host's table when an instance is made and of the work's in each
 * encode(); one that is wrong is named and fails the call. What is sent is sent by compact(). */
#include <gradcomp/compressor.h>

#include <math.h>
#include <string.h>

enum { N = 12, COLUMNS = 4, RANK = 2 };

typedef struct eleven {
	const gradcomp_host *host;
} eleven;

static int near(const float *a, const float *b, size_t n)
{
	for (size_t i = 0; i < n; i++)
		if (!(fabsf(a[i] - b[i]) < 1e-4f))
			return 0;
	return 1;
}

static int orthonormal(const float *A, size_t n)
{
	float g[RANK * RANK] = {0};
	const float unit[RANK * RANK] = {1, 0, 0, 1};
	for (size_t i = 0; i < n; i++)
		for (int a = 0; a < RANK; a++)
			for (int b = 0; b < RANK; b++)
				g[a * RANK + b] += A[i * RANK + a] * A[i * RANK + b];
	return near(g, unit, RANK * RANK);
}

/* M is 3 x 4: its rows are 1 to 4, 5 to 8, 9 to 12. */
static const char *low_rank(const gradcomp_operators *op)
{
	const float M[N] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12}, Q[COLUMNS * RANK] = {1, 0, 0, 1, 1, 0, 0, 1};
	const float MQ[3 * RANK] = {4, 6, 12, 14, 20, 22}, MtP[COLUMNS * RANK] = {244, 274, 280, 316, 316, 358, 352, 400};
	const float PQ[N] = {4, 6, 4, 6, 12, 14, 12, 14, 20, 22, 20, 22};
	const float left[N] = {-3, -4, -1, -2, -7, -8, -5, -6, -11, -12, -9, -10};
	float P[3 * RANK], T[COLUMNS * RANK], X[N], E[N];
	float *both[2];
	op->product_mq(NULL, P, M, Q, 3, COLUMNS, RANK);
	if (!near(P, MQ, 3 * RANK))
		return "product_mq";
	op->product_mtp(NULL, T, M, P, 3, COLUMNS, RANK);
	if (!near(T, MtP, COLUMNS * RANK))
		return "product_mtp";
	memcpy(X, M, sizeof X);
	op->low_rank_finish(NULL, X, E, P, Q, Q, 3, COLUMNS, RANK);
	if (!near(X, PQ, N) || !near(E, left, N))
		return "low_rank_finish";
	op->orthonormalise(NULL, P, 3, RANK);
	if (!orthonormal(P, 3))
		return "orthonormalise";
	both[0] = T;
	both[1] = X;
	op->orthonormalise_batch(NULL, both, 2, COLUMNS, RANK);
	return orthonormal(T, COLUMNS) && orthonormal(X, COLUMNS) ? NULL : "orthonormalise_batch";
}

static const char *vectors(const gradcomp_operators *op)
{
	const float x[N] = {1, -2, 3, -4, 5, -6, 7, -8, 8, -8, 0, 0.5f}, most = 8, seven = 7;
	float u[2 * N], again[N], val[3] = {0}, kth = 0;
	uint32_t counts[GRADCOMP_HISTOGRAM_BINS], idx[3] = {0}, all = 0;
	uint64_t count = 0;
	double total = 0;
	char scratch[1 << 16] __attribute__((aligned(64)));
	if (op->topk_scratch(N, 3) > sizeof scratch || op->sum_scratch(N) > sizeof scratch)
		return "topk_scratch";
	op->random_uniform(NULL, u, 2 * N, 7, 8, 3);
	op->random_uniform(NULL, again, N, 7, 8, 3 + N);
	for (int i = 0; i < 2 * N; i++)
		if (!(u[i] >= 0 && u[i] < 1))
			return "random_uniform";
	/* The first block of Philox4x32-10 with counter and key of zeroes: 0x6627e8d5, 0xe169c58d, ... */
	op->random_uniform(NULL, u, 2, 0, 0, 0);
	if (memcmp(u + N, again, sizeof again) || u[0] != (float)0x6627e8 / 0x1000000 || u[1] != (float)0xe169c5 / 0x1000000)
		return "random_uniform";
	op->sum(NULL, &total, x, N, scratch);
	if (total != -3.5)
		return "sum";
	op->histogram(NULL, counts, x, N);
	for (int i = 0; i < GRADCOMP_HISTOGRAM_BINS; i++)
		all += counts[i];
	if (all != N || counts[0] != 1 || counts[0x41000000 >> 19] != 3)
		return "histogram";
	op->kth_magnitude(NULL, &kth, x, N, 4, scratch);
	if (kth != 7)
		return "kth_magnitude";
	op->count_above(NULL, &count, x, N, &seven);
	if (count != 4)
		return "count_above";
	op->compact(NULL, idx, val, &count, x, N, &seven, 3, scratch);
	if (count != 3 || idx[0] != 7 || idx[1] != 8 || idx[2] != 9 || val[0] != -8 || val[1] != 8)
		return "compact";
	op->compact(NULL, idx, val, &count, x, N, &most, 2, scratch);
	return count == 2 && idx[0] == 7 && idx[1] == 8 ? NULL : "compact";
}

static gradcomp_status try_all(const gradcomp_host *host, const gradcomp_operators *op, gradcomp_error *err)
{
	const char *wrong = op->struct_size < sizeof *op ? "struct_size" : low_rank(op);
	if (!wrong)
		wrong = vectors(op);
	return wrong ? host->fail(err, GRADCOMP_ERR_INTERNAL, "eleven: %s is wrong", wrong) : GRADCOMP_OK;
}

static gradcomp_status create(const gradcomp_host *host, const gradcomp_value *values, const gradcomp_layout *layout,
                              void **instance, gradcomp_error *err)
{
	gradcomp_status st = try_all(host, host->operators, err);
	eleven *e = st ? NULL : host->alloc(sizeof *e);
	(void)values, (void)layout;
	if (st)
		return st;
	if (!e)
		return host->fail(err, GRADCOMP_ERR_NOMEM, "eleven: no memory");
	e->host = host;
	*instance = e;
	return GRADCOMP_OK;
}

static void destroy(void *instance)
{
	if (instance)
		((eleven *)instance)->host->release(instance);
}

static gradcomp_status plan(void *instance, const gradcomp_bucket *bucket, uint64_t step, gradcomp_plan *plan,
                            gradcomp_error *err)
{
	(void)instance, (void)step, (void)err;
	plan->nrounds = 1;
	plan->rounds[0] = (gradcomp_round){.pattern = GRADCOMP_SUMMED, .dtype = GRADCOMP_F32, .flags = GRADCOMP_ROUND_MEAN,
	                                   .count = bucket->numel};
	plan->scratch_bytes = 4 * bucket->numel;
	return GRADCOMP_OK;
}

static gradcomp_status encode(void *instance, const gradcomp_work *work, uint32_t round, gradcomp_payload *out,
                              gradcomp_error *err)
{
	const eleven *e = instance;
	const uint64_t n = work->bucket->numel;
	const float least = 0;
	uint64_t count = 0;
	gradcomp_status st = try_all(e->host, work->operators, err);
	(void)round;
	if (st)
		return st;
	work->operators->compact(NULL, work->scratch, out->data, &count, work->flat, n, &least, n, NULL);
	out->bytes = 4 * n;
	return count == n ? GRADCOMP_OK : e->host->fail(err, GRADCOMP_ERR_INTERNAL, "eleven: compact is wrong");
}

static gradcomp_status decode(void *instance, const gradcomp_work *work, uint32_t round, const gradcomp_payload *in,
                              uint32_t n, gradcomp_error *err)
{
	(void)instance, (void)round, (void)n, (void)err;
	work->operators->copy(NULL, work->flat, in->data, 4 * work->bucket->numel);
	return GRADCOMP_OK;
}

GRADCOMP_EXPORT const struct gradcomp_compressor_v1 gradcomp_compressor_v1 = {
	.info = {.abi_version = GRADCOMP_ABI_VERSION, .struct_size = sizeof gradcomp_compressor_v1, .name = "eleven",
	         .version = "1.0", .summary = "everything, by operators of ABI 1", .licence = "MIT"},
	.patterns = GRADCOMP_PATTERN_BIT(GRADCOMP_SUMMED),
	.create = create, .destroy = destroy, .plan = plan, .encode = encode, .decode = decode,
};
