/* powersgd: low-rank compression by one step of subspace iteration (Vogels,
 * Karimireddy, Jaggi: PowerSGD, NeurIPS 2019).
 *
 * A tensor is an n x m matrix M: n its first dimension, m the product of the
 * others. With Q (m x r) kept from the step before, rank w does
 *
 *     encode 0   Q := orth(Q), P_w = M_w Q
 *     decode 0   P := orth(mean of P_w)
 *     encode 1   Q_w = M_w^T P
 *     decode 1   Q := mean of Q_w, average = P Q^T, error = M_w - P Q_w^T
 *
 * The error is against the rank's own Q_w: the sum over ranks is the same, and
 * no rank drifts by what the others sent. Vectors, and tensors that would not
 * shrink min_ratio times, are averaged as they are and leave no error.
 *
 * Payloads, F32, the tensors of the bucket in order: round 0 has P_w (n x r) of
 * the compressed and the whole of the others, round 1 has Q_w (m x r) of the
 * compressed; a bucket without any has one round. */
#include <stdio.h>
#include <string.h>

#include "powersgd.h"

enum { RANK, MIN_RATIO, START_STEP, WARM_START };

static const gradcomp_param params[] = {
	[RANK] = {.name = "rank",
                  .type = GRADCOMP_PARAM_INT,
                  .def = "4",
                  .min = 1,
                  .max = 64,
                  .help = "columns of the factors; more is closer to the gradient and more to send"},
	[MIN_RATIO] = {.name = "min_ratio",
                       .type = GRADCOMP_PARAM_FLOAT,
                       .def = "2",
                       .min = 0,
                       .max = 1e6,
                       .help = "a tensor that would not shrink by more than this factor is sent whole"},
	[START_STEP] = {.name = "start_step",
                        .type = GRADCOMP_PARAM_INT,
                        .def = "0",
                        .min = 0,
                        .max = 1e15,
                        .help = "this many steps at the start send everything whole"},
	[WARM_START] = {.name = "warm_start",
                        .type = GRADCOMP_PARAM_BOOL,
                        .def = "yes",
                        .help = "begin each step with the factor of the step before, not with a random one"},
};

static matrix shape(const gradcomp_tensor *t, const gradcomp_value *values)
{
	matrix a = {0};
	uint64_t rank = (uint64_t)values[RANK].i;
	if (t->ndim < 2 || !t->numel)
		return a;
	a.n = t->dims[0];
	a.m = t->numel / a.n;
	uint64_t small = a.n < a.m ? a.n : a.m;
	a.r = rank < small ? rank : small;
	if (((double)a.n + (double)a.m) * (double)a.r * values[MIN_RATIO].f >= (double)a.n * (double)a.m)
		a.r = 0;
	return a;
}

void powersgd_draw(const powersgd *p, uint32_t tensor, uint64_t step, const gradcomp_operators *op, void *queue,
                   float *Q)
{
	uint64_t floats = p->tensors[tensor].m * p->tensors[tensor].r;
	op->random_normal(queue, Q, floats, p->layout->seed, tensor, step * floats);
}

static void powersgd_destroy(void *instance)
{
	powersgd *p = instance;
	if (!p)
		return;
	const gradcomp_host *host = p->host;
	host->release(p->tensors);
	host->release(p->Q);
	host->release(p);
}

static gradcomp_status powersgd_create(const gradcomp_host *host, const gradcomp_value *values,
                                       const gradcomp_layout *layout, void **instance, gradcomp_error *err)
{
	powersgd *p = host->alloc(sizeof *p);
	if (!p)
		return host->fail(err, GRADCOMP_ERR_NOMEM, "powersgd: no memory");
	p->host = host;
	p->layout = layout;
	p->start_step = (uint64_t)values[START_STEP].i;
	p->warm = values[WARM_START].i != 0;
	p->tensors = host->alloc((layout->ntensors + 1) * sizeof *p->tensors);
	if (!p->tensors)
		goto fail;
	for (uint32_t i = 0; i < layout->ntensors; i++) {
		matrix *t = &p->tensors[i];
		*t = shape(&layout->tensors[i], values);
		t->q = p->q_floats;
		if (t->r)
			snprintf(t->choice, sizeof t->choice, "rank %u", (unsigned)t->r);
		else
			strcpy(t->choice, "dense");
		p->q_floats += p->warm ? t->m * t->r : 0;
	}
	if (p->q_floats && !(p->Q = host->alloc(p->q_floats * sizeof *p->Q)))
		goto fail;
	for (uint32_t i = 0; p->Q && i < layout->ntensors; i++)
		powersgd_draw(p, i, 0, host->operators, NULL, p->Q + p->tensors[i].q);
	*instance = p;
	return GRADCOMP_OK;
fail:
	host->fail(err, GRADCOMP_ERR_NOMEM, "powersgd: no memory for the factors of %u tensors (%llu bytes)",
	           layout->ntensors, (unsigned long long)(p->q_floats * sizeof *p->Q));
	powersgd_destroy(p);
	return GRADCOMP_ERR_NOMEM;
}

static const char *powersgd_choice(void *instance, uint32_t tensor)
{
	const powersgd *p = instance;
	return tensor < p->layout->ntensors ? p->tensors[tensor].choice : NULL;
}

GRADCOMP_EXPORT const struct gradcomp_compressor_v1 gradcomp_compressor_v1 = {
	.info =
		{
			.abi_version = GRADCOMP_ABI_VERSION,
			.struct_size = sizeof gradcomp_compressor_v1,
			.name = "powersgd",
			.version = "1.0",
			.summary = "low-rank factors by one warm-started power iteration a step",
			.licence = "MIT",
			.params = params,
			.nparams = sizeof params / sizeof params[0],
		},
	.traits = GRADCOMP_TRAIT_ERROR_FEEDBACK | GRADCOMP_TRAIT_SHAPED,
	.patterns = GRADCOMP_PATTERN_BIT(GRADCOMP_SUMMED),
	.create = powersgd_create,
	.destroy = powersgd_destroy,
	.plan = powersgd_plan,
	.encode = powersgd_encode,
	.decode = powersgd_decode,
	.save = powersgd_save,
	.load = powersgd_load,
	.cost = powersgd_cost,
	.choice = powersgd_choice,
};
