/* The compressor, the collective and the layout that costs are asked for. */
#include "cost/cost_internal.h"

#include "base/error.h"
#include "cost/machine.h"
#include "step/levels/hierarchical.h"
#include "config/settings.h"
#include "plugin/compat.h"
#include "plugin/plugin_host.h"

#include <stdint.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

static const log_sink quiet = {GRADCOMP_LOG_ERROR, -1};

/* A rank's part of a tensor, of two levels: a matrix stays one, as in step/levels/, of whole
 * rows where the part has some. */
static void divide(gradcomp_tensor *t, uint64_t ranks, uint64_t dims[2])
{
	uint64_t row = t->ndim > 1 && t->dims[0] ? t->numel / t->dims[0] : 0;
	t->numel = (t->numel + ranks - 1) / ranks;
	dims[0] = row && t->numel % row == 0 ? t->numel / row : 1;
	dims[1] = t->numel / dims[0];
	t->dims = t->ndim > 1 ? dims : dims + 1;
	t->ndim = t->ndim > 1 ? 2 : 1;
}

/* Lays out the model's tensors, last first. */
static gradcomp_status make_layout(cost_model *c, gradcomp_error *err)
{
	const model_file *m = c->model;
	uint64_t at = 0;
	c->tensors = calloc(m->ntensors, sizeof *c->tensors);
	c->whole = calloc(m->ntensors, sizeof *c->whole);
	c->dims = calloc(m->ntensors, 2 * sizeof *c->dims);
	if (!c->tensors || !c->whole || !c->dims)
		return error_set(err, GRADCOMP_ERR_NOMEM, "no memory for %u tensors", m->ntensors);
	for (uint32_t i = 0; i < m->ntensors; i++) {
		const model_tensor *from = &m->tensors[m->ntensors - 1 - i];
		gradcomp_tensor *t = &c->tensors[i];

		c->whole[i] = model_numel(from);
		*t = (gradcomp_tensor){.name = from->name,
		                       .numel = c->whole[i],
		                       .offset = at,
		                       .dims = from->dims,
		                       .ndim = from->ndim,
		                       .dtype = GRADCOMP_F32};
		if (c->two_levels)
			divide(t, (uint64_t)c->ranks_per_node, &c->dims[2 * (size_t)i]);
		at += t->numel;
	}
	c->layout = (gradcomp_layout){.struct_size = sizeof c->layout,
	                              .ntensors = m->ntensors,
	                              .tensors = c->tensors,
	                              .numel = at,
	                              .nranks = c->nodes * (c->two_levels ? 1 : c->ranks_per_node),
	                              .seed = 1,
	                              .patterns = c->layout.patterns,
	                              .device = GRADCOMP_HOST};
	return GRADCOMP_OK;
}

/* *same: a SPEC of the machine is plugin `which` as it is asked for: it may be written by hand, without the
 * parameters that have their defaults. INVALID when the plugin refuses it. */
static gradcomp_status is_asked_for(const cost_model *c, const char *text, int which, int *same, gradcomp_error *err)
{
	const gradcomp_plugin_info *info = c->plugins[which]->info;
	char name[SPEC_NAME_MAX];
	gradcomp_error inner = {0};
	gradcomp_status st;
	spec s;
	*same = !strcmp(text, c->specs[which]->text);
	if (*same || spec_name(text, name, NULL) || strcmp(name, info->name))
		return GRADCOMP_OK;
	st = spec_parse(info, text, &s, &inner);
	if (st)
		return error_set(err, st, "machine '%s', %s '%s': %s", c->machine->name,
		                 which ? "collective" : "compressor", text, inner.text);
	*same = !strcmp(s.text, c->specs[which]->text);
	spec_clear(&s);
	return GRADCOMP_OK;
}

static gradcomp_status find_calls(cost_model *c, gradcomp_error *err)
{
	const machine_file *m = c->machine;
	int here = m->nodes == (uint32_t)c->nodes && m->ranks_per_node == (uint32_t)c->ranks_per_node;
	gradcomp_status st = GRADCOMP_OK;
	for (uint32_t i = 0; !st && i < m->ncalls; i++) {
		const linear **of = &c->measured[cost_primitive_bit(m->calls[i].primitive)];
		int same;

		st = is_asked_for(c, m->calls[i].collective, 1, &same, err);
		if (!st && same && here && !*of)
			*of = &m->calls[i].cost;
	}
	return st;
}

static gradcomp_status find_curve(cost_model *c, gradcomp_error *err)
{
	const machine_file *m = c->machine;
	const gradcomp_bucket all = {
		.struct_size = sizeof all, .ntensors = c->layout.ntensors, .numel = c->layout.numel};
	gradcomp_cost cost = {.struct_size = sizeof cost};
	for (uint32_t i = 0; i < m->ncurves; i++) {
		int same;
		gradcomp_status st = is_asked_for(c, m->curves[i].compressor, 0, &same, err);

		if (st)
			return st;
		if (same)
			c->curve = &m->curves[i];
	}
	/* One that does nothing with numbers needs none. */
	if (c->curve || (c->plugins[0]->compressor->cost &&
	                 !c->plugins[0]->compressor->cost(c->instance, &all, STEP, &cost, NULL) && !(cost.passes > 0)))
		return GRADCOMP_OK;
	return error_set(
		err, GRADCOMP_ERR_UNSUPPORTED,
		"machine '%s' says nothing of compressor %s: measure it with gradcomp probe --compressors SPEC",
		m->name, c->specs[0]->text);
}

enum { MAP_HEAD = 64 }; /* the length, before what is aligned to as much */

/* Set when the thread's last instance did not get what it asked for. */
static _Thread_local bool map_failed;

/* Pages that nobody touches cost nothing, nor are they reserved: together they may be many times the machine's
 * memory. */

static void *map_zeroes(size_t bytes)
{
	size_t whole = bytes + MAP_HEAD;
	char *p;
	if (bytes > PTRDIFF_MAX - MAP_HEAD)
		return NULL;
	p = mmap(NULL, whole, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (p == MAP_FAILED) {
		map_failed = true;
		return NULL;
	}
	memcpy(p, &whole, sizeof whole);
	return p + MAP_HEAD;
}

static void unmap(void *p)
{
	size_t whole;
	if (!p)
		return;
	memcpy(&whole, (char *)p - MAP_HEAD, sizeof whole);
	munmap((char *)p - MAP_HEAD, whole);
}

static void draw_nothing(void *queue, float *out, size_t n, uint64_t seed, uint64_t stream, uint64_t first)
{
	(void)queue;
	(void)out;
	(void)n;
	(void)seed;
	(void)stream;
	(void)first;
}

const char *cost_default_compressor(void)
{
	return settings_table[SET_GRADCOMP_COMPRESSOR].row.def;
}

/* A compressor that has no memory for a model of this size cannot be predicted; others can. */
static gradcomp_status create_instance(cost_model *c, gradcomp_error *err)
{
	gradcomp_status st;
	map_failed = false;
	st = c->plugins[0]->compressor->create(&c->host, c->specs[0]->values, &c->layout, &c->instance, err);
	if (st == GRADCOMP_ERR_NOMEM && map_failed)
		st = err->status = GRADCOMP_ERR_RANGE;
	return st;
}

gradcomp_status cost_open(cost_model *out, const model_file *model, const machine_file *machine, int32_t nodes,
                          int32_t ranks_per_node, const char *compressor, const char *collective, gradcomp_error *err)
{
	cost_model *c = out;
	const struct gradcomp_compressor_v1 *p;
	gradcomp_status st;
	*c = (cost_model){.model = model, .machine = machine, .nodes = nodes, .ranks_per_node = ranks_per_node};
	st = config_load(NULL, &c->config, err);
	if (st)
		return st;
	if (!compressor)
		compressor = cost_default_compressor();
	spec_table_init(&c->table, c->config);
	st = spec_table_both(&c->table, compressor, collective, c->plugins, c->specs, err);
	if (st) {
		cost_clear(c);
		return st;
	}
	p = c->plugins[0]->compressor;
	c->known = calloc(KNOWN, sizeof *c->known);
	plugin_host(&c->host, &quiet);
	/* The instance plans and never encodes: to clear its memory and to draw what low rank begins with
	 * took most of the time of a plan. */
	c->host.alloc = map_zeroes;
	c->host.release = unmap;
	c->operators = *c->host.operators;
	c->operators.random_normal = draw_nothing;
	c->host.operators = &c->operators;
	c->layout.patterns = compat_patterns(c->plugins[0], c->plugins[1]);
	c->two_levels = nodes > 1 && ranks_per_node > 1 &&
	                hierarchical_possible(p, c->layout.patterns, c->plugins[1]->collective);
	st = c->known ? make_layout(c, err) : error_set(err, GRADCOMP_ERR_NOMEM, "no memory to predict");
	for (uint32_t i = 0; !st && p->max_bucket && i < c->layout.ntensors; i++)
		if (c->tensors[i].numel > p->max_bucket)
			st = error_set(err, GRADCOMP_ERR_RANGE,
			               "tensor '%s' has more numbers than compressor '%s' counts in a bucket",
			               c->tensors[i].name, p->info.name);
	if (!st)
		st = create_instance(c, err);
	if (!st)
		st = find_curve(c, err);
	if (!st)
		st = find_calls(c, err);
	if (st)
		cost_clear(c);
	return st;
}

gradcomp_status cost_dense_share(const machine_file *machine, const char *compressor, double *share,
                                 gradcomp_error *err)
{
	uint64_t dims[] = {1024, 1024};
	model_tensor one = {.name = (char[]){"one"}, .dims = dims, .ndim = 2};
	const model_file model = {.ntensors = 1, .tensors = &one};
	bucket_cost sum = {0};
	sim_bucket b;
	cost_model c;
	gradcomp_status st = cost_open(&c, &model, machine, 1, 1, compressor, NULL, err);
	*share = 0;
	if (st)
		return st;
	if (compat_dense(c.plugins[0]))
		st = cost_bucket(&c, 0, 0, 1, &b, &sum, err);
	*share = sum.packed / (sizeof(float) * (double)c.layout.numel);
	cost_clear(&c);
	return st;
}

void cost_clear(cost_model *c)
{
	if (c->instance)
		c->plugins[0]->compressor->destroy(c->instance);
	spec_table_clear(&c->table);
	config_free(c->config);
	free(c->tensors);
	free(c->whole);
	free(c->dims);
	free(c->known);
	memset(c, 0, sizeof *c);
}
