/* gtopk: global top-k. Two payloads of k numbers are added on the union of their
 * indices, and the k largest stay, up a tree of ranks (Shi, Wang, Zhao, Tang, Wang,
 * Huang, Chu: A distributed synchronous SGD algorithm with global top-k
 * sparsification for low bandwidth networks, ICDCS 2019).
 *
 *     average = merged / P      error = u, 0 where sent, + what this rank's merges dropped
 *
 * As published, only what no rank keeps returns to the memories, and what one
 * subtree drops while another keeps it is lost. Here the rank that merges remembers
 * what it drops: sum of u = P average + sum of errors.
 *
 * Payload: k values (F32), then k indices, coded as in sparse.h. */
#include <math.h>
#include <string.h>

#include "gradcomp/sdk/residual.h"
#include "gradcomp/sdk/scratch.h"
#include "gradcomp/sdk/sparse.h"

static const gradcomp_param params[] = {SDK_SPARSE_SCHEDULE_ROWS, SDK_SPARSE_INDICES_ROW};

static gradcomp_status check(const gradcomp_host *host, const gradcomp_value *values, gradcomp_error *err)
{
	sdk_sparse_schedule s;
	return sdk_sparse_schedule_read(&s, host, values, "gtopk", err);
}

static gradcomp_status create(const gradcomp_host *host, const gradcomp_value *values,
                              const gradcomp_layout *layout, void **instance, gradcomp_error *err)
{
	return sdk_sparse_new(sizeof(sdk_sparse), host, values, layout, "gtopk", SDK_SPARSE_VALUES, instance, err);
}

/* A bucket's scratch: what encode() sent and what merges dropped, for decode(). The
 * merges of a rank come one after another. */
typedef struct notes {
	uint64_t d, k;
	uint32_t *merges;      /* so far */
	uint32_t *sent;        /* k indices that encode() sent */
	uint32_t *a, *b, *out; /* k each: of two payloads, and of what becomes of them */
	uint32_t *left_idx;    /* k for each merge */
	float *left_val;
	void *operator_scratch; /* for operators */
} notes;

enum { FIRST = 16 }; /* words before the lists */

static uint32_t most_merges(const sdk_sparse *s)
{
	return 2 + 31 - (uint32_t)__builtin_clz((uint32_t)s->layout->nranks);
}

static uint64_t words_before_room(const sdk_sparse *s, uint64_t k)
{
	return (FIRST + 4 * k + 2 * k * most_merges(s) + 15) / 16 * 16;
}

static notes notes_of(const sdk_sparse *s, const gradcomp_work *work)
{
	notes n = {.d = work->bucket->numel,
	           .k = sdk_sparse_part_at(s, work->bucket, work->step, 0).k,
	           .merges = work->scratch};
	n.sent = n.merges + FIRST;
	n.a = n.sent + n.k;
	n.b = n.a + n.k;
	n.out = n.b + n.k;
	n.left_idx = n.out + n.k;
	n.left_val = (float *)(n.left_idx + n.k * most_merges(s));
	n.operator_scratch = n.merges + words_before_room(s, n.k);
	return n;
}

static uint64_t payload_bytes(const sdk_sparse *s, uint64_t d, uint64_t k)
{
	return k * sizeof(float) + sdk_sparse_index_bytes(s->host->operators, s->coding.indices, d, k);
}

static gradcomp_status plan(void *instance, const gradcomp_bucket *bucket, uint64_t step, gradcomp_plan *plan,
                            gradcomp_error *err)
{
	const sdk_sparse *s = instance;
	const gradcomp_operators *op = sdk_layout_operators(s->host, s->layout);
	uint64_t d = bucket->numel, k = sdk_sparse_part_at(s, bucket, step, 0).k;
	uint64_t choosing = op->topk_scratch(d, k), merging = op->sparse_merge_scratch(k);
	(void)err;
	if (sdk_sparse_is_passthrough(s, step)) {
		sdk_passthrough_plan(bucket, plan);
		return GRADCOMP_OK;
	}
	plan->nrounds = 1;
	plan->rounds[0] = (gradcomp_round){.pattern = GRADCOMP_MERGED, .bound = payload_bytes(s, d, k)};
	plan->scratch_bytes =
		words_before_room(s, k) * sizeof(uint32_t) + (choosing > merging ? choosing : merging);
	return GRADCOMP_OK;
}

static gradcomp_status encode(void *instance, const gradcomp_work *work, uint32_t round, gradcomp_payload *out,
                              gradcomp_error *err)
{
	const sdk_sparse *s = instance;
	notes n = notes_of(s, work);
	float *val = out->data;
	(void)round, (void)err;
	*n.merges = 0;
	work->operators->topk(work->queue, n.sent, val, work->flat, n.d, n.k, n.operator_scratch);
	sdk_sparse_index_pack(work->operators, work->queue, s->coding.indices, val + n.k, n.sent, n.d, n.k);
	out->bytes = payload_bytes(s, n.d, n.k);
	return GRADCOMP_OK;
}

/* The indices of a payload, which may be a peer's. */
static gradcomp_status read_indices(const sdk_sparse *s, const gradcomp_work *work, const gradcomp_payload *in,
                                    const notes *n, uint32_t *idx, gradcomp_error *err)
{
	uint64_t right = payload_bytes(s, n->d, n->k);
	if (in->bytes != right)
		return s->host->fail(err, GRADCOMP_ERR_MISMATCH,
		                     "gtopk: rank %d got %llu bytes for bucket %u, %llu are right", s->layout->rank,
		                     (unsigned long long)in->bytes, work->bucket->index, (unsigned long long)right);
	const char *wrong = sdk_sparse_index_read(work->operators, s->coding.indices, (float *)in->data + n->k, idx,
	                                          n->d, n->k);
	if (wrong)
		return s->host->fail(err, GRADCOMP_ERR_MISMATCH,
		                     "gtopk: a payload that rank %d got for bucket %u %s (%llu of %llu numbers)",
		                     s->layout->rank, work->bucket->index, wrong, (unsigned long long)n->k,
		                     (unsigned long long)n->d);
	return GRADCOMP_OK;
}

/* Sums of finite gradients can still overflow. That goes on to all ranks as it
 * is. */
static int overflown(const gradcomp_work *work, const gradcomp_payload *in, uint64_t k)
{
	return sdk_sparse_value_check(work->operators, in->data, k) != NULL;
}

static gradcomp_status merge(void *instance, const gradcomp_work *work, uint32_t round, const gradcomp_payload *a,
                             const gradcomp_payload *b, gradcomp_payload *out, gradcomp_error *err)
{
	const sdk_sparse *s = instance;
	notes n = notes_of(s, work);
	float *val = out->data;
	(void)round;
	if (*n.merges == most_merges(s))
		return s->host->fail(err, GRADCOMP_ERR_INTERNAL,
		                     "gtopk: more than %u merges for bucket %u on rank %d", *n.merges,
		                     work->bucket->index, s->layout->rank);
	gradcomp_status st = read_indices(s, work, a, &n, n.a, err);
	if (!st)
		st = read_indices(s, work, b, &n, n.b, err);
	if (st)
		return st;
	out->bytes = a->bytes;
	if (overflown(work, a, n.k) || overflown(work, b, n.k)) {
		memcpy(out->data, overflown(work, a, n.k) ? a->data : b->data, out->bytes);
		return GRADCOMP_OK;
	}
	uint64_t at = n.k * (*n.merges)++;
	work->operators->sparse_merge(work->queue, n.out, val, n.left_idx + at, n.left_val + at, n.a, a->data, n.b,
	                              b->data, n.k, n.operator_scratch);
	sdk_sparse_index_pack(work->operators, work->queue, s->coding.indices, val + n.k, n.out, n.d, n.k);
	return GRADCOMP_OK;
}

static gradcomp_status decode(void *instance, const gradcomp_work *work, uint32_t round, const gradcomp_payload *in,
                              uint32_t n_in, gradcomp_error *err)
{
	const sdk_sparse *s = instance;
	const gradcomp_operators *op = work->operators;
	(void)round;
	if (sdk_sparse_is_passthrough(s, work->step)) {
		sdk_passthrough_decode(work);
		return GRADCOMP_OK;
	}
	notes n = notes_of(s, work);
	if (n_in != 1)
		return s->host->fail(err, GRADCOMP_ERR_INTERNAL, "gtopk: %u merged payloads, one is right", n_in);
	gradcomp_status st = read_indices(s, work, in, &n, n.a, err);
	if (st)
		return st;
	if (overflown(work, in, n.k)) {
		op->fill(work->queue, work->flat, NAN, n.d);
		return GRADCOMP_OK;
	}
	sdk_residual_all(work);
	op->scatter(work->queue, work->error_flat, n.sent, NULL, n.k);
	op->scatter_add(work->queue, work->error_flat, n.d, n.left_idx, n.left_val, n.k * *n.merges, 1);
	op->fill(work->queue, work->flat, 0, n.d);
	return op->scatter_add(work->queue, work->flat, n.d, n.a, in->data, n.k, 1.0f / (float)s->layout->nranks);
}

static gradcomp_status cost(void *instance, const gradcomp_bucket *bucket, uint64_t step, gradcomp_cost *cost,
                            gradcomp_error *err)
{
	const sdk_sparse *s = instance;
	int dense = sdk_sparse_is_passthrough(s, step);
	(void)err;
	cost->rounds = 1;
	cost->wire_bytes = (double)(dense ? 4 * bucket->numel
	                                  : payload_bytes(s, bucket->numel, sdk_sparse_part_at(s, bucket, step, 0).k));
	cost->passes = dense ? 1 : 4;
	return GRADCOMP_OK;
}

GRADCOMP_EXPORT const struct gradcomp_compressor_v1 gradcomp_compressor_v1 = {
	.info =
		{
			.abi_version = GRADCOMP_ABI_VERSION,
			.struct_size = sizeof gradcomp_compressor_v1,
			.name = "gtopk",
			.version = "1.0",
			.summary = "the largest numbers of the sum over ranks, merged along a tree",
			.licence = "MIT",
			.params = params,
			.nparams = sizeof params / sizeof params[0],
		},
	.traits = GRADCOMP_TRAIT_ERROR_FEEDBACK,
	.patterns = GRADCOMP_PATTERN_BIT(GRADCOMP_MERGED) | GRADCOMP_PATTERN_BIT(GRADCOMP_SUMMED),
	.max_bucket = UINT32_MAX,
	.check = check,
	.create = create,
	.destroy = sdk_sparse_destroy,
	.plan = plan,
	.encode = encode,
	.decode = decode,
	.merge = merge,
	.cost = cost,
};
