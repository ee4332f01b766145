/* Model files, read: the tensors of a network, and how long its passes take. */
#include "model_parts.h"

#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "error.h"
#include "layers.h"
#include "number.h"
#include "reducer/compose.h"

typedef struct reading {
	gradcomp_model *m;
	fields model;
	enum { IN_MODEL, IN_TENSORS, IN_LAYERS } in;
	uint32_t room, layers_room;
	uint64_t numel;
	uint32_t said; /* the key `tensors`: how many there are; 0: not said */
	fields counts;
} reading;

static const field count_rows[] = {
	{"model", "tensors", FIELD_COUNT, 0, offsetof(reading, said), 1, TENSORS_MOST, 0, NULL},
};

/* `array` of n elements with room for one more; NULL without memory. */
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
	gradcomp_model *m = r->m;
	gradcomp_model_tensor t = {.name = NULL}, *more;
	uint64_t dims[NDIM_MOST], numel;
	char text[200], shape[200], *w[6];
	int n;

	if (!fields_number(f, "tensor", key, m->ntensors))
		return;
	snprintf(text, sizeof text, "%s", value);
	if (fields_words(text, w, 6) != 6 || strcmp(w[2], "forward") || strcmp(w[4], "backward")) {
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
	if (!fields_seconds(f, "forward", w[3], SECONDS_MOST, &t.forward) ||
	    !fields_seconds(f, "backward", w[5], SECONDS_MOST, &t.backward))
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
	gradcomp_model *m = r->m;
	gradcomp_model_layer *more;
	gradcomp_error why;
	gradcomp_status st;

	if (!fields_number(f, "layer", key, m->nlayers))
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
	else if (!fields_take(&r->counts, f, section, key, value) && !fields_take(&r->model, f, section, key, value))
		fields_unknown(&r->model, f, section, key);
}

gradcomp_status gradcomp_model_read(const char *path, gradcomp_model **out, gradcomp_error *err)
{
	gradcomp_model *m = calloc(1, sizeof *m);
	reading r = {.m = m, .model = model_fields(m), .counts = {.row = count_rows, .n = 1, .base = &r}};
	inifile f = {.err = err, .section = model_section, .key = model_key, .ctx = &r};
	gradcomp_error why;
	gradcomp_status st;

	if (!m)
		return error_set(err, GRADCOMP_ERR_NOMEM, "%s: no memory", path);
	m->struct_size = sizeof *m;
	st = fields_read(&f, path);
	if (!st)
		st = fields_complete(&r.model, &f, "model", 0);
	if (!st && r.said && r.said != m->ntensors)
		st = error_set(err, GRADCOMP_ERR_INVALID, "%s: there are %u tensors, but [model] says %u: is the file whole?",
		               path, m->ntensors, r.said);
	if (!st && model_whole(m, &why))
		st = error_set(err, why.status, "%s: %s", path, why.text);
	if (st) {
		gradcomp_model_free(m);
		return st;
	}
	*out = m;
	return GRADCOMP_OK;
}

