/* mstopk: top-k by multiple samplings (Shi, Zhou, Song, Wang, Zhu, Chu: Exploiting
 * fast and scalable communication for distributed deep learning, 2020). A threshold
 * that about k numbers reach is found by bisection; what is missing to exactly k is a
 * run, at a random index, of numbers that nearly reach it. See mstopk() in
 * gradcomp/operators.h.
 *
 *     average = 1/P * sum over ranks of what they sent       error = u - own share
 *
 * The random number follows from the seed, the rank, the step and the tensor.
 * Payload: as topk's, see sparse.h. */
#include "gradcomp/sdk/random_stream.h"
#include "gradcomp/sdk/scratch.h"
#include "gradcomp/sdk/sparse.h"

enum { SAMPLINGS = SDK_SPARSE_LAYERWISE_PARAMS };

static const gradcomp_param params[] = {
	SDK_SPARSE_SCHEDULE_ROWS,
	SDK_SPARSE_INDICES_ROW,
	SDK_SPARSE_VALUES_ROW,
	SDK_SPARSE_LAYERWISE_ROW,
	[SAMPLINGS] = {.name = "samplings",
                       .type = GRADCOMP_PARAM_INT,
                       .def = "30",
                       .min = 1,
                       .max = 100,
                       .help = "steps of the bisection"},
};

typedef struct mstopk {
	sdk_sparse sparse;
	int samplings;
} mstopk;

static size_t scratch(const sdk_sparse *s, uint64_t d, uint64_t k)
{
	return sdk_layout_operators(s->host, s->layout)->mstopk_scratch(d, k);
}

static void select_sampled(const sdk_sparse *s, const gradcomp_work *work, const sdk_sparse_part *p, const float *x,
                           sdk_sparse_pairs out, void *workspace)
{
	uint64_t stream = sdk_random_stream(s->layout, work->step) + p->tensor * 0x9e3779b97f4a7c15u;
	work->operators->mstopk(work->queue, out.idx, out.val, x, p->d, p->k, ((const mstopk *)s)->samplings,
	                        s->layout->seed, stream, workspace);
}

static gradcomp_status check(const gradcomp_host *host, const gradcomp_value *values, gradcomp_error *err)
{
	sdk_sparse_schedule s;
	return sdk_sparse_schedule_read(&s, host, values, "mstopk", err);
}

static gradcomp_status create(const gradcomp_host *host, const gradcomp_value *values, const gradcomp_layout *layout,
                              void **instance, gradcomp_error *err)
{
	gradcomp_status st = sdk_sparse_new(sizeof(mstopk), host, values, layout, "mstopk", SDK_SPARSE_LAYERWISE_PARAMS,
	                                    instance, err);
	if (st)
		return st;
	mstopk *m = *instance;
	m->samplings = (int)values[SAMPLINGS].i;
	m->sparse.select_scratch = scratch;
	m->sparse.select = select_sampled;
	return GRADCOMP_OK;
}

GRADCOMP_EXPORT const struct gradcomp_compressor_v1 gradcomp_compressor_v1 = {
	.info =
		{
			.abi_version = GRADCOMP_ABI_VERSION,
			.struct_size = sizeof gradcomp_compressor_v1,
			.name = "mstopk",
			.version = "1.0",
			.summary = "nearly the largest numbers of each bucket, exactly k of them, found by bisection",
			.licence = "MIT",
			.params = params,
			.nparams = sizeof params / sizeof params[0],
		},
	.traits = GRADCOMP_TRAIT_ERROR_FEEDBACK | GRADCOMP_TRAIT_CUDA | GRADCOMP_TRAIT_STOCHASTIC,
	.patterns = GRADCOMP_PATTERN_BIT(GRADCOMP_GATHERED) | GRADCOMP_PATTERN_BIT(GRADCOMP_SUMMED),
	.max_bucket = UINT32_MAX,
	.check = check,
	.create = create,
	.destroy = sdk_sparse_destroy,
	.plan = sdk_sparse_plan,
	.encode = sdk_sparse_encode,
	.decode = sdk_sparse_decode,
	.cost = sdk_sparse_cost,
};
