/* Models: what is right in one, and model files as they are written. */
#include "model_parts.h"

#include <inttypes.h>
#include <stddef.h>
#include <stdlib.h>

#include "error.h"
#include "layers.h"
#include "machine.h"
#include "number.h"
#include "reducer/compose.h"

#define AT(member) offsetof(gradcomp_model, member)
static const field model_rows[] = {
	{"model", "name", FIELD_NAME, 1, AT(name), 0, 0, 0, NULL},
	{"model", "batch", FIELD_LONG, 0, AT(batch), 0, 0, 0, NULL},
	{"model", "io", FIELD_NUMBER, 0, AT(io), 0, SECONDS_MOST, 0, "seconds"},
	{"model", "copy", FIELD_NUMBER, 0, AT(copy), 0, SECONDS_MOST, 0, "seconds"},
	{"model", "update", FIELD_NUMBER, 0, AT(update), 0, SECONDS_MOST, 0, "seconds"},
};
#undef AT

fields model_fields(const gradcomp_model *m)
{
	return (fields){.row = model_rows, .n = sizeof model_rows / sizeof *model_rows, .base = (void *)(uintptr_t)m};
}

/* Their product; more than NUMEL_MAX when it, without zeroes, is. */
uint64_t model_product(const uint64_t *dims, uint32_t n)
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

uint64_t model_numel(const gradcomp_model_tensor *t)
{
	return model_product(t->dims, t->ndim);
}

/* What only the whole shows. */
gradcomp_status model_whole(const gradcomp_model *m, gradcomp_error *err)
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
		return error_set(err, GRADCOMP_ERR_INVALID, "a step of model '%s' takes %g seconds: must be at most %g", m->name,
		                 seconds, SECONDS_MOST);
	if (!numel)
		return error_set(err, GRADCOMP_ERR_INVALID, "model '%s' has no parameters", m->name);
	return layers_check(m, err);
}

gradcomp_status model_check(const gradcomp_model *m, gradcomp_error *err)
{
	fields t = model_fields(m);
	gradcomp_status st;
	uint64_t numel = 0;
	char what[100];

	if (m->struct_size < sizeof *m)
		return error_set(err, GRADCOMP_ERR_ABI, "a gradcomp_model of %u bytes; %zu are right", m->struct_size, sizeof *m);
	snprintf(what, sizeof what, "model '%.63s'", m->name);
	st = fields_check(&t, what, err);
	for (uint32_t i = 0; !st && i < m->ntensors; i++) {
		const gradcomp_model_tensor *x = &m->tensors[i];
		const double both[] = {x->forward, x->backward};

		for (int k = 0; !st && k < 2; k++)
			if (!(both[k] >= 0 && both[k] <= SECONDS_MOST))
				st = error_set(err, GRADCOMP_ERR_INVALID, "%s: tensor %u takes %g seconds %s; it must be 0 to %g", what,
				               i, both[k], k ? "backward" : "forward", SECONDS_MOST);
		if (!st && (!x->name || x->ndim > NDIM_MOST || (x->ndim && !x->dims)))
			st = error_set(err, GRADCOMP_ERR_INVALID, "%s: tensor %u has no name, or %u dimensions (at most %d)", what,
			               i, x->ndim, NDIM_MOST);
		if (!st && model_numel(x) > NUMEL_MAX - numel)
			st = error_set(err, GRADCOMP_ERR_RANGE, "%s: with tensor %u it has more than 2^48 parameters", what, i);
		if (!st)
			numel += model_numel(x);
	}
	return st ? st : model_whole(m, err);
}

static void print_model(FILE *out, const void *what)
{
	const gradcomp_model *m = what;
	const fields t = model_fields(m);

	fields_write(out, &t, "model", "model");
	fprintf(out, "tensors = %u\n\n[tensors]\n", m->ntensors);
	for (uint32_t i = 0; i < m->ntensors; i++) {
		const gradcomp_model_tensor *x = &m->tensors[i];
		char forward[NUMBER_TEXT], backward[NUMBER_TEXT];

		fprintf(out, "%u = ", i);
		fields_write_name(out, x->name);
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

gradcomp_status gradcomp_model_write(const char *path, const gradcomp_model *m, gradcomp_error *err)
{
	gradcomp_status st = model_check(m, err);

	return st ? st : fields_publish(path, print_model, m, err);
}

void gradcomp_model_free(gradcomp_model *m)
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
