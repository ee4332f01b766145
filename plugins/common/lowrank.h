/* What compressors by low-rank factors share: which tensors are matrices, where
 * their factors stand, and the steps of the methods on a whole bucket, same-shape
 * matrices together.
 *
 * A tensor is an n x m matrix M: n its first dimension, m the product of the
 * others. r = min(rank, n, m) columns of P (n x r) and of Q (m x r) stand for it.
 * Vectors, and tensors that would not shrink min_ratio times, are sent uncompressed.
 *
 * Factors of a bucket stand one after another, in payloads, in scratch and in what
 * an instance keeps: a bucket's P are one run of floats, and so are its Q. */
#ifndef PLUGINS_COMMON_LOWRANK_H
#define PLUGINS_COMMON_LOWRANK_H

#include "gradcomp/compressor.h"

#define LOWRANK_NONE UINT32_MAX

/* The first rows of every parameter table here. */
enum { LOWRANK_RANK, LOWRANK_MIN_RATIO, LOWRANK_START_STEP, LOWRANK_PARAMS };
#define LOWRANK_RANK_ROW \
	{ \
		.name = "rank", .type = GRADCOMP_PARAM_INT, .def = "4", .min = 1, .max = 64, \
		.help = "columns of the factors; more is closer to the gradient and more to send", \
	}
#define LOWRANK_MIN_RATIO_ROW \
	{ \
		.name = "min_ratio", .type = GRADCOMP_PARAM_FLOAT, .def = "2", .min = 0, .max = 1e6, \
		.help = "a tensor that would not shrink by more than this factor is sent uncompressed", \
	}

/* Floats before a tensor: of uncompressed tensors, of P and of Q. */
typedef struct lowrank_extent {
	uint64_t uncompressed, P, Q;
} lowrank_extent;

typedef struct lowrank_tensor {
	uint64_t n, m, r;       /* r = 0: sent uncompressed */
	lowrank_extent at;       /* in the layout */
	uint32_t before, after; /* neighbours of the same shape, or LOWRANK_NONE */
	char choice[24];
} lowrank_tensor;

typedef struct lowrank {
	const gradcomp_host *host;
	const gradcomp_layout *layout;
	const char *name; /* of the compressor */
	uint64_t start_step;
	lowrank_tensor *tensors; /* ntensors, and one more whose offset is the end */
	float *P, *Q;            /* kept from step to step; NULL: not */
} lowrank;

enum { LOWRANK_KEEP_P = 1, LOWRANK_KEEP_Q = 2 };

/* `keep` says which factors last; those begin with random numbers, the same on
 * all ranks. `suffix` ends the choice of a compressed tensor. On failure there is
 * nothing left to close. */
gradcomp_status lowrank_open(lowrank *l, const gradcomp_host *host, const gradcomp_value *values,
                             const gradcomp_layout *layout, const char *name, int keep, const char *suffix,
                             gradcomp_error *err);
void lowrank_close(lowrank *l);
/* As in gradcomp_compressor_v1, of instances that begin with a lowrank. */
const char *lowrank_choice(void *instance, uint32_t tensor);
gradcomp_status lowrank_save(void *instance, void *out, uint64_t capacity, uint64_t *bytes, gradcomp_error *err);
gradcomp_status lowrank_load(void *instance, const void *in, uint64_t bytes, gradcomp_error *err);

/* ---- of a bucket ---- */

/* How many floats of each sort it has. */
lowrank_extent lowrank_sizes(const lowrank *l, const gradcomp_bucket *bucket);
/* Nothing to compress: before start_step, and without matrices. */
int lowrank_is_passthrough(const lowrank *l, const gradcomp_bucket *bucket, uint64_t step);
/* Bytes of scratch that the products need. */
uint64_t lowrank_scratch(const lowrank *l, const gradcomp_bucket *bucket);
double lowrank_flops(const lowrank *l, const gradcomp_bucket *bucket, int products);

/* Factors that last from step to step: `to`, of l->P or l->Q, becomes `from`, if the step counts. */
void lowrank_keep(const gradcomp_work *work, float *to, const float *from, uint64_t floats);

/* A payload whose length is not what was planned is our own mistake. */
gradcomp_status lowrank_expect(const lowrank *l, const gradcomp_work *work, uint32_t round,
                               const gradcomp_payload *in, uint64_t bytes, gradcomp_error *err);

/* The tensors sent uncompressed: into a payload, and out of it into x. */
void lowrank_pack(const lowrank *l, const gradcomp_work *work, float *out);
void lowrank_unpack(const lowrank *l, const gradcomp_work *work, const float *in);

/* Random numbers, the same on all ranks and for all bucketings; draws 0 and 1 are the
 * first P and Q. */
void lowrank_random_q(const lowrank *l, const gradcomp_work *work, float *Q, uint64_t draw);

/* P, Q: the bucket's factors. `scratch` is of lowrank_scratch() bytes. */
void lowrank_orthonormalise_p(const lowrank *l, const gradcomp_work *work, float *P);
void lowrank_orthonormalise_q(const lowrank *l, const gradcomp_work *work, float *Q);
/* P = M Q and Q = M^T P, of what is compressed. */
void lowrank_product_mq(const lowrank *l, const gradcomp_work *work, float *P, const float *Q, void *scratch);
void lowrank_product_mtp(const lowrank *l, const gradcomp_work *work, float *Q, const float *P, void *scratch);
/* Unless local is NULL, error = x - P local^T, and 0 for those sent uncompressed; then
 * x = P Q^T. */
void lowrank_finish(const lowrank *l, const gradcomp_work *work, const float *P, const float *local,
                    const float *Q);

/* Finite gradients can still be so large that a mean of factors is not. Then the
 * bucket's average is NaN on every rank, as with a gradient that is not finite,
 * nothing else changes, and 1 is returned. Only the host can look; on a device the
 * factors go into the average as they are. */
int lowrank_overflown(const lowrank *l, const gradcomp_work *work, const float *mean, uint64_t floats);

#endif
