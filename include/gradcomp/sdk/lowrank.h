/* Compressors by low-rank factors share this (PowerSGD: Vogels, Karimireddy, Jaggi, NeurIPS 2019): which tensors
 * are matrices, where their factors stand, and the steps of the methods on a whole bucket, same-shape matrices
 * together.
 *
 * A tensor is an n x m matrix M: n its first dimension, m the product of the
 * others. r = min(rank, n, m) columns of P (n x r) and of Q (m x r) stand for it.
 * Vectors, and tensors that would not shrink min_ratio times, are sent uncompressed.
 *
 * Factors of a bucket stand one after another, in payloads, in scratch and in what
 * an instance keeps: a bucket's P are one run of floats, and so are its Q. */
#ifndef GRADCOMP_SDK_LOWRANK_H
#define GRADCOMP_SDK_LOWRANK_H

#include "gradcomp/compressor.h"

#ifdef __cplusplus
extern "C" {
#endif

#define SDK_LOWRANK_NONE UINT32_MAX

/* A factor has so many columns at most; on a device, and on a host of an earlier release, SDK_LOWRANK_FEW. There
 * sdk_lowrank_open() refuses wider ones: GRADCOMP_ERR_UNSUPPORTED. */
enum { SDK_LOWRANK_FEW = 64, SDK_LOWRANK_MOST = 128 };

/* The first rows of every parameter table here. */
enum { SDK_LOWRANK_RANK, SDK_LOWRANK_MIN_RATIO, SDK_LOWRANK_START_STEP, SDK_LOWRANK_PARAMS };
#define SDK_LOWRANK_RANK_ROW \
	{ \
		.name = "rank", .type = GRADCOMP_PARAM_INT, .def = "4", .min = 1, .max = SDK_LOWRANK_MOST, \
		.help = "columns of the factors; more is closer to the gradient and more to send", \
	}
#define SDK_LOWRANK_MIN_RATIO_ROW \
	{ \
		.name = "min_ratio", .type = GRADCOMP_PARAM_FLOAT, .def = "2", .min = 0, .max = 1e6, \
		.help = "a tensor that would not shrink by more than this factor is sent uncompressed", \
	}

/* Floats before a tensor: of uncompressed tensors, of P and of Q. */
typedef struct sdk_lowrank_extent {
	uint64_t uncompressed, P, Q;
} sdk_lowrank_extent;

typedef struct sdk_lowrank_tensor {
	uint64_t n, m, r;       /* r = 0: sent uncompressed */
	sdk_lowrank_extent at;  /* in the layout */
	uint32_t before, after; /* neighbours of the same shape, or LOWRANK_NONE */
	char choice[24];
} sdk_lowrank_tensor;

typedef struct sdk_lowrank {
	const gradcomp_host *host;
	const gradcomp_layout *layout;
	const char *name; /* the compressor's */
	uint64_t start_step;
	sdk_lowrank_tensor *tensors; /* ntensors, and one more whose offset is the end */
	float *P, *Q;                /* kept from step to step; NULL: not */
} sdk_lowrank;

enum { SDK_LOWRANK_KEEP_P = 1, SDK_LOWRANK_KEEP_Q = 2 };

/* `keep` says which factors last; those begin with random numbers, the same on
 * all ranks. `suffix` ends the choice of a compressed tensor. On failure there is
 * nothing left to close. */
gradcomp_status sdk_lowrank_open(sdk_lowrank *l, const gradcomp_host *host, const gradcomp_value *values,
                                 const gradcomp_layout *layout, const char *name, int keep, const char *suffix,
                                 gradcomp_error *err);
void sdk_lowrank_close(sdk_lowrank *l);
/* These are functions of gradcomp_compressor_v1, for instances that begin with a lowrank. */
const char *sdk_lowrank_choice(void *instance, uint32_t tensor);
gradcomp_status sdk_lowrank_save(void *instance, void *out, uint64_t capacity, uint64_t *bytes, gradcomp_error *err);
gradcomp_status sdk_lowrank_load(void *instance, const void *in, uint64_t bytes, gradcomp_error *err);

/* How many floats of each sort it has. */
sdk_lowrank_extent sdk_lowrank_sizes(const sdk_lowrank *l, const gradcomp_bucket *bucket);
/* Returns true when there is nothing to compress: before start_step, and without matrices. */
int sdk_lowrank_is_passthrough(const sdk_lowrank *l, const gradcomp_bucket *bucket, uint64_t step);
/* Returns the bytes of scratch that the operators need. */
uint64_t sdk_lowrank_scratch(const sdk_lowrank *l, const gradcomp_bucket *bucket);
double sdk_lowrank_flops(const sdk_lowrank *l, const gradcomp_bucket *bucket, int products);

/* Factors that last from step to step: `to`, of l->P or l->Q, becomes `from`, if the step counts. */
void sdk_lowrank_keep(const gradcomp_work *work, float *to, const float *from, uint64_t floats);

/* A payload whose length is not what was planned is our own mistake. */
gradcomp_status sdk_lowrank_expect(const sdk_lowrank *l, const gradcomp_work *work, uint32_t round,
                                   const gradcomp_payload *in, uint64_t bytes, gradcomp_error *err);

/* The tensors sent uncompressed: into a payload, and out of it into x. */
void sdk_lowrank_pack(const sdk_lowrank *l, const gradcomp_work *work, float *out);
void sdk_lowrank_unpack(const sdk_lowrank *l, const gradcomp_work *work, const float *in);

/* Random numbers, the same on all ranks and for all bucketings; draws 0 and 1 are the
 * first P and Q. */
void sdk_lowrank_random_q(const sdk_lowrank *l, const gradcomp_work *work, float *Q, uint64_t draw);

/* P, Q: the bucket's factors. `scratch` is of sdk_lowrank_scratch() bytes; without (NULL) the
 * bits are the same, and a device is slower. */
void sdk_lowrank_orthonormalise_p(const sdk_lowrank *l, const gradcomp_work *work, float *P, void *scratch);
void sdk_lowrank_orthonormalise_q(const sdk_lowrank *l, const gradcomp_work *work, float *Q, void *scratch);
/* Columns of Q become 1 long; with `stretch`, sqrt(n / m). */
void sdk_lowrank_normalise_q(const sdk_lowrank *l, const gradcomp_work *work, float *Q, int stretch);
/* P = M Q and Q = M^T P, of what is compressed. */
void sdk_lowrank_product_mq(const sdk_lowrank *l, const gradcomp_work *work, float *P, const float *Q, void *scratch);
void sdk_lowrank_product_mtp(const sdk_lowrank *l, const gradcomp_work *work, float *Q, const float *P, void *scratch);
/* Unless local is NULL, error = x - P local^T, and 0 for those sent uncompressed; then
 * x = P Q^T. */
void sdk_lowrank_finish(const sdk_lowrank *l, const gradcomp_work *work, const float *P, const float *local,
                        const float *Q);

/* sdk_overflow() of factors whose product with an orthonormal one is to be finite: a row of such a one is
 * no longer than 1, so that the product is at most sqrt(r) times the largest. */
gradcomp_status sdk_lowrank_overflow(const sdk_lowrank *l, const gradcomp_work *work, const float *factors,
                                     uint64_t floats, gradcomp_error *err);

/* The operators of low rank on one matrix give the same bits. `scratch` is the operator's own for a count of 1;
 * those that have none need none. */
static inline void sdk_product_mq(const gradcomp_operators *op, void *queue, float *P, const float *M, const float *Q,
                                  size_t n, size_t m, size_t r, void *scratch)
{
	op->product_mq_batch(queue, &P, &M, &Q, 1, n, m, r, scratch);
}

static inline void sdk_product_mtp(const gradcomp_operators *op, void *queue, float *Q, const float *M, const float *P,
                                   size_t n, size_t m, size_t r, void *scratch)
{
	op->product_mtp_batch(queue, &Q, &M, &P, 1, n, m, r, scratch);
}

static inline void sdk_low_rank_finish(const gradcomp_operators *op, void *queue, float *X, float *E, const float *P,
                                       const float *Elocal, const float *Q, size_t n, size_t m, size_t r)
{
	op->low_rank_finish_batch(queue, &X, E ? &E : NULL, &P, &Elocal, &Q, 1, n, m, r);
}

/* scratch may be NULL. */
static inline void sdk_orthonormalise(const gradcomp_operators *op, void *queue, float *A, size_t n, size_t r,
                                      void *scratch)
{
	op->orthonormalise_split(queue, &A, 1, n, r, scratch);
}

#ifdef __cplusplus
}
#endif
#endif
