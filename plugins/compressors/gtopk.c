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
#include <float.h>
#include <math.h>
#include <string.h>

#include "gradcomp/sdk/payload.h"
#include "gradcomp/sdk/residual.h"
#include "gradcomp/sdk/scratch.h"
#include "gradcomp/sdk/sparse.h"

static const gradcomp_param params[] = {SDK_SPARSE_SCHEDULE_ROWS, SDK_SPARSE_INDICES_ROW};

static gradcomp_status check(const gradcomp_host *host, const gradcomp_value *values, gradcomp_error *err)
{
	sdk_sparse_schedule s;
	return sdk_sparse_schedule_read(&s, host, values, "gtopk", err);
}

static gradcomp_status create(const gradcomp_host *host, const gradcomp_value *values, const gradcomp_layout *layout,
                              void **instance, gradcomp_error *err)
{
	return sdk_sparse_new(sizeof(sdk_sparse), host, values, layout, "gtopk", SDK_SPARSE_VALUES, instance, err);
}

/* A bucket's scratch: what encode() sent and what merges dropped, for decode(). The
 * merges of a rank come one after another. On a device nobody can count them, and each adds
 * what it drops at once. */
typedef struct notes {
	uint64_t d, k;
	uint32_t *merges;      /* so far */
	float *rest;           /* on a device: d numbers, u without what was sent, with what was dropped */
	uint32_t *sent;        /* k indices that encode() sent */
	uint32_t *a, *b, *out; /* k each: of two payloads, and of what becomes of them */
	uint32_t *left_idx;    /* k for each merge; on a device of one */
	float *left_val;
	void *operator_scratch; /* for operators */
} notes;

enum { FIRST = 16 }; /* words before the lists */

static uint32_t most_merges(const sdk_sparse *s)
{
	return 2 + 31 - (uint32_t)__builtin_clz((uint32_t)s->layout->nranks);
}

static int on_device(const sdk_sparse *s)
{
	return GRADCOMP_HAS(s->layout, device) && s->layout->device != GRADCOMP_HOST;
}

static uint64_t left_lists(const sdk_sparse *s)
{
	return on_device(s) ? 1 : most_merges(s);
}

static uint64_t words_before_room(const sdk_sparse *s, uint64_t d, uint64_t k)
{
	return (FIRST + (on_device(s) ? d : 0) + 4 * k + 2 * k * left_lists(s) + 15) / 16 * 16;
}

static notes notes_of(const sdk_sparse *s, const gradcomp_work *work)
{
	notes n = {.d = work->bucket->numel,
	           .k = sdk_sparse_part_at(s, work->bucket, work->step, 0).k,
	           .merges = work->scratch};
	n.rest = (float *)(n.merges + FIRST);
	n.sent = n.merges + FIRST + (on_device(s) ? n.d : 0);
	n.a = n.sent + n.k;
	n.b = n.a + n.k;
	n.out = n.b + n.k;
	n.left_idx = n.out + n.k;
	n.left_val = (float *)(n.left_idx + n.k * left_lists(s));
	n.operator_scratch = n.merges + words_before_room(s, n.d, n.k);
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
	const uint64_t room[] = {op->topk_scratch(d, k), op->sparse_merge_scratch(k),
	                         sdk_sparse_index_scratch(op, s->coding.indices, d, k)};
	(void)err;
	if (sdk_sparse_is_passthrough(s, step)) {
		sdk_passthrough_plan(bucket, plan);
		return GRADCOMP_OK;
	}
	plan->nrounds = 1;
	plan->rounds[0] = (gradcomp_round){.pattern = GRADCOMP_MERGED, .bound = payload_bytes(s, d, k)};
	for (size_t i = 0; i < sizeof room / sizeof room[0]; i++)
		plan->scratch_bytes = room[i] > plan->scratch_bytes ? room[i] : plan->scratch_bytes;
	plan->scratch_bytes += words_before_room(s, d, k) * sizeof(uint32_t);
	return GRADCOMP_OK;
}

static gradcomp_status encode(void *instance, const gradcomp_work *work, uint32_t round, gradcomp_payload *out,
                              gradcomp_error *err)
{
	const sdk_sparse *s = instance;
	const gradcomp_operators *op = work->operators;
	notes n = notes_of(s, work);
	float *val = out->data;
	(void)round;
	op->topk(work->queue, n.sent, val, work->flat, n.d, n.k, n.operator_scratch);
	const char *wrong = work->device == GRADCOMP_HOST ? sdk_sparse_index_check(n.sent, n.d, n.k) : NULL;
	if (wrong)
		return s->host->fail(err, GRADCOMP_ERR_INTERNAL,
		                     "gtopk: what was chosen for bucket %u %s (%llu of %llu numbers)",
		                     work->bucket->index, wrong, (unsigned long long)n.k, (unsigned long long)n.d);
	sdk_sparse_index_pack(op, work->queue, s->coding.indices, val + n.k, n.sent, n.d, n.k);
	if (on_device(s)) {
		op->copy(work->queue, n.rest, work->flat, n.d * sizeof(float));
		op->scatter(work->queue, n.rest, n.sent, NULL, n.k);
	} else {
		*n.merges = 0;
	}
	out->bytes = payload_bytes(s, n.d, n.k);
	return GRADCOMP_OK;
}

/* The indices of a payload, which may be a peer's. Those that are not right are an error; on a
 * device the host learns of it later, and this rank's own stand in for them. */
static gradcomp_status read_indices(const sdk_sparse *s, const gradcomp_work *work, const gradcomp_payload *in,
                                    const notes *n, uint32_t *idx, gradcomp_error *err)
{
	uint64_t right = payload_bytes(s, n->d, n->k);
	if (in->bytes != right)
		return s->host->fail(err, GRADCOMP_ERR_MISMATCH,
		                     "gtopk: rank %d got %llu bytes for bucket %u, %llu are right", s->layout->rank,
		                     (unsigned long long)in->bytes, work->bucket->index, (unsigned long long)right);
	if (work->device != GRADCOMP_HOST) {
		const gradcomp_operators *op = work->operators;
		sdk_sparse_index_unpack(op, work->queue, work->fault, s->coding.indices, (float *)in->data + n->k, idx,
		                        n->d, n->k, n->operator_scratch);
		op->sparse_check(work->queue, work->fault, idx, NULL, n->k, n->d);
		op->copy_if(work->queue, (float *)idx, (const float *)n->sent, n->k, work->fault, 1);
		return GRADCOMP_OK;
	}
	const char *wrong =
		sdk_sparse_index_read(work->operators, s->coding.indices, (float *)in->data + n->k, idx, n->d, n->k);
	if (wrong)
		return s->host->fail(err, GRADCOMP_ERR_MISMATCH,
		                     "gtopk: a payload that rank %d got for bucket %u %s (%llu of %llu numbers)",
		                     s->layout->rank, work->bucket->index, wrong, (unsigned long long)n->k,
		                     (unsigned long long)n->d);
	return GRADCOMP_OK;
}

/* Sums of finite gradients can still overflow. That goes on to all ranks as it is; on a
 * device by itself, since nothing is larger. */
static int overflown(const gradcomp_work *work, const gradcomp_payload *in, uint64_t k)
{
	return work->device == GRADCOMP_HOST && sdk_sparse_value_check(work->operators, in->data, k) != NULL;
}

static gradcomp_status merge(void *instance, const gradcomp_work *work, uint32_t round, const gradcomp_payload *a,
                             const gradcomp_payload *b, gradcomp_payload *out, gradcomp_error *err)
{
	const sdk_sparse *s = instance;
	const gradcomp_operators *op = work->operators;
	const int there = on_device(s);
	notes n = notes_of(s, work);
	float *val = out->data;
	(void)round;
	if (!there && *n.merges == most_merges(s))
		return s->host->fail(err, GRADCOMP_ERR_INTERNAL, "gtopk: more than %u merges for bucket %u on rank %d",
		                     *n.merges, work->bucket->index, s->layout->rank);
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
	uint64_t at = there ? 0 : n.k * (*n.merges)++;
	op->sparse_merge(work->queue, n.out, val, n.left_idx + at, n.left_val + at, n.a, a->data, n.b, b->data, n.k,
	                 n.operator_scratch);
	sdk_sparse_index_pack(op, work->queue, s->coding.indices, val + n.k, n.out, n.d, n.k);
	if (there)
		op->scatter_add(work->queue, n.rest, n.d, n.left_idx, n.left_val, n.k, 1);
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
	st = sdk_overflow(s->host, "gtopk", work, in->data, n.k, FLT_MAX, err);
	if (st)
		return st;
	if (on_device(s)) {
		op->copy(work->queue, work->error_flat, n.rest, n.d * sizeof(float));
	} else {
		sdk_residual_all(work);
		op->scatter(work->queue, work->error_flat, n.sent, NULL, n.k);
		op->scatter_add(work->queue, work->error_flat, n.d, n.left_idx, n.left_val, n.k * *n.merges, 1);
	}
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
	.traits = GRADCOMP_TRAIT_ERROR_FEEDBACK | GRADCOMP_TRAIT_CUDA,
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
