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
#ifndef GRADCOMP_SDK_SPARSE_H
#define GRADCOMP_SDK_SPARSE_H

#include "gradcomp/compressor.h"

#include "gradcomp/sdk/passthrough.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The first rows of every parameter table here: methods whose indices need not be
 * sent stop before SPARSE_INDICES, those that add what they send before
 * SPARSE_VALUES. */
enum {
	SDK_SPARSE_DENSITY,
	SDK_SPARSE_WARMUP,
	SDK_SPARSE_WARMUP_STEPS,
	SDK_SPARSE_START_STEP,
	SDK_SPARSE_INDICES,
	SDK_SPARSE_VALUES,
	SDK_SPARSE_PARAMS
};

enum { SDK_SPARSE_RAW, SDK_SPARSE_DELTA, SDK_SPARSE_BITMAP, SDK_SPARSE_AUTO };
enum { SDK_SPARSE_F32, SDK_SPARSE_BF16, SDK_SPARSE_FP16, SDK_SPARSE_BLOCK8, SDK_SPARSE_BLOCK4 };

extern const char *const sdk_sparse_index_codings[];
extern const char *const sdk_sparse_value_codings[];

#define SDK_SPARSE_SCHEDULE_ROWS SDK_SPARSE_SCHEDULE_ROWS_OF("0.01")
/* With this text for the default density. */
#define SDK_SPARSE_SCHEDULE_ROWS_OF(density) \
	[SDK_SPARSE_DENSITY] = {.name = "density", \
	                        .type = GRADCOMP_PARAM_FLOAT, \
	                        .def = density, \
	                        .min = 1e-9, \
	                        .max = 1, \
	                        .help = "the share of numbers that is sent"}, \
	[SDK_SPARSE_WARMUP] = \
		{.name = "warmup", \
	         .type = GRADCOMP_PARAM_STRING, \
	         .def = "", \
	         .help = "densities to begin with, as 0.25/0.0625, or exp: 1/4, 1/16, ... down to density"}, \
	[SDK_SPARSE_WARMUP_STEPS] = {.name = "warmup_steps", \
	                             .type = GRADCOMP_PARAM_INT, \
	                             .def = "100", \
	                             .min = 1, \
	                             .max = 1e9, \
	                             .help = "steps that each density of warmup lasts"}, \
	[SDK_SPARSE_START_STEP] = SDK_START_STEP_ROW
#define SDK_SPARSE_INDICES_ROW \
	[SDK_SPARSE_INDICES] = { \
		.name = "indices", \
		.type = GRADCOMP_PARAM_CHOICE, \
		.def = "raw", \
		.choices = sdk_sparse_index_codings, \
		.help = "how indices are coded: 32 bits each, Elias-Fano, one bit a number, or the shortest"}
#define SDK_SPARSE_VALUES_ROW \
	[SDK_SPARSE_VALUES] = {.name = "values", \
	                       .type = GRADCOMP_PARAM_CHOICE, \
	                       .def = "f32", \
	                       .choices = sdk_sparse_value_codings, \
	                       .help = "how values are coded; what that loses stays in the error memory"}

/* For methods that can choose from each tensor on its own. */
enum { SDK_SPARSE_LAYERWISE = SDK_SPARSE_PARAMS, SDK_SPARSE_LAYERWISE_PARAMS };
#define SDK_SPARSE_LAYERWISE_ROW \
	[SDK_SPARSE_LAYERWISE] = {.name = "layerwise", \
	                          .type = GRADCOMP_PARAM_BOOL, \
	                          .def = "no", \
	                          .help = "choose from each tensor on its own, not from the whole bucket"}

/* Densities by step. */
typedef struct sdk_sparse_schedule {
	double density;    /* in the end */
	double warmup[16]; /* before it, each for `each` steps */
	uint32_t count;
	uint64_t each;
	uint64_t start_step; /* dense before */
} sdk_sparse_schedule;

/* Reads the first four values; refuses a list that is none. `name` is of the
 * compressor. Also what check() of a plugin does. */
gradcomp_status sdk_sparse_schedule_read(sdk_sparse_schedule *s, const gradcomp_host *host,
                                         const gradcomp_value *values, const char *name, gradcomp_error *err);
/* Reads a decimal number as users write it, in every locale; 0 when there is none. Returns what is behind it. */
const char *sdk_sparse_number(const char *p, double *out);
double sdk_sparse_density(const sdk_sparse_schedule *s, uint64_t step);
/* max(1, round(density * d)), but no more than d. */
uint64_t sdk_sparse_share(double density, uint64_t d);

typedef struct sdk_sparse_coding {
	uint32_t indices, values;
} sdk_sparse_coding;

typedef struct sdk_sparse_pairs {
	uint32_t *idx;
	float *val;
} sdk_sparse_pairs;

/* Raw indices and plain values are used where they lie. */
static inline int sdk_sparse_plain(sdk_sparse_coding c)
{
	return c.indices == SDK_SPARSE_RAW && c.values == SDK_SPARSE_F32;
}

uint64_t sdk_sparse_index_bytes(const gradcomp_operators *op, uint32_t coding, uint64_t d, uint64_t k);
uint64_t sdk_sparse_bytes(const gradcomp_operators *op, sdk_sparse_coding c, uint64_t d, uint64_t k);
void sdk_sparse_pack(const gradcomp_operators *op, void *queue, sdk_sparse_coding c, void *out, sdk_sparse_pairs p,
                     uint64_t d, uint64_t k);
void sdk_sparse_index_pack(const gradcomp_operators *op, void *queue, uint32_t coding, void *out, const uint32_t *idx,
                           uint64_t d, uint64_t k);
/* On the host. Unpacking checks everything: it returns NULL, or in words what the
 * payload is not ("has indices that do not ascend"); idx and val are then worthless.
 * Reads sdk_sparse_bytes() and writes k pairs, whatever `in` holds. */
const char *sdk_sparse_unpack(const gradcomp_operators *op, sdk_sparse_coding c, const void *in, sdk_sparse_pairs p,
                              uint64_t d, uint64_t k);
/* The same of partial sums: values may be Inf or NaN. */
const char *sdk_sparse_unpack_sums(const gradcomp_operators *op, sdk_sparse_coding c, const void *in,
                                   sdk_sparse_pairs p, uint64_t d, uint64_t k);
const char *sdk_sparse_index_read(const gradcomp_operators *op, uint32_t coding, const void *in, uint32_t *idx,
                                  uint64_t d, uint64_t k);
/* Anywhere: sets *fault for what is wrong. `scratch` is of sdk_sparse_index_scratch() bytes of the same
 * table. The first checks everything; the second not that the indices ascend below d. */
void sdk_sparse_unpack_on(const gradcomp_operators *op, void *queue, int *fault, sdk_sparse_coding c, const void *in,
                          sdk_sparse_pairs p, uint64_t d, uint64_t k, void *scratch);
void sdk_sparse_index_unpack(const gradcomp_operators *op, void *queue, int *fault, uint32_t coding, const void *in,
                             uint32_t *idx, uint64_t d, uint64_t k, void *scratch);
uint64_t sdk_sparse_index_scratch(const gradcomp_operators *op, uint32_t coding, uint64_t d, uint64_t k);
const char *sdk_sparse_index_check(const uint32_t *idx, uint64_t d, uint64_t k);
const char *sdk_sparse_value_check(const gradcomp_operators *op, const float *val, uint64_t k);

typedef struct sdk_sparse_part {
	uint64_t at, d; /* where in the bucket, and how many */
	uint64_t k;
	uint32_t tensor; /* number of the tensor in the layout; the first of the bucket when it is one part */
} sdk_sparse_part;

/* Instances begin with this. sdk_sparse_open() fills it, for exact top-k of each bucket. */
typedef struct sdk_sparse sdk_sparse;
struct sdk_sparse {
	const gradcomp_host *host;
	const gradcomp_layout *layout;
	const char *name;
	sdk_sparse_schedule schedule;
	sdk_sparse_coding coding;
	int layerwise;
	int coded;                             /* the collective takes codes: see sparse_code.c */
	void *encode_scratch, *decode_scratch; /* workspaces of code() and of the decoders */
	gradcomp_pairs *pairs;                 /* on a device: what one call adds up */
	/* Returns how many of a part are sent, 1..d; NULL: what the schedule says. */
	uint64_t (*kept)(const sdk_sparse *s, const sdk_sparse_part *p, uint64_t step);
	/* Chooses exactly p->k of x[0..p->d), ascending, with operators alone. */
	size_t (*select_scratch)(const sdk_sparse *s, uint64_t d, uint64_t k);
	void (*select)(const sdk_sparse *s, const gradcomp_work *work, const sdk_sparse_part *p, const float *x,
	               sdk_sparse_pairs out, void *scratch);
};

/* `rows`: how many of the rows above the plugin's table has: SPARSE_INDICES,
 * SPARSE_VALUES, SPARSE_PARAMS or SPARSE_LAYERWISE_PARAMS. */
gradcomp_status sdk_sparse_open(sdk_sparse *s, const gradcomp_host *host, const gradcomp_value *values,
                                const gradcomp_layout *layout, const char *name, int rows, gradcomp_error *err);
/* Does the same in new memory of `bytes`, of which a sparse is the beginning; the rest is zero. On failure
 * *instance is as it was. */
gradcomp_status sdk_sparse_new(size_t bytes, const gradcomp_host *host, const gradcomp_value *values,
                               const gradcomp_layout *layout, const char *name, int rows, void **instance,
                               gradcomp_error *err);

uint32_t sdk_sparse_parts(const sdk_sparse *s, const gradcomp_bucket *bucket);
sdk_sparse_part sdk_sparse_part_at(const sdk_sparse *s, const gradcomp_bucket *bucket, uint64_t step, uint32_t i);
static inline int sdk_sparse_is_passthrough(const sdk_sparse *s, uint64_t step)
{
	return step < s->schedule.start_step;
}
/* Return the bytes of a payload; and of scratch that encoding and decoding it need, a multiple of 64, which begins
 * at work->scratch. */
uint64_t sdk_sparse_payload_bytes(const sdk_sparse *s, const gradcomp_bucket *bucket, uint64_t step);
uint64_t sdk_sparse_scratch(const sdk_sparse *s, const gradcomp_bucket *bucket, uint64_t step);

/* Writes the payload of `from` (the bucket's numbers: work->flat, or an array of state). */
gradcomp_status sdk_sparse_encode_from(const sdk_sparse *s, const gradcomp_work *work, const float *from,
                                       gradcomp_payload *out, gradcomp_error *err);
/* Checks the payloads of all ranks before anything is changed; on a device, their
 * lengths, and the rest through work->fault, at the latest when they are added. */
gradcomp_status sdk_sparse_verify(const sdk_sparse *s, const gradcomp_work *work, const gradcomp_payload *in,
                                  uint32_t n, gradcomp_error *err);
/* These may follow. y += a * what `in` holds; y = 0 at the indices of `in`. */
void sdk_sparse_add(const sdk_sparse *s, const gradcomp_work *work, const gradcomp_payload *in, float a, float *y);
void sdk_sparse_clear(const sdk_sparse *s, const gradcomp_work *work, const gradcomp_payload *in, float *y);
/* work->flat = 1/n of the sum over ranks, in their order. */
void sdk_sparse_average(const sdk_sparse *s, const gradcomp_work *work, const gradcomp_payload *in, uint32_t n);

gradcomp_status sdk_sparse_plan(void *instance, const gradcomp_bucket *bucket, uint64_t step, gradcomp_plan *plan,
                                gradcomp_error *err);
gradcomp_status sdk_sparse_encode(void *instance, const gradcomp_work *work, uint32_t round, gradcomp_payload *out,
                                  gradcomp_error *err);
gradcomp_status sdk_sparse_decode(void *instance, const gradcomp_work *work, uint32_t round, const gradcomp_payload *in,
                                  uint32_t n, gradcomp_error *err);
gradcomp_status sdk_sparse_cost(void *instance, const gradcomp_bucket *bucket, uint64_t step, gradcomp_cost *cost,
                                gradcomp_error *err);
void sdk_sparse_destroy(void *instance);

/* A run of n numbers: max(1, round(density * n)) pairs of it, packed as above; all n
 * floats where those would be more bytes. */
#define SDK_SPARSE_INSTEAD (GRADCOMP_PATTERN_BIT(GRADCOMP_CODED) | GRADCOMP_PATTERN_BIT(GRADCOMP_SUMMED))
/* Opens, for create(), what the code needs, when it is asked for; refuses parameters that have no meaning for it.
 * On failure there is nothing to undo. */
gradcomp_status sdk_sparse_code_open(sdk_sparse *s, gradcomp_error *err);
uint64_t sdk_sparse_code_bound(void *instance, uint64_t n);
gradcomp_status sdk_sparse_code(void *instance, const float *in, uint64_t n, uint64_t counter, void *out,
                                uint64_t *bytes, gradcomp_error *err);
gradcomp_status sdk_sparse_code_decode(void *instance, const void *in, uint64_t bytes, float *out, uint64_t n,
                                       gradcomp_error *err);
gradcomp_status sdk_sparse_code_decode_add(void *instance, const void *in, uint64_t bytes, float *out, uint64_t n,
                                           gradcomp_error *err);

#ifdef __cplusplus
}
#endif
#endif
