/* Products with a thin matrix, by rows of the large one, and batches by matrices. */
#include "operators/split.h"

typedef struct call {
	size_t count, length; /* rows or matrices, and those of a part */
	size_t n, m, r;
	float *X, *E;
	const float *M, *P, *L, *Q;
	float *const *to, *const *rest;
	const float *const *large, *const *thin, *const *local, *const *other;
} call;

static void run(call *c, size_t count, size_t length, void (*part)(void *, size_t))
{
	c->count = count;
	c->length = length;
	operator_threads_run(part, c, split_parts(count, length));
}

/* Rows a part: so many that groups of rows stay whole. */
static size_t rows_of(size_t m)
{
	return m >= OPERATOR_PART / 8 ? 8 : OPERATOR_PART / (m ? m : 1) / 8 * 8;
}

static size_t matrices_of(size_t n, size_t m)
{
	const size_t numbers = n * m;
	return numbers >= OPERATOR_PART || !numbers ? 1 : OPERATOR_PART / numbers;
}

static void mq_part(void *arg, size_t i)
{
	const call *c = arg;
	const split_span s = split_part(c->count, c->length, i);
	float *P = c->X + s.from * c->r;
	const float *M = c->M + s.from * c->m;
	split_plain->product_mq_batch(NULL, &P, &M, &c->Q, 1, s.count, c->m, c->r, NULL);
}

static void product_mq(float *P, const float *M, const float *Q, size_t n, size_t m, size_t r)
{
	run(&(call){.X = P, .M = M, .Q = Q, .m = m, .r = r}, n, rows_of(m), mq_part);
}

static void finish_part(void *arg, size_t i)
{
	const call *c = arg;
	const split_span s = split_part(c->count, c->length, i);
	const size_t at = s.from * c->m;
	float *X = c->X + at, *E = c->E ? c->E + at : NULL;
	const float *P = c->P + s.from * c->r;
	split_plain->low_rank_finish_batch(NULL, &X, E ? &E : NULL, &P, &c->L, &c->Q, 1, s.count, c->m, c->r);
}

static void low_rank_finish(float *X, float *E, const float *P, const float *Elocal, const float *Q, size_t n, size_t m,
                            size_t r)
{
	run(&(call){.X = X, .E = E, .P = P, .L = Elocal, .Q = Q, .m = m, .r = r}, n, rows_of(m), finish_part);
}

static void mq_batch_part(void *arg, size_t i)
{
	const call *c = arg;
	const split_span s = split_part(c->count, c->length, i);
	split_plain->product_mq_batch(NULL, c->to + s.from, c->large + s.from, c->thin + s.from, s.count, c->n, c->m,
	                              c->r, NULL);
}

void split_product_mq_batch(void *queue, float *const *P, const float *const *M, const float *const *Q, size_t count,
                            size_t n, size_t m, size_t r, void *scratch)
{
	(void)queue, (void)scratch;
	if (n > rows_of(m)) {
		for (size_t i = 0; i < count; i++)
			product_mq(P[i], M[i], Q[i], n, m, r);
		return;
	}
	run(&(call){.to = P, .large = M, .thin = Q, .n = n, .m = m, .r = r}, count, matrices_of(n, m), mq_batch_part);
}

static void mtp_batch_part(void *arg, size_t i)
{
	const call *c = arg;
	const split_span s = split_part(c->count, c->length, i);
	split_plain->product_mtp_batch(NULL, c->to + s.from, c->large + s.from, c->thin + s.from, s.count, c->n, c->m,
	                               c->r, NULL);
}

void split_product_mtp_batch(void *queue, float *const *Q, const float *const *M, const float *const *P, size_t count,
                             size_t n, size_t m, size_t r, void *scratch)
{
	(void)queue;
	(void)scratch;
	run(&(call){.to = Q, .large = M, .thin = P, .n = n, .m = m, .r = r}, count, matrices_of(n, m), mtp_batch_part);
}

static void finish_batch_part(void *arg, size_t i)
{
	const call *c = arg;
	const split_span s = split_part(c->count, c->length, i);
	split_plain->low_rank_finish_batch(NULL, c->to + s.from, c->rest ? c->rest + s.from : NULL, c->thin + s.from,
	                                   c->local ? c->local + s.from : NULL, c->other + s.from, s.count, c->n, c->m,
	                                   c->r);
}

void split_low_rank_finish_batch(void *queue, float *const *X, float *const *E, const float *const *P,
                                 const float *const *Elocal, const float *const *Q, size_t count, size_t n, size_t m,
                                 size_t r)
{
	(void)queue;
	if (n > rows_of(m)) {
		for (size_t i = 0; i < count; i++)
			low_rank_finish(X[i], E ? E[i] : NULL, P[i], E ? Elocal[i] : NULL, Q[i], n, m, r);
		return;
	}
	run(&(call){.to = X, .rest = E, .thin = P, .local = Elocal, .other = Q, .n = n, .m = m, .r = r}, count,
	    matrices_of(n, m), finish_batch_part);
}

static void orthonormalise_part(void *arg, size_t i)
{
	const call *c = arg;
	const split_span s = split_part(c->count, c->length, i);
	split_plain->orthonormalise_split(NULL, c->to + s.from, s.count, c->n, c->r, NULL);
}

void split_orthonormalise_split(void *queue, float *const *A, size_t count, size_t n, size_t r, void *scratch)
{
	(void)queue, (void)scratch;
	run(&(call){.to = A, .n = n, .r = r}, count, matrices_of(n, r * r), orthonormalise_part);
}
