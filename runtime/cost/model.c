/* Models: what is right in one, and model files. */
#include "cost/machine.h"

#include <inttypes.h>
#include <math.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/number.h"
#include "config/record_io.h"
#include "cost/layers.h"
#include "schedule/task_list.h"

#define NDIM_MOST 8

#define AT(member) offsetof(model_file, member)
static const field model_rows[] = {
	{"model", "name", FIELD_NAME, 1, AT(name), 0, 0, 0, NULL},
	{"model", "batch", FIELD_LONG, 0, AT(batch), 0, 0, 0, NULL},
	{"model", "io", FIELD_NUMBER, 0, AT(io), 0, SECONDS_MOST, 0, "seconds"},
	{"model", "copy", FIELD_NUMBER, 0, AT(copy), 0, SECONDS_MOST, 0, "seconds"},
	{"model", "update", FIELD_NUMBER, 0, AT(update), 0, SECONDS_MOST, 0, "seconds"},
	{"model", "slower_beside_exchange", FIELD_NUMBER, 0, AT(slower_beside_exchange), 0, 100, 0, "times as long"},
	{"model", "slower_beside_compute", FIELD_NUMBER, 0, AT(slower_beside_compute), 0, 100, 0, "times as long"},
	{"model", "exchanging", FIELD_NUMBER, 0, AT(exchanging), 0, 1, 0, "a share of the backward pass"},
	{"model", "compressing", FIELD_NUMBER, 0, AT(compressing), 0, 1, 0, "a share of the backward pass"},
};
#undef AT

static record_io model_fields(const model_file *m)
{
	return (record_io){
		.row = model_rows, .n = sizeof model_rows / sizeof *model_rows, .base = (void *)(uintptr_t)m};
}

/* Their product; more than NUMEL_MAX when it, without zeroes, is. */
static uint64_t model_product(const uint64_t *dims, uint32_t n)
{
	uint64_t numel = 1;
	int zero = 0;
	for (uint32_t i = 0; i < n; i++) {
		zero |= !dims[i];
		if (dims[i] && numel > NUMEL_MAX / dims[i])
			return NUMEL_MAX + 1;
		numel *= dims[i] ? dims[i] : 1;
	}
	return zero ? 0 : numel;
}

uint64_t model_numel(const model_tensor *t)
{
	return model_product(t->dims, t->ndim);
}

/* Checks what only the whole shows. */
static gradcomp_status model_whole(const model_file *m, gradcomp_error *err)
{
	double seconds = m->io + m->copy + m->update;
	uint64_t numel = 0;
	if (!m->ntensors)
		return error_set(err, GRADCOMP_ERR_INVALID, "model '%s' has no tensors", m->name);
	for (uint32_t i = 0; i < m->ntensors; i++) {
		seconds += m->tensors[i].forward + m->tensors[i].backward;
		numel += model_numel(&m->tensors[i]);
	}
	if (seconds > SECONDS_MOST)
		return error_set(err, GRADCOMP_ERR_INVALID, "a step of model '%s' takes %g seconds: must be at most %g",
		                 m->name, seconds, SECONDS_MOST);
	if (!numel)
		return error_set(err, GRADCOMP_ERR_INVALID, "model '%s' has no parameters", m->name);
	return layers_check(m, err);
}

/* Returns what the pass takes alone: 1 / (1 + slowed) is left of the time that it was beside something. */
static double alone(double share, double slowed)
{
	return 1 - share * slowed / (1 + slowed);
}

static double slowed(double times, double machine)
{
	return times > 0 ? fmax(0, times - 1) : machine;
}

double model_slowed_by_exchange(const model_file *m, const machine_file *machine)
{
	return slowed(m->slower_beside_exchange, machine->slowed_by_exchange);
}

double model_slowed_by_compute(const model_file *m, const machine_file *machine)
{
	return slowed(m->slower_beside_compute, machine->slowed_by_compute);
}

double model_backward_alone(const model_file *m, const machine_file *machine)
{
	return alone(m->exchanging, model_slowed_by_exchange(m, machine)) *
	       alone(m->compressing, model_slowed_by_compute(m, machine));
}

gradcomp_status model_check(const model_file *m, gradcomp_error *err)
{
	record_io t = model_fields(m);
	gradcomp_status st;
	uint64_t numel = 0;
	char what[100];
	snprintf(what, sizeof what, "model '%.63s'", m->name);
	st = record_io_check(&t, what, err);
	for (uint32_t i = 0; !st && i < m->ntensors; i++) {
		const model_tensor *x = &m->tensors[i];
		const double both[] = {x->forward, x->backward};

		for (int k = 0; !st && k < 2; k++)
			if (!(both[k] >= 0 && both[k] <= SECONDS_MOST))
				st = error_set(err, GRADCOMP_ERR_INVALID,
				               "%s: tensor %u takes %g seconds %s; it must be 0 to %g", what, i,
				               both[k], k ? "backward" : "forward", SECONDS_MOST);
		if (!st && (!x->name || x->ndim > NDIM_MOST || (x->ndim && !x->dims)))
			st = error_set(err, GRADCOMP_ERR_INVALID,
			               "%s: tensor %u has no name, or %u dimensions (at most %d)", what, i, x->ndim,
			               NDIM_MOST);
		if (!st && model_numel(x) > NUMEL_MAX - numel)
			st = error_set(err, GRADCOMP_ERR_RANGE, "%s: with tensor %u it has more than 2^48 parameters",
			               what, i);
		if (!st)
			numel += model_numel(x);
	}
	return st ? st : model_whole(m, err);
}

static void print_model(FILE *out, const void *what)
{
	const model_file *m = what;
	const record_io t = model_fields(m);
	record_io_write(out, &t, "model", "model");
	fprintf(out, "tensors = %u\n\n[tensors]\n", m->ntensors);
	for (uint32_t i = 0; i < m->ntensors; i++) {
		const model_tensor *x = &m->tensors[i];
		char forward[NUMBER_TEXT], backward[NUMBER_TEXT];

		fprintf(out, "%u = ", i);
		record_io_write_name(out, x->name);
		for (uint32_t d = 0; d < x->ndim; d++)
			fprintf(out, "%c%" PRIu64, d ? 'x' : ' ', x->dims[d]);
		number_put_float(forward, x->forward);
		number_put_float(backward, x->backward);
		fprintf(out, "%s forward %s backward %s\n", x->ndim ? "" : " scalar", forward, backward);
	}
	if (m->nlayers)
		fputs("\n[layers]\n", out);
	for (uint32_t i = 0; i < m->nlayers; i++) {
		fprintf(out, "%u = ", i);
		layer_print(out, &m->layers[i]);
		fputc('\n', out);
	}
}

gradcomp_status model_file_write(const char *path, const model_file *m, gradcomp_error *err)
{
	gradcomp_status st = model_check(m, err);
	return st ? st : record_io_publish("model", path, print_model, m, err);
}

void model_file_free(model_file *m)
{
	if (!m)
		return;
	for (uint32_t i = 0; i < m->ntensors; i++) {
		free(m->tensors[i].name);
		free(m->tensors[i].dims);
	}
	for (uint32_t i = 0; i < m->nlayers; i++)
		free(m->layers[i].name);
	free(m->tensors);
	free(m->layers);
	free(m);
}

typedef struct reading {
	model_file *m;
	record_io model;
	enum { IN_MODEL, IN_TENSORS, IN_LAYERS } in;
	uint32_t room, layers_room;
	uint64_t numel;
	uint32_t said; /* the key `tensors`: how many there are; 0: not said */
	record_io counts;
} reading;

static const field count_rows[] = {
	{"model", "tensors", FIELD_COUNT, 0, offsetof(reading, said), 1, TENSORS_MOST, 0, NULL},
};

/* Returns `array` of n elements with room for one more; NULL without memory. */
static void *grow(inifile *f, void *array, uint32_t n, uint32_t *room, size_t size)
{
	void *more = array;
	if (n < *room)
		return array;
	more = reallocarray(array, *room ? 2 * (size_t)*room : 16, size);
	if (more)
		*room = *room ? 2 * *room : 16;
	else
		inifile_nomem(f);
	return more;
}

static void model_section(inifile *f, const char *name, size_t n)
{
	static const char *const names[] = {"model", "tensors", "layers"};
	reading *r = f->ctx;
	for (int i = 0; i < 3; i++) {
		if (n == strlen(names[i]) && !strncmp(name, names[i], n)) {
			r->in = i;
			return;
		}
	}
	inifile_fail(f, "unknown section [%.*s]; there are [model], [tensors], [layers]", (int)n, name);
}

/* "64x3x7x7", or "scalar": how many, -1 when it is neither. */
static int dims_of(char *text, uint64_t *dims)
{
	char *rest = NULL;
	int n = 0;
	if (!strcmp(text, "scalar"))
		return 0;
	if (!*text || *text == 'x' || text[strlen(text) - 1] == 'x' || strstr(text, "xx"))
		return -1;
	for (char *w = strtok_r(text, "x", &rest); w; w = strtok_r(NULL, "x", &rest)) {
		int64_t d;

		if (n == NDIM_MOST || *w < '0' || *w > '9' || number_int(w, &d) != NUMBER_OK)
			return -1;
		dims[n++] = (uint64_t)d;
	}
	return n;
}

static void take_tensor(reading *r, inifile *f, const char *key, const char *value)
{
	model_file *m = r->m;
	model_tensor t = {.name = NULL}, *more;
	uint64_t dims[NDIM_MOST], numel;
	char text[200], shape[200], *w[6];
	int n;
	if (!record_io_number(f, "tensor", key, m->ntensors))
		return;
	snprintf(text, sizeof text, "%s", value);
	if (record_io_words(text, w, 6) != 6 || strcmp(w[2], "forward") || strcmp(w[4], "backward")) {
		inifile_fail(f, "'%s' is no tensor; write NAME DIMxDIM forward SECONDS backward SECONDS", value);
		return;
	}
	snprintf(shape, sizeof shape, "%s", w[1]);
	n = dims_of(shape, dims);
	if (n < 0) {
		inifile_fail(f, "'%s' is no shape; write 64x3x7x7 (at most %d dimensions), or scalar", w[1], NDIM_MOST);
		return;
	}
	numel = model_product(dims, (uint32_t)n);
	if (numel > NUMEL_MAX - r->numel) {
		inifile_fail(f, "with tensor '%s' of %s the model has more than 2^48 parameters", w[0], w[1]);
		return;
	}
	if (m->ntensors == TENSORS_MOST) {
		inifile_fail(f, "there are more than %d tensors", TENSORS_MOST);
		return;
	}
	if (!record_io_seconds(f, "forward", w[3], SECONDS_MOST, &t.forward) ||
	    !record_io_seconds(f, "backward", w[5], SECONDS_MOST, &t.backward))
		return;
	more = grow(f, m->tensors, m->ntensors, &r->room, sizeof t);
	if (!more)
		return;
	m->tensors = more;
	t.ndim = (uint32_t)n;
	t.name = strdup(w[0]);
	t.dims = malloc((size_t)(n ? n : 1) * sizeof *t.dims);
	if (!t.name || !t.dims) {
		free(t.name);
		free(t.dims);
		inifile_nomem(f);
		return;
	}
	memcpy(t.dims, dims, (size_t)n * sizeof *dims);
	r->numel += numel;
	m->tensors[m->ntensors++] = t;
}

static void take_layer(reading *r, inifile *f, const char *key, const char *value)
{
	model_file *m = r->m;
	model_layer *more;
	gradcomp_error why;
	gradcomp_status st;
	if (!record_io_number(f, "layer", key, m->nlayers))
		return;
	more = grow(f, m->layers, m->nlayers, &r->layers_room, sizeof *more);
	if (!more)
		return;
	m->layers = more;
	st = layer_parse(value, &m->layers[m->nlayers], &why);
	if (st == GRADCOMP_ERR_INVALID)
		inifile_fail(f, "%s", why.text);
	else if (st)
		f->status = error_set(f->err, st, "%s: %s", f->path, why.text);
	else
		m->nlayers++;
}

static void model_key(inifile *f, const char *section, const char *key, const char *value)
{
	reading *r = f->ctx;
	if (r->in == IN_TENSORS)
		take_tensor(r, f, key, value);
	else if (r->in == IN_LAYERS)
		take_layer(r, f, key, value);
	else if (!record_io_take(&r->counts, f, section, key, value) &&
	         !record_io_take(&r->model, f, section, key, value))
		record_io_unknown(&r->model, f, section, key);
}

gradcomp_status model_file_read(const char *path, model_file **out, gradcomp_error *err)
{
	model_file *m = calloc(1, sizeof *m);
	reading r = {.m = m, .model = model_fields(m), .counts = {.row = count_rows, .n = 1, .base = &r}};
	inifile f = {.err = err, .section = model_section, .key = model_key, .ctx = &r};
	gradcomp_error why;
	gradcomp_status st;
	if (!m)
		return error_set(err, GRADCOMP_ERR_NOMEM, "%s: no memory", path);
	st = record_io_read(&f, path);
	if (!st)
		st = record_io_complete(&r.model, &f, "model", 0);
	if (!st && r.said && r.said != m->ntensors)
		st = error_set(err, GRADCOMP_ERR_INVALID,
		               "%s: there are %u tensors, but [model] says %u: is the file whole?", path, m->ntensors,
		               r.said);
	if (!st && model_whole(m, &why))
		st = error_set(err, why.status, "%s: %s", path, why.text);
	if (st) {
		model_file_free(m);
		return st;
	}
	*out = m;
	return GRADCOMP_OK;
}
