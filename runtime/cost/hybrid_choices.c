/* Submeshes, degrees and compressors a stage can have, with what reducing gradients costs on
 * each: see hybrid.h. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "config/config.h"
#include "config/memory_rows.h"
#include "base/error.h"
#include "cost/hybrid.h"
#include "cost/machine.h"
#include "plugin/spec_table.h"

typedef struct making {
	const model_file *model;
	const machine_file *machine;
	const hybrid_question *q;
	uint64_t samples;
	uint32_t kinds[HYBRID_KINDS], nkinds;
	config *settings;
	spec_table specs;
	rank_choice *choices;
	uint32_t n;
	gradcomp_error skipped; /* why the last compressor that was left out was */
} making;

/* The first tensors of a model as a rank of a tensor-parallel group has them, without work:
 * all gradients are there at once. */
typedef struct part {
	model_file model;
	uint64_t *dims;
	double numel;
} part;

static void part_close(part *p)
{
	free(p->model.tensors);
	free(p->dims);
}

static gradcomp_status part_open(part *p, const making *k, uint32_t ntensors, const rank_choice *c, gradcomp_error *err)
{
	const model_file *m = k->model;
	size_t ndims = 1, at = 0;
	const model_layer *l = m->layers;
	for (uint32_t i = 0; i < ntensors; i++)
		ndims += m->tensors[i].ndim;
	*p = (part){.model = {.ntensors = ntensors, .batch = m->batch}};
	memcpy(p->model.name, m->name, sizeof m->name);
	p->model.tensors = calloc(ntensors, sizeof *p->model.tensors);
	p->dims = calloc(ndims, sizeof *p->dims);
	if (!p->model.tensors || !p->dims) {
		part_close(p);
		return error_set(err, GRADCOMP_ERR_NOMEM, "no memory for a model of %u tensors", ntensors);
	}
	for (uint32_t i = 0; i < ntensors; i++) {
		model_tensor *t = &p->model.tensors[i];
		double numel = 1;

		while (i >= l->first + l->ntensors)
			l++;
		uint32_t kind = hybrid_kind_of(m, k->kinds, k->nkinds, l);
		int held = kind < HYBRID_KINDS && c->held >> kind & 1;
		uint32_t among = hybrid_divides(l, &m->tensors[i]) && !held ? c->tensor : 1;
		*t = m->tensors[i];
		t->forward = t->backward = 0;
		t->dims = p->dims + at;
		for (uint32_t d = 0; d < t->ndim; d++) {
			uint64_t whole = m->tensors[i].dims[d];

			p->dims[at] = d ? whole : (whole + among - 1) / among;
			numel *= (double)p->dims[at++];
		}
		p->numel += numel;
	}
	return GRADCOMP_OK;
}

/* Predicts the seconds to reduce the gradients of the first tensors on this choice. */
static gradcomp_status reduce_part(const making *k, const rank_choice *c, uint32_t ntensors, double *numel,
                                   double *seconds, gradcomp_error *err)
{
	/* Every rank of a group over several nodes reduces with one of each other group. */
	int inside = c->tensor < c->ranks_per_node;
	cost_question q = {.nodes = c->tensor > c->ranks_per_node ? c->data : c->nodes,
	                   .ranks_per_node = inside ? c->ranks_per_node / c->tensor : 1,
	                   .compressor = c->compressor,
	                   .collective = k->q->collective,
	                   .step_alone = 1};
	cost_prediction out = {0};
	machine_file machine = *k->machine;
	gradcomp_status st;
	part p;
	if (c->tensor > 1) {
		machine.level[1].b *= inside ? c->tensor : c->ranks_per_node;
		machine.ncalls = 0; /* they were measured with the interface to themselves */
	}
	st = part_open(&p, k, ntensors, c, err);
	if (st)
		return st;
	st = cost_predict(&p.model, &machine, &q, &out, err);
	*numel = p.numel;
	*seconds = out.step_s;
	part_close(&p);
	return st;
}

/* Tensors of the first half; 0 when they have no parameters. */
static uint32_t first_half(const model_file *m)
{
	uint64_t numel = 0;
	for (uint32_t i = 0; i < m->ntensors / 2; i++)
		numel += model_numel(&m->tensors[i]);
	return numel ? m->ntensors / 2 : 0;
}

/* Fits the line through the costs of all tensors and of the first half of them. */
static gradcomp_status fit_reduction(const making *k, rank_choice *c, gradcomp_error *err)
{
	uint32_t all = k->model->ntensors, half = first_half(k->model);
	double n, t, half_n = 0, half_t = 0;
	gradcomp_status st = reduce_part(k, c, all, &n, &t, err);
	if (!st && half)
		st = reduce_part(k, c, half, &half_n, &half_t, err);
	if (st)
		return st;
	c->b = n > half_n ? fmax(0, (t - half_t) / (n - half_n)) : 0;
	c->a = fmax(0, t - c->b * n);
	return GRADCOMP_OK;
}

static gradcomp_status residual_of(making *k, const char *compressor, double *out, gradcomp_error *err)
{
	const plugin *p[2];
	const spec *s[2];
	gradcomp_status st;
	*out = 0;
	if (!compressor)
		return GRADCOMP_OK;
	st = spec_table_both(&k->specs, compressor, k->q->collective, p, s, err);
	if (st)
		return st;
	float average;
	const memory_form form = memory_rows_asked(p[0]->info, s[0]->values, &average);
	*out = gradcomp_keeps_error(p[0]->compressor, s[0]->values) ? memory_rows_bytes(form) : 0;
	return GRADCOMP_OK;
}

/* A compressor that cannot be predicted is left out, unless none remains. */
static gradcomp_status add_compressed(making *k, rank_choice c, const char *compressor, gradcomp_error *err)
{
	gradcomp_status st;
	c.compressor = compressor;
	st = residual_of(k, compressor, &c.residual, err);
	if (!st)
		st = fit_reduction(k, &c, &k->skipped);
	if (st == GRADCOMP_ERR_UNSUPPORTED)
		return GRADCOMP_OK;
	if (st) {
		if (err && k->skipped.status == st)
			*err = k->skipped;
		return st;
	}
	k->choices[k->n++] = c;
	return GRADCOMP_OK;
}

static int multiple(uint64_t samples, uint32_t ranks)
{
	return ranks && samples % ranks == 0;
}

/* Where `data` groups of `tensor` ranks can share the samples. */
static gradcomp_status add_degree(making *k, rank_choice c, gradcomp_error *err)
{
	static const char *const uncompressed[] = {NULL};
	const char *const *list = k->q->compressors ? k->q->compressors : uncompressed;
	gradcomp_status st = GRADCOMP_OK;
	uint32_t before = k->n, i = 0;

	if (!multiple(k->samples, c.data))
		return GRADCOMP_OK;
	if (k->n == HYBRID_CHOICES_MAX)
		return error_set(err, GRADCOMP_ERR_RANGE, "more than %d choices of ranks for a stage",
		                 HYBRID_CHOICES_MAX);
	if (c.data == 1) {
		k->choices[k->n++] = c;
		return GRADCOMP_OK;
	}
	do {
		if (k->n < HYBRID_CHOICES_MAX)
			st = add_compressed(k, c, list[i], err);
	} while (!st && list[i] && list[++i]);
	if (!st && k->n == before)
		st = error_set(err, GRADCOMP_ERR_UNSUPPORTED, "no compressor can be predicted: %s", k->skipped.text);
	return st;
}

/* Layers of these kinds may be better whole on each rank of a group. */
static uint32_t kinds_to_hold(const making *k, const rank_choice *c)
{
	uint32_t kinds = 0;
	for (uint32_t i = 0; c->tensor > 1 && multiple(k->samples, c->data) && i < k->model->nlayers; i++) {
		const model_layer *l = &k->model->layers[i];
		uint32_t kind = hybrid_kind_of(k->model, k->kinds, k->nkinds, l);

		if (kind < HYBRID_KINDS && hybrid_hold_pays(k->model, k->machine, k->samples, c, l))
			kinds |= 1u << kind;
	}
	return kinds;
}

/* Every set of those is a choice, as long as there is room for other degrees. */
static gradcomp_status add_held(making *k, rank_choice c, gradcomp_error *err)
{
	uint32_t kinds = kinds_to_hold(k, &c);
	gradcomp_status st = add_degree(k, c, err);
	for (c.held = kinds; c.held && !st && k->n < HYBRID_CHOICES_MAX / 2; c.held = (c.held - 1) & kinds)
		st = add_degree(k, c, err);
	return st;
}

/* 1, 2, 4 ... ranks of a node divide the matrices, or all ranks of 2, 4 ... nodes. */
static gradcomp_status add_submesh(making *k, uint32_t nodes, uint32_t ranks, gradcomp_error *err)
{
	rank_choice c = {.nodes = nodes, .ranks_per_node = ranks};
	gradcomp_status st = GRADCOMP_OK;
	for (c.tensor = 1; ranks % c.tensor == 0 && !st; c.tensor *= 2) {
		c.data = nodes * (ranks / c.tensor);
		st = add_held(k, c, err);
	}
	for (uint32_t over = 2; over <= nodes && nodes % over == 0 && !st; over *= 2) {
		c.tensor = over * ranks;
		c.data = nodes / over;
		st = add_held(k, c, err);
	}
	return st;
}

gradcomp_status hybrid_choices(const model_file *model, const machine_file *machine, const hybrid_question *q,
                               uint64_t samples, rank_choice *choices, uint32_t *n, gradcomp_error *err)
{
	making k = {.model = model, .machine = machine, .q = q, .samples = samples, .choices = choices};
	uint64_t all = (uint64_t)q->nodes * q->ranks_per_node;
	gradcomp_status st = config_load(NULL, &k.settings, err);
	if (st)
		return st;
	k.nkinds = hybrid_kinds(model, k.kinds);
	spec_table_init(&k.specs, k.settings);
	/* Each size divides the next one, so that stages of any sizes fit on the nodes. */
	for (uint32_t ranks = 1; ranks < q->ranks_per_node && !st; ranks *= 2)
		if (q->ranks_per_node % ranks == 0 && ranks * (uint64_t)HYBRID_UNITS >= all)
			st = add_submesh(&k, 1, ranks, err);
	for (uint32_t nodes = 1; nodes < q->nodes && !st; nodes *= 2)
		if (nodes * (uint64_t)q->ranks_per_node * HYBRID_UNITS >= all)
			st = add_submesh(&k, nodes, q->ranks_per_node, err);
	if (!st)
		st = add_submesh(&k, q->nodes, q->ranks_per_node, err);
	spec_table_clear(&k.specs);
	config_free(k.settings);
	*n = k.n;
	return st;
}
