#include "config/spec.h"

#include "config/memory_rows.h"

#include <inttypes.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "gradcomp/gradcomp.h"
#include "base/number.h"
#include "base/suggest.h"

static const char spec_letters[] = "abcdefghijklmnopqrstuvwxyz0123456789_-";

/* snprintf that goes on at *at and stops counting at the end of `out`. */
GRADCOMP_PRINTF(4, 5)
static void put(char *out, size_t capacity, size_t *at, const char *fmt, ...)
{
	va_list ap;
	int n;
	if (*at >= capacity)
		return;
	va_start(ap, fmt);
	n = vsnprintf(out + *at, capacity - *at, fmt, ap);
	va_end(ap);
	*at = n < 0 || (size_t)n >= capacity - *at ? capacity : *at + (size_t)n;
}

static void put_bound(char *out, size_t capacity, size_t *at, const gradcomp_param *row, double bound)
{
	char text[NUMBER_TEXT];
	if (row->type == GRADCOMP_PARAM_SIZE && bound < 9e18)
		number_put_size(text, (int64_t)bound);
	else if (row->type == GRADCOMP_PARAM_INT && fabs(bound) < 1e19)
		snprintf(text, sizeof text, "%.0f", bound);
	else
		number_put_float(text, bound);
	put(out, capacity, at, "%s", text);
}

static void put_range(char *out, size_t capacity, size_t *at, const gradcomp_param *row)
{
	if (row->min == row->max)
		return;
	if (isinf(row->max)) {
		put(out, capacity, at, "at least ");
		put_bound(out, capacity, at, row, row->min);
	} else if (isinf(row->min)) {
		put(out, capacity, at, "at most ");
		put_bound(out, capacity, at, row, row->max);
	} else {
		put_bound(out, capacity, at, row, row->min);
		put(out, capacity, at, "..");
		put_bound(out, capacity, at, row, row->max);
	}
	put(out, capacity, at, ", ");
}

void gradcomp_param_text(const gradcomp_param *row, char *out, size_t capacity)
{
	static const char *const words[] = {"INT", "FLOAT", "yes|no", "SIZE", NULL, "TEXT"};
	size_t at = 0;
	if (!capacity)
		return;
	put(out, capacity, &at, "%s=", row->name);
	if (row->type == GRADCOMP_PARAM_CHOICE)
		for (int i = 0; row->choices[i]; i++)
			put(out, capacity, &at, "%s%s", i ? "|" : "", row->choices[i]);
	else
		put(out, capacity, &at, "%s", words[row->type]);
	put(out, capacity, &at, " (");
	if (row->type == GRADCOMP_PARAM_INT || row->type == GRADCOMP_PARAM_FLOAT || row->type == GRADCOMP_PARAM_SIZE)
		put_range(out, capacity, &at, row);
	if (!row->def)
		put(out, capacity, &at, "required)");
	else if (!*row->def)
		put(out, capacity, &at, "default empty)");
	else
		put(out, capacity, &at, "default %s)", row->def);
}

static gradcomp_status value_error(const gradcomp_param *row, const char *text, const char *what, gradcomp_error *err)
{
	char about[256];
	gradcomp_param_text(row, about, sizeof about);
	return error_set(err, GRADCOMP_ERR_INVALID, "%s: '%s' %s; %s", row->name, text, what, about);
}

int spec_bool(const char *text, int64_t *out)
{
	static const char *const words[] = {"no", "yes", "false", "true", "off", "on", "0", "1"};
	for (int i = 0; i < 8; i++)
		if (!strcmp(text, words[i])) {
			*out = i & 1;
			return 1;
		}
	return 0;
}

gradcomp_status spec_value(const gradcomp_param *row, const char *text, gradcomp_value *out, gradcomp_error *err)
{
	gradcomp_value v = {0};
	number_result r = NUMBER_OK;
	const char *form = NULL;
	double x = 0;
	switch (row->type) {
	case GRADCOMP_PARAM_INT:
		r = number_int(text, &v.i);
		x = (double)v.i;
		form = "is not an integer";
		break;
	case GRADCOMP_PARAM_FLOAT:
		r = number_float(text, &v.f);
		x = v.f;
		form = "is not a number";
		break;
	case GRADCOMP_PARAM_SIZE:
		r = number_size(text, &v.i);
		x = (double)v.i;
		form = "is not a size such as 4096, 64K, 25M or 2G";
		break;
	case GRADCOMP_PARAM_BOOL:
		if (!spec_bool(text, &v.i))
			return value_error(row, text, "is not yes or no", err);
		break;
	case GRADCOMP_PARAM_CHOICE:
		while (row->choices[v.i] && strcmp(row->choices[v.i], text))
			v.i++;
		v.s = row->choices[v.i];
		if (!v.s)
			return value_error(row, text, "is not a choice", err);
		break;
	case GRADCOMP_PARAM_STRING:
		for (const char *p = text; *p; p++)
			if ((unsigned char)*p < 0x20 || *p == 0x7f)
				return value_error(row, text, "has a control character", err);
		v.s = text;
		break;
	default:
		return error_set(err, GRADCOMP_ERR_UNSUPPORTED, "%s: its type %d is not known here", row->name,
		                 (int)row->type);
	}
	if (r == NUMBER_MALFORMED)
		return value_error(row, text, form, err);
	if (r == NUMBER_OVERFLOW)
		return value_error(row, text, "is out of range", err);
	if (form && row->min != row->max && !(x >= row->min && x <= row->max))
		return value_error(row, text, x < row->min ? "is too small" : "is too large", err);
	*out = v;
	return GRADCOMP_OK;
}

static bool spec_is_name(const char *text)
{
	return !text[strspn(text, spec_letters)] && !strchr("_-", text[0]);
}

gradcomp_status spec_name(const char *text, char name[SPEC_NAME_MAX], gradcomp_error *err)
{
	size_t n = strcspn(text, ":");
	if (!n)
		return error_set(err, GRADCOMP_ERR_INVALID,
		                 "'%s' does not begin with a name; a SPEC is NAME[:key=value[,key=value...]]", text);
	if (n >= SPEC_NAME_MAX)
		return error_set(err, GRADCOMP_ERR_INVALID, "'%s': a name has at most %d characters", text,
		                 SPEC_NAME_MAX - 1);
	memcpy(name, text, n);
	name[n] = '\0';
	if (!spec_is_name(name)) {
		char small[SPEC_NAME_MAX], near[SPEC_NAME_MAX + 20] = "";

		for (size_t i = 0; i <= n; i++)
			small[i] = (char)(name[i] >= 'A' && name[i] <= 'Z' ? name[i] - 'A' + 'a' : name[i]);
		if (spec_is_name(small))
			snprintf(near, sizeof near, " (did you mean '%s'?)", small);
		return error_set(
			err, GRADCOMP_ERR_INVALID,
			"'%s' cannot be a name%s; a name is made of a-z, 0-9, '_' and '-' and begins with a letter or "
			"a digit",
			name, near);
	}
	if (!strcmp(name, "help") || !strcmp(name, "off"))
		return error_set(err, GRADCOMP_ERR_INVALID, "'%s' is a word of the option --gradcomp, not a plugin",
		                 name);
	return GRADCOMP_OK;
}

/* "it takes rank=INT (1..64, default 4), ..." */
static const char *spec_takes(const gradcomp_plugin_info *info, char *out, size_t capacity)
{
	char row[256];
	size_t at = 0;
	if (!info->nparams)
		return "it takes no parameters";
	put(out, capacity, &at, "it takes ");
	for (uint32_t i = 0; i < info->nparams && at < capacity; i++) {
		gradcomp_param_text(&info->params[i], row, sizeof row);
		put(out, capacity, &at, "%s%s", i ? ", " : "", row);
	}
	return out;
}

static gradcomp_status spec_error(const gradcomp_plugin_info *info, gradcomp_error *err, const char *what,
                                  const char *word)
{
	char takes[sizeof err->text];
	return error_set(err, GRADCOMP_ERR_INVALID, "%s: %s '%s'; %s", info->name, what, word,
	                 spec_takes(info, takes, sizeof takes));
}

/* `alone`: no '=' follows. */
static gradcomp_status spec_unknown(const gradcomp_plugin_info *info, const char *key, bool alone, gradcomp_error *err)
{
	char takes[sizeof err->text];
	suggest near;
	suggest_start(&near, key);
	for (uint32_t i = 0; i < info->nparams; i++)
		suggest_try(&near, info->params[i].name);
	/* A value without its parameter, as in cast:bf16 and topk:0.01. */
	for (uint32_t i = 0; i < info->nparams && alone && !near.name[0]; i++) {
		const gradcomp_param *row = &info->params[i];
		gradcomp_value v;

		if (row->type != GRADCOMP_PARAM_STRING && row->type != GRADCOMP_PARAM_BOOL &&
		    !spec_value(row, key, &v, NULL))
			snprintf(near.name, sizeof near.name, "%s=%s", row->name, key);
	}
	return error_set(err, GRADCOMP_ERR_INVALID, "%s: unknown parameter '%s'%s; %s", info->name, key,
	                 suggest_text(&near), spec_takes(info, takes, sizeof takes));
}

/* Takes one "key=value", which it cuts in two. */
static gradcomp_status spec_item(const gradcomp_plugin_info *info, char *item, char *seen, spec *out,
                                 gradcomp_error *err)
{
	char *value = strchr(item, '='), yes[] = "yes";
	gradcomp_error inner;
	uint32_t i = 0;
	if (value)
		*value++ = '\0';
	if (!*item)
		return spec_error(info, err, "a parameter without a name before", value ? value : "");
	while (i < info->nparams && strcmp(info->params[i].name, item))
		i++;
	if (i == info->nparams)
		return spec_unknown(info, item, !value, err);
	/* A boolean by its name alone: it is so. */
	if (!value && info->params[i].type == GRADCOMP_PARAM_BOOL)
		value = yes;
	if (!value || !*value)
		return spec_error(info, err, "no value for parameter", item);
	if (seen[i]++)
		return spec_error(info, err, "parameter given twice:", item);
	if (spec_value(&info->params[i], value, &out->values[i], &inner))
		return error_set(err, inner.status, "%s: %s", info->name, inner.text);
	return GRADCOMP_OK;
}

static gradcomp_status spec_defaults(const gradcomp_plugin_info *info, const char *seen, spec *out, gradcomp_error *err)
{
	gradcomp_error inner;
	for (uint32_t i = 0; i < info->nparams; i++) {
		if (seen[i])
			continue;
		if (!info->params[i].def)
			return spec_error(info, err, "missing parameter", info->params[i].name);
		if (spec_value(&info->params[i], info->params[i].def, &out->values[i], &inner))
			return error_set(err, inner.status, "%s: %s", info->name, inner.text);
	}
	return GRADCOMP_OK;
}

static const char *value_text(const gradcomp_param *row, const gradcomp_value *v, char buf[NUMBER_TEXT])
{
	switch (row->type) {
	case GRADCOMP_PARAM_INT:
		snprintf(buf, NUMBER_TEXT, "%" PRId64, v->i);
		return buf;
	case GRADCOMP_PARAM_FLOAT:
		number_put_float(buf, v->f);
		return buf;
	case GRADCOMP_PARAM_SIZE:
		number_put_size(buf, v->i);
		return buf;
	case GRADCOMP_PARAM_BOOL:
		return v->i ? "yes" : "no";
	default:
		return v->s;
	}
}

/* An empty text, which only a default can be, is left out: "key=" would not read
 * back. So is the default of what is not the plugin's own. */
static char *spec_canonical(const gradcomp_plugin_info *info, const spec *s)
{
	char buf[NUMBER_TEXT], *text = NULL;
	char separator = ':';
	size_t bytes;
	FILE *f = open_memstream(&text, &bytes);
	if (!f)
		return NULL;
	fputs(info->name, f);
	for (uint32_t i = 0; i < info->nparams; i++) {
		const char *value = value_text(&info->params[i], &s->values[i], buf);

		if (!*value || (memory_rows_has(&info->params[i]) && !strcmp(value, info->params[i].def)))
			continue;
		fprintf(f, "%c%s=%s", separator, info->params[i].name, value);
		separator = ',';
	}
	if (fclose(f)) {
		free(text);
		return NULL;
	}
	return text;
}

gradcomp_status spec_parse(const gradcomp_plugin_info *info, const char *text, spec *out, gradcomp_error *err)
{
	const char *list = strchr(text, ':');
	size_t table = info->nparams * sizeof(gradcomp_value);
	char *words, *next, *seen = NULL;
	gradcomp_status st;
	spec s = {.nvalues = info->nparams};
	/* One block: the values, then a copy of the text for strings to point into. */
	s.values = calloc(1, table + strlen(text) + 1);
	seen = calloc(1, (size_t)info->nparams + 1);
	if (!s.values || !seen) {
		st = error_set(err, GRADCOMP_ERR_NOMEM, "no memory for SPEC '%s'", text);
		goto fail;
	}
	words = (char *)s.values + table;
	strcpy(words, list ? list + 1 : "");
	next = list ? words : NULL;
	while (next) {
		char *item = strsep(&next, ",");

		st = spec_item(info, item, seen, &s, err);
		if (st)
			goto fail;
	}
	st = spec_defaults(info, seen, &s, err);
	if (st)
		goto fail;
	s.text = spec_canonical(info, &s);
	if (!s.text) {
		st = error_set(err, GRADCOMP_ERR_NOMEM, "no memory for SPEC '%s'", text);
		goto fail;
	}
	free(seen);
	*out = s;
	return GRADCOMP_OK;
fail:
	free(seen);
	free(s.values);
	return st;
}

void spec_clear(spec *s)
{
	free(s->text);
	free(s->values);
	*s = (spec){0};
}

const char *spec_list_next(const char **at, size_t *length)
{
	const char *item = *at + strspn(*at, " "), *end = item + strcspn(item, ",");
	if (!*item)
		return NULL;
	while (*end && end[1 + strcspn(end + 1, "=:,")] == '=')
		end += 1 + strcspn(end + 1, ",");
	*at = end + (*end == ',');
	while (end > item && end[-1] == ' ')
		end--;
	*length = (size_t)(end - item);
	return item;
}
