/* Sparse compressors: of d numbers k are sent, with their indices.
 *
 * A bucket is one part, or as many as it has tensors (layerwise), each with its
 * own d and k. A payload is the parts one after another, each
 *
 *     k values    F32; or rounded to BF16 or FP16, or quantised in blocks of 256
 *     k indices   below d, ascending strictly, coded as below
 *
 * in the byte order of the machine, each padded with zeros to words of 32
 * bits. The bytes follow from d, k and the parameters. So does the index coding,
 * which is why there is no header: 4 k bytes a list at the most.
 *
 *     raw      words of 32 bits
 *     delta    Elias-Fano: with l = floor(log2(d / k)), the lower l bits of each
 *              index, packed; then the differences of the upper ones in unary, as a
 *              bit string whose bit (index >> l) + j stands for index j. l + 2 to
 *              l + 3 bits an index, half a bit above what is possible.
 *     bitmap   d bits
 *     auto     the shortest of these; nothing when k = d
 *
 * What differs between methods is how the k are chosen; the rest is here. */
#ifndef PLUGINS_COMMON_SPARSE_H
#define PLUGINS_COMMON_SPARSE_H

#include "gradcomp/compressor.h"

#include "plugins/common/passthrough.h"

/* ---- parameters ---------------------------------------------------------------- */

/* The first rows of every parameter table here: methods whose indices need not be
 * sent stop before SPARSE_INDICES, those that add what they send before
 * SPARSE_VALUES. */
enum {
	SPARSE_DENSITY,
	SPARSE_WARMUP,
	SPARSE_WARMUP_STEPS,
	SPARSE_START_STEP,
	SPARSE_INDICES,
	SPARSE_VALUES,
	SPARSE_PARAMS
};

enum { SPARSE_RAW, SPARSE_DELTA, SPARSE_BITMAP, SPARSE_AUTO };
enum { SPARSE_F32, SPARSE_BF16, SPARSE_FP16, SPARSE_BLOCK8, SPARSE_BLOCK4 };

extern const char *const sparse_index_codings[];
extern const char *const sparse_value_codings[];

#define SPARSE_SCHEDULE_ROWS \
	[SPARSE_DENSITY] = {.name = "density", \
	                    .type = GRADCOMP_PARAM_FLOAT, \
	                    .def = "0.01", \
	                    .min = 1e-9, \
	                    .max = 1, \
	                    .help = "the share of numbers that is sent"}, \
	[SPARSE_WARMUP] = \
		{.name = "warmup", \
	         .type = GRADCOMP_PARAM_STRING, \
	         .def = "", \
	         .help = "densities to begin with, as 0.25/0.0625, or exp: 1/4, 1/16, ... down to density"}, \
	[SPARSE_WARMUP_STEPS] = {.name = "warmup_steps", \
	                         .type = GRADCOMP_PARAM_INT, \
	                         .def = "100", \
	                         .min = 1, \
	                         .max = 1e9, \
	                         .help = "steps that each density of warmup lasts"}, \
	[SPARSE_START_STEP] = PASSTHROUGH_START_STEP
#define SPARSE_INDICES_ROW \
	[SPARSE_INDICES] = { \
		.name = "indices", \
		.type = GRADCOMP_PARAM_CHOICE, \
		.def = "raw", \
		.choices = sparse_index_codings, \
		.help = "how indices are coded: 32 bits each, Elias-Fano, one bit a number, or the shortest"}
#define SPARSE_VALUES_ROW \
	[SPARSE_VALUES] = {.name = "values", \
	                   .type = GRADCOMP_PARAM_CHOICE, \
	                   .def = "f32", \
	                   .choices = sparse_value_codings, \
	                   .help = "how values are coded; what that loses stays in the error memory"}

/* For methods that can choose from each tensor on its own. */
enum { SPARSE_LAYERWISE = SPARSE_PARAMS, SPARSE_LAYERWISE_PARAMS };
#define SPARSE_LAYERWISE_ROW \
	[SPARSE_LAYERWISE] = {.name = "layerwise", \
	                      .type = GRADCOMP_PARAM_BOOL, \
	                      .def = "no", \
	                      .help = "choose from each tensor on its own, not from the whole bucket"}

/* Densities by step. */
typedef struct sparse_schedule {
	double density;    /* in the end */
	double warmup[16]; /* before it, each for `each` steps */
	uint32_t count;
	uint64_t each;
	uint64_t start_step; /* dense before */
} sparse_schedule;

/* Reads the first four values; refuses a list that is none. `name` is of the
 * compressor. Also what check() of a plugin does. */
gradcomp_status sparse_schedule_read(sparse_schedule *s, const gradcomp_host *host, const gradcomp_value *values,
                                     const char *name, gradcomp_error *err);
/* A decimal number as users write it, in every locale; 0 when there is none. Returns
 * what is behind it. */
const char *sparse_number(const char *p, double *out);
double sparse_density(const sparse_schedule *s, uint64_t step);
/* max(1, round(density * d)), but no more than d. */
uint64_t sparse_share(double density, uint64_t d);

/* ---- one list of k pairs --------------------------------------------------------- */

typedef struct sparse_coding {
	uint32_t indices, values;
} sparse_coding;

typedef struct sparse_pairs {
	uint32_t *idx;
	float *val;
} sparse_pairs;

/* Raw indices and plain values are used where they lie. */
static inline int sparse_plain(sparse_coding c)
{
	return c.indices == SPARSE_RAW && c.values == SPARSE_F32;
}

uint64_t sparse_index_bytes(const gradcomp_operators *op, uint32_t coding, uint64_t d, uint64_t k);
uint64_t sparse_bytes(const gradcomp_operators *op, sparse_coding c, uint64_t d, uint64_t k);
void sparse_pack(const gradcomp_operators *op, void *queue, sparse_coding c, void *out, sparse_pairs p, uint64_t d,
                 uint64_t k);
void sparse_index_pack(const gradcomp_operators *op, void *queue, uint32_t coding, void *out, const uint32_t *idx,
                       uint64_t d, uint64_t k);
/* On the host. Unpacking checks everything: it returns NULL, or in words what the
 * payload is not ("has indices that do not ascend"); idx and val are then worthless.
 * Reads sparse_bytes() and writes k pairs, whatever `in` holds. */
const char *sparse_unpack(const gradcomp_operators *op, sparse_coding c, const void *in, sparse_pairs p, uint64_t d,
                          uint64_t k);
const char *sparse_index_read(const gradcomp_operators *op, uint32_t coding, const void *in, uint32_t *idx, uint64_t d,
                              uint64_t k);
/* Anywhere: sets *fault for what is wrong. `scratch` is of sparse_index_scratch() bytes of the same
 * table. The first checks everything; the second not that the indices ascend below d. */
void sparse_unpack_on(const gradcomp_operators *op, void *queue, int *fault, sparse_coding c, const void *in,
                      sparse_pairs p, uint64_t d, uint64_t k, void *scratch);
void sparse_index_unpack(const gradcomp_operators *op, void *queue, int *fault, uint32_t coding, const void *in,
                         uint32_t *idx, uint64_t d, uint64_t k, void *scratch);
uint64_t sparse_index_scratch(const gradcomp_operators *op, uint32_t coding, uint64_t d, uint64_t k);
const char *sparse_index_check(const uint32_t *idx, uint64_t d, uint64_t k);
const char *sparse_value_check(const gradcomp_operators *op, const float *val, uint64_t k);

/* ---- a bucket ---------------------------------------------------------------------- */

typedef struct sparse_part {
	uint64_t at, d; /* where in the bucket, and how many */
	uint64_t k;
	uint32_t tensor; /* of the layout; the first of the bucket when it is one part */
} sparse_part;

/* Instances begin with this. sparse_open() fills it, for exact top-k of each bucket. */
typedef struct sparse sparse;
struct sparse {
	const gradcomp_host *host;
	const gradcomp_layout *layout;
	const char *name;
	sparse_schedule schedule;
	sparse_coding coding;
	int layerwise;
	int coded;        /* the collective takes codes: see sparse_code.c */
	void *encode_scratch, *decode_scratch; /* workspaces of code() and of the decoders */
	gradcomp_pairs *pairs; /* on a device: what one call adds up */
	/* How many of a part are sent, 1..d; NULL: what the schedule says. */
	uint64_t (*kept)(const sparse *s, const sparse_part *p, uint64_t step);
	/* Chooses exactly p->k of x[0..p->d), ascending, with operators alone. */
	size_t (*select_scratch)(const sparse *s, uint64_t d, uint64_t k);
	void (*select)(const sparse *s, const gradcomp_work *work, const sparse_part *p, const float *x,
	               sparse_pairs out, void *scratch);
};

/* `rows`: how many of the rows above the plugin's table has: SPARSE_INDICES,
 * SPARSE_VALUES, SPARSE_PARAMS or SPARSE_LAYERWISE_PARAMS. */
gradcomp_status sparse_open(sparse *s, const gradcomp_host *host, const gradcomp_value *values,
                            const gradcomp_layout *layout, const char *name, int rows, gradcomp_error *err);
/* The same in new memory of `bytes`, of which a sparse is the beginning; the rest is
 * zero. On failure *instance is as it was. */
gradcomp_status sparse_new(size_t bytes, const gradcomp_host *host, const gradcomp_value *values,
                           const gradcomp_layout *layout, const char *name, int rows, void **instance,
                           gradcomp_error *err);

uint32_t sparse_parts(const sparse *s, const gradcomp_bucket *bucket);
sparse_part sparse_part_at(const sparse *s, const gradcomp_bucket *bucket, uint64_t step, uint32_t i);
static inline int sparse_is_passthrough(const sparse *s, uint64_t step)
{
	return step < s->schedule.start_step;
}
/* Bytes of a payload; of scratch that encoding and decoding it need, a multiple of
 * 64, which begins at work->scratch. */
uint64_t sparse_payload_bytes(const sparse *s, const gradcomp_bucket *bucket, uint64_t step);
uint64_t sparse_scratch(const sparse *s, const gradcomp_bucket *bucket, uint64_t step);

/* The payload of `from` (the bucket's numbers: work->flat, or an array of state). */
gradcomp_status sparse_encode_from(const sparse *s, const gradcomp_work *work, const float *from,
                                   gradcomp_payload *out, gradcomp_error *err);
/* Checks the payloads of all ranks before anything is changed; on a device, their
 * lengths, and the rest through work->fault, at the latest when they are added. */
gradcomp_status sparse_verify(const sparse *s, const gradcomp_work *work, const gradcomp_payload *in, uint32_t n,
                              gradcomp_error *err);
/* What may follow. y += a * what `in` holds; y = 0 at the indices of `in`. */
void sparse_add(const sparse *s, const gradcomp_work *work, const gradcomp_payload *in, float a, float *y);
void sparse_clear(const sparse *s, const gradcomp_work *work, const gradcomp_payload *in, float *y);
/* work->flat = 1/n of the sum over ranks, in their order. */
void sparse_average(const sparse *s, const gradcomp_work *work, const gradcomp_payload *in, uint32_t n);

/* ---- as in gradcomp_compressor_v1, of methods with error memory that gather --------- */

gradcomp_status sparse_plan(void *instance, const gradcomp_bucket *bucket, uint64_t step, gradcomp_plan *plan,
                            gradcomp_error *err);
gradcomp_status sparse_encode(void *instance, const gradcomp_work *work, uint32_t round, gradcomp_payload *out,
                              gradcomp_error *err);
gradcomp_status sparse_decode(void *instance, const gradcomp_work *work, uint32_t round, const gradcomp_payload *in,
                              uint32_t n, gradcomp_error *err);
gradcomp_status sparse_cost(void *instance, const gradcomp_bucket *bucket, uint64_t step, gradcomp_cost *cost,
                            gradcomp_error *err);
void sparse_destroy(void *instance);

/* ---- as a code for runs, over collectives that sum codes ---------------------------- */

/* A run of n numbers: max(1, round(density * n)) pairs of it, packed as above; all n
 * floats where those would be more bytes. */
#define SPARSE_INSTEAD (GRADCOMP_PATTERN_BIT(GRADCOMP_CODED) | GRADCOMP_PATTERN_BIT(GRADCOMP_SUMMED))
/* For create(): what the code needs, when it is asked for; refuses parameters that have no
 * meaning for it. On failure there is nothing to undo. */
gradcomp_status sparse_code_open(sparse *s, gradcomp_error *err);
uint64_t sparse_code_bound(void *instance, uint64_t n);
gradcomp_status sparse_code(void *instance, const float *in, uint64_t n, uint64_t counter, void *out, uint64_t *bytes,
                            gradcomp_error *err);
gradcomp_status sparse_code_decode(void *instance, const void *in, uint64_t bytes, float *out, uint64_t n,
                                   gradcomp_error *err);
gradcomp_status sparse_code_decode_add(void *instance, const void *in, uint64_t bytes, float *out, uint64_t n,
                                       gradcomp_error *err);

#endif
