#include "cost/layers.h"

#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "config/record_io.h"
#include "base/number.h"

#define LAYER_WORDS 10
#define LAYER_LINE 200
#define BYTES_MOST 1e15 /* bytes of a sample: a petabyte is nobody's activation */
#define REDUCES_MOST 64

static const char form[] = "write NAME tensors FIRST-LAST output BYTES kept BYTES BYTES reduces N";

static gradcomp_status take_tensors(const char *word, model_layer *l, gradcomp_error *err)
{
	const char *dash = strchr(word, '-');
	char text[LAYER_LINE];
	int64_t first, last;
	if (dash) {
		snprintf(text, sizeof text, "%.*s", (int)(dash - word), word);
		if (number_int(text, &first) == NUMBER_OK && number_int(dash + 1, &last) == NUMBER_OK && first >= 0 &&
		    last >= first && last < UINT32_MAX) {
			l->first = (uint32_t)first;
			l->ntensors = (uint32_t)(last - first + 1);
			return GRADCOMP_OK;
		}
	}
	return error_set(err, GRADCOMP_ERR_INVALID,
	                 "tensors '%s' are none; write FIRST-LAST, numbers of section [tensors]", word);
}

static int bytes_ok(double bytes)
{
	return bytes >= 0 && bytes <= BYTES_MOST;
}

static gradcomp_status take_bytes(const char *name, const char *word, double *out, gradcomp_error *err)
{
	if (number_float(word, out) == NUMBER_OK && bytes_ok(*out))
		return GRADCOMP_OK;
	return error_set(err, GRADCOMP_ERR_INVALID, "%s is '%s'; it must be bytes of a sample, 0 to %g", name, word,
	                 BYTES_MOST);
}

gradcomp_status layer_parse(const char *value, model_layer *out, gradcomp_error *err)
{
	model_layer l = {.name = NULL};
	char text[LAYER_LINE], *w[LAYER_WORDS];
	gradcomp_status st;
	int64_t reduces;
	if (strlen(value) >= sizeof text)
		return error_set(err, GRADCOMP_ERR_INVALID, "the layer has more than %zu characters; %s",
		                 sizeof text - 1, form);
	snprintf(text, sizeof text, "%s", value);
	if (record_io_words(text, w, LAYER_WORDS) != LAYER_WORDS || strcmp(w[1], "tensors") || strcmp(w[3], "output") ||
	    strcmp(w[5], "kept") || strcmp(w[8], "reduces"))
		return error_set(err, GRADCOMP_ERR_INVALID, "'%s' is no layer; %s", value, form);
	st = take_tensors(w[2], &l, err);
	if (!st)
		st = take_bytes("output", w[4], &l.output, err);
	for (int i = 0; i < 2 && !st; i++)
		st = take_bytes("kept", w[6 + i], &l.kept[i], err);
	if (!st && (number_int(w[9], &reduces) != NUMBER_OK || reduces < 0 || reduces > REDUCES_MOST))
		st = error_set(err, GRADCOMP_ERR_INVALID, "reduces is '%s'; it must be from 0 to %d", w[9],
		               REDUCES_MOST);
	if (st)
		return st;
	l.reduces = (uint32_t)reduces;
	l.name = strdup(w[0]);
	if (!l.name)
		return error_set(err, GRADCOMP_ERR_NOMEM, "no memory for a layer");
	*out = l;
	return GRADCOMP_OK;
}

void layer_print(FILE *out, const model_layer *l)
{
	char number[3][NUMBER_TEXT];
	number_put_float(number[0], l->output);
	number_put_float(number[1], l->kept[0]);
	number_put_float(number[2], l->kept[1]);
	record_io_write_name(out, l->name);
	fprintf(out, " tensors %u-%u output %s kept %s %s reduces %u", l->first, l->first + l->ntensors - 1, number[0],
	        number[1], number[2], l->reduces);
}

gradcomp_status layers_check(const model_file *m, gradcomp_error *err)
{
	uint32_t at = 0;
	for (uint32_t i = 0; i < m->nlayers; i++) {
		const model_layer *l = &m->layers[i];

		if (!l->name || !bytes_ok(l->output) || !bytes_ok(l->kept[0]) || !bytes_ok(l->kept[1]) ||
		    l->reduces > REDUCES_MOST)
			return error_set(
				err, GRADCOMP_ERR_INVALID,
				"layer %u has no name, or output %g, kept %g %g, reduces %u: bytes must be 0 to %g, "
				"reduces 0 to %d",
				i, l->output, l->kept[0], l->kept[1], l->reduces, BYTES_MOST, REDUCES_MOST);
		if (!l->ntensors || l->first != at || l->ntensors > m->ntensors - at)
			return error_set(
				err, GRADCOMP_ERR_INVALID,
				"layer %u (%s) has tensors %u-%u; it must begin with %u, and the last tensor is %u", i,
				l->name, l->first, l->first + l->ntensors - 1, at, m->ntensors - 1);
		at += l->ntensors;
	}
	if (m->nlayers && at != m->ntensors)
		return error_set(err, GRADCOMP_ERR_INVALID,
		                 "the last layer ends with tensor %u; tensors %u-%u are in none", at - 1, at,
		                 m->ntensors - 1);
	return GRADCOMP_OK;
}
