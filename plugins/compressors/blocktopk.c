/* blocktopk: of all blocks of a bucket those that matter most to all ranks together, the
 * same ones on every rank, so that they are summed as they are and no index is sent
 * (coarse-grained sparsity: Sun, Feng, Han, Yan, Wen: Optimizing network performance for
 * distributed DNN training on GPU clusters, arXiv 1902.06855, 2019).
 *
 *     s_b = sum over ranks of sum |u_i|, i in block b       B = the k blocks of largest s_b
 *     average = mean over ranks of u in B, 0 elsewhere      error = u, 0 in B
 *
 * k = max(1, round(density * blocks)); equal sums go to the lower block. The last block
 * of a bucket may be shorter. rows=yes: the rows of each matrix are its blocks, of which k
 * are chosen; vectors are sent whole.
 *
 * Rounds: s_b of what there is to choose from, SUMMED, 4 bytes a block; the chosen blocks in
 * order, SUMMED, 4 k block bytes: 0s stand behind a last block that is shorter. Where there
 * is nothing to choose there is one round, of the bucket itself. */
#include <stdbool.h>
#include <float.h>

#include "gradcomp/sdk/payload.h"
#include "gradcomp/sdk/residual.h"
#include "gradcomp/sdk/scratch.h"
#include "gradcomp/sdk/sparse.h"

enum { BLOCK = SDK_SPARSE_INDICES, ROWS };

static const gradcomp_param params[] = {
	/* 1 % of such blocks does not train (doc/results/accuracy.md). */
	SDK_SPARSE_SCHEDULE_ROWS_OF("0.1"),
	[BLOCK] = {.name = "block",
                   .type = GRADCOMP_PARAM_INT,
                   .def = "256",
                   .min = 1,
                   .max = 1 << 20,
                   .help = "numbers that are chosen together"},
	[ROWS] = {.name = "rows",
                  .type = GRADCOMP_PARAM_BOOL,
                  .def = "no",
                  .help = "the rows of each matrix are its blocks, and vectors are sent whole"},
};

typedef struct blocktopk {
	sdk_sparse s;
	uint64_t block; /* 0: rows */
} blocktopk;

/* A run of numbers that k of its blocks are chosen from. */
typedef struct part {
	uint64_t at, d; /* in the bucket */
	uint64_t width; /* a block's */
	uint64_t blocks, k;
	uint64_t sums, values; /* floats sent: 0 sums when all blocks are */
} part;

static uint32_t parts(const blocktopk *p, const gradcomp_bucket *bucket)
{
	return p->block ? 1 : bucket->ntensors;
}

static part part_at(const blocktopk *p, const gradcomp_bucket *bucket, uint64_t step, uint32_t i)
{
	const gradcomp_tensor *t = &p->s.layout->tensors[bucket->first + i];
	part a = {.d = bucket->numel, .width = p->block};
	if (!p->block) {
		a = (part){.at = t->offset - bucket->offset, .d = t->numel, .width = t->numel};
		if (t->ndim > 1 && t->numel)
			a.width = t->numel / t->dims[0];
	}
	if (!a.d)
		return a;
	a.blocks = (a.d + a.width - 1) / a.width;
	a.k = sdk_sparse_share(sdk_sparse_density(&p->s.schedule, step), a.blocks);
	a.sums = a.k < a.blocks ? a.blocks : 0;
	a.values = a.sums ? a.k * a.width : a.d;
	return a;
}

/* Adds up a whole bucket. */
typedef struct totals {
	uint64_t sums, values, chosen;
	uint64_t operator_scratch;
} totals;

static totals measure(const blocktopk *p, const gradcomp_bucket *bucket, uint64_t step)
{
	const gradcomp_operators *op = sdk_layout_operators(p->s.host, p->s.layout);
	totals all = {0};
	for (uint32_t i = 0; i < parts(p, bucket); i++) {
		part a = part_at(p, bucket, step, i);
		uint64_t choose = a.sums ? op->topk_scratch(a.blocks, a.k) : 0;
		all.sums += a.sums;
		all.values += a.values;
		all.chosen += a.sums ? a.k : 0;
		all.operator_scratch = all.operator_scratch > choose ? all.operator_scratch : choose;
	}
	return all;
}

static bool is_passthrough(const blocktopk *p, const totals *all, uint64_t step)
{
	return sdk_sparse_is_passthrough(&p->s, step) || !all->sums;
}

/* Scratch. */
typedef struct rooms {
	uint32_t *chosen; /* blocks */
	float *largest;   /* their sums */
	void *operator_scratch;
} rooms;

static rooms divide(const totals *all, sdk_scratch *scratch)
{
	rooms r = {.chosen = sdk_scratch_take(scratch, all->chosen * sizeof(uint32_t))};
	r.largest = sdk_scratch_take(scratch, all->chosen * sizeof(float));
	r.operator_scratch = sdk_scratch_take(scratch, all->operator_scratch);
	return r;
}

static rooms rooms_of(const totals *all, const gradcomp_work *work)
{
	return divide(all, &(sdk_scratch){.memory = work->scratch});
}

static gradcomp_status blocktopk_check(const gradcomp_host *host, const gradcomp_value *values, gradcomp_error *err)
{
	sdk_sparse_schedule s;
	return sdk_sparse_schedule_read(&s, host, values, "blocktopk", err);
}

static gradcomp_status blocktopk_create(const gradcomp_host *host, const gradcomp_value *values,
                                        const gradcomp_layout *layout, void **instance, gradcomp_error *err)
{
	void *made;
	gradcomp_status st =
		sdk_sparse_new(sizeof(blocktopk), host, values, layout, "blocktopk", SDK_SPARSE_INDICES, &made, err);
	if (st)
		return st;
	((blocktopk *)made)->block = values[ROWS].i ? 0 : (uint64_t)values[BLOCK].i;
	*instance = made;
	return GRADCOMP_OK;
}

static gradcomp_status blocktopk_plan(void *instance, const gradcomp_bucket *bucket, uint64_t step, gradcomp_plan *plan,
                                      gradcomp_error *err)
{
	const blocktopk *p = instance;
	totals all = measure(p, bucket, step);
	sdk_scratch scratch = {0};
	(void)err;
	if (is_passthrough(p, &all, step)) {
		sdk_passthrough_plan(bucket, plan);
		return GRADCOMP_OK;
	}
	plan->nrounds = 2;
	plan->rounds[0] = sdk_passthrough_round(all.sums);
	plan->rounds[0].flags = 0;
	plan->rounds[1] = sdk_passthrough_round(all.values);
	divide(&all, &scratch);
	plan->scratch_bytes = scratch.bytes;
	return GRADCOMP_OK;
}

static gradcomp_status blocktopk_encode(void *instance, const gradcomp_work *work, uint32_t round,
                                        gradcomp_payload *out, gradcomp_error *err)
{
	const blocktopk *p = instance;
	const gradcomp_operators *op = work->operators;
	const float most =
		FLT_MAX / 2 / (float)p->s.layout->nranks; /* sums over ranks are finite, however large gradients are */
	totals all = measure(p, work->bucket, work->step);
	const uint32_t *chosen = rooms_of(&all, work).chosen;
	float *to = out->data;
	(void)err;
	for (uint32_t i = 0; i < parts(p, work->bucket); i++) {
		part a = part_at(p, work->bucket, work->step, i);
		const float *x = work->flat + a.at;
		if (round == 0) {
			if (a.sums)
				op->blocks_sum_abs(work->queue, to, x, a.d, a.width, most);
			to += a.sums;
			continue;
		}
		if (a.sums)
			op->blocks_gather(work->queue, to, x, chosen, a.k, a.d, a.width);
		else
			op->copy(work->queue, to, x, a.values * sizeof *to);
		chosen += a.sums ? a.k : 0;
		to += a.values;
	}
	out->bytes = (round == 0 ? all.sums : all.values) * sizeof *to;
	return GRADCOMP_OK;
}

/* Finds the blocks that all ranks choose. */
static gradcomp_status choose(const blocktopk *p, const gradcomp_work *work, const totals *all, const float *sums,
                              gradcomp_error *err)
{
	rooms r = rooms_of(all, work);
	int bad = 0;
	work->operators->range_check(work->queue, sdk_gathered_fault(work, &bad), sums, all->sums, 0, FLT_MAX);
	if (bad)
		return p->s.host->fail(
			err, GRADCOMP_ERR_MISMATCH,
			"blocktopk: the blocks of bucket %u have a sum that is negative or not finite: some rank "
			"sent what is none",
			work->bucket->index);
	for (uint32_t i = 0; i < parts(p, work->bucket); i++) {
		part a = part_at(p, work->bucket, work->step, i);
		if (!a.sums)
			continue;
		work->operators->topk(work->queue, r.chosen, r.largest, sums, a.blocks, a.k, r.operator_scratch);
		/* Blocks are moved to where these say. */
		work->operators->sparse_check(work->queue, sdk_gathered_fault(work, &bad), r.chosen, NULL, a.k,
		                              a.blocks);
		r.chosen += a.k;
		sums += a.sums;
	}
	if (bad)
		return p->s.host->fail(
			err, GRADCOMP_ERR_INTERNAL,
			"blocktopk: what was chosen of the blocks of bucket %u are no places that ascend below their "
			"number",
			work->bucket->index);
	return GRADCOMP_OK;
}

static void finish(const blocktopk *p, const gradcomp_work *work, const totals *all, const float *mean)
{
	const gradcomp_operators *op = work->operators;
	const uint32_t *chosen = rooms_of(all, work).chosen;
	void *queue = work->queue;
	sdk_residual_all(work);
	op->fill(queue, work->flat, 0, work->bucket->numel);
	for (uint32_t i = 0; i < parts(p, work->bucket); i++) {
		part a = part_at(p, work->bucket, work->step, i);
		float *x = work->flat + a.at, *e = work->error_flat + a.at;
		if (a.sums) {
			op->blocks_scatter(queue, x, chosen, mean, a.k, a.d, a.width);
			op->blocks_scatter(queue, e, chosen, NULL, a.k, a.d, a.width);
			chosen += a.k;
		} else {
			op->copy(queue, x, mean, a.d * sizeof *x);
			op->fill(queue, e, 0, a.d);
		}
		mean += a.values;
	}
}

static gradcomp_status blocktopk_decode(void *instance, const gradcomp_work *work, uint32_t round,
                                        const gradcomp_payload *in, uint32_t n, gradcomp_error *err)
{
	const blocktopk *p = instance;
	totals all = measure(p, work->bucket, work->step);
	uint64_t want = (round == 0 ? all.sums : all.values) * sizeof(float);
	if (is_passthrough(p, &all, work->step)) {
		sdk_passthrough_decode(work);
		return GRADCOMP_OK;
	}
	if (n != 1 || in->bytes != want)
		return p->s.host->fail(err, GRADCOMP_ERR_INTERNAL,
		                       "blocktopk: round %u of bucket %u brought %llu bytes, not %llu", round,
		                       work->bucket->index, (unsigned long long)in->bytes, (unsigned long long)want);
	if (round == 0)
		return choose(p, work, &all, in->data, err);
	finish(p, work, &all, in->data);
	return GRADCOMP_OK;
}

static gradcomp_status blocktopk_cost(void *instance, const gradcomp_bucket *bucket, uint64_t step, gradcomp_cost *cost,
                                      gradcomp_error *err)
{
	const blocktopk *p = instance;
	totals all = measure(p, bucket, step);
	int dense = is_passthrough(p, &all, step);
	(void)err;
	cost->rounds = dense ? 1 : 2;
	cost->wire_bytes = 4.0 * (double)(dense ? bucket->numel : all.sums + all.values);
	cost->passes = dense ? 1 : 4; /* the sums read; x to the error; x cleared */
	return GRADCOMP_OK;
}

GRADCOMP_EXPORT const struct gradcomp_compressor_v1 gradcomp_compressor_v1 = {
	.info =
		{
			.abi_version = GRADCOMP_ABI_VERSION,
			.struct_size = sizeof gradcomp_compressor_v1,
			.name = "blocktopk",
			.version = "1.0",
			.summary = "the blocks or rows that are largest over all ranks, summed",
			.licence = "MIT",
			.params = params,
			.nparams = sizeof params / sizeof params[0],
		},
	.traits = GRADCOMP_TRAIT_ERROR_FEEDBACK | GRADCOMP_TRAIT_CUDA,
	.patterns = GRADCOMP_PATTERN_BIT(GRADCOMP_SUMMED),
	.max_bucket = UINT32_MAX,
	.check = blocktopk_check,
	.create = blocktopk_create,
	.destroy = sdk_sparse_destroy,
	.plan = blocktopk_plan,
	.encode = blocktopk_encode,
	.decode = blocktopk_decode,
	.cost = blocktopk_cost,
};
