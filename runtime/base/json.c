#include "base/json.h"

#include <inttypes.h>
#include <math.h>
#include <stdbool.h>
#include <stdlib.h>

#include "base/number.h"

/* Bytes of the UTF-8 character at `s`; 0 when there is none: cut off, overlong,
 * a surrogate, or beyond U+10FFFF. */
static int utf8_length(const unsigned char *s)
{
	int n = s[0] < 0x80 ? 1 : s[0] < 0xc2 ? 0 : s[0] < 0xe0 ? 2 : s[0] < 0xf0 ? 3 : s[0] < 0xf5 ? 4 : 0;
	for (int i = 1; i < n; i++)
		if ((s[i] & 0xc0) != 0x80)
			return 0;
	if ((s[0] == 0xe0 && s[1] < 0xa0) || (s[0] == 0xed && s[1] > 0x9f) || (s[0] == 0xf0 && s[1] < 0x90) ||
	    (s[0] == 0xf4 && s[1] > 0x8f))
		return 0;
	return n;
}

static void jsonw_quote(jsonw *j, const char *text)
{
	const unsigned char *s = (const unsigned char *)text;
	fputc('"', j->out);
	while (*s) {
		int n = utf8_length(s);

		if (!n)
			fputs("\\ufffd", j->out);
		else if (*s == '"' || *s == '\\')
			fprintf(j->out, "\\%c", *s);
		else if (*s == '\n')
			fputs("\\n", j->out);
		else if (*s < 0x20 || *s == 0x7f)
			fprintf(j->out, "\\u%04x", *s);
		else
			fwrite(s, 1, (size_t)n, j->out);
		s += n ? n : 1;
	}
	fputc('"', j->out);
}

static bool jsonw_flat(const jsonw *j)
{
	return j->flat && j->depth > j->flat;
}

static void jsonw_line(jsonw *j)
{
	fputc('\n', j->out);
	for (int i = 0; i < j->depth; i++)
		fputs("  ", j->out);
}

/* Writes comma, new line and key of the next value. */
static void jsonw_next(jsonw *j, const char *key)
{
	if (!j->first)
		fputc(',', j->out);
	if (j->depth && !jsonw_flat(j))
		jsonw_line(j);
	j->first = 0;
	if (key) {
		jsonw_quote(j, key);
		fputs(": ", j->out);
	}
}

void json_put_start(jsonw *j, FILE *out)
{
	*j = (jsonw){.out = out, .first = 1};
}

void json_put_finish(jsonw *j)
{
	fputc('\n', j->out);
}

static void jsonw_enter(jsonw *j, const char *key, char open, char close)
{
	jsonw_next(j, key);
	if (j->depth == JSON_DEPTH_MAX)
		abort();
	j->close[j->depth++] = close;
	j->first = 1;
	fputc(open, j->out);
}

void json_put_object(jsonw *j, const char *key)
{
	jsonw_enter(j, key, '{', '}');
}

void json_put_array(jsonw *j, const char *key)
{
	jsonw_enter(j, key, '[', ']');
}

void json_put_end(jsonw *j)
{
	int flat = jsonw_flat(j);
	char close = j->close[--j->depth];
	if (!j->first && !flat)
		jsonw_line(j);
	fputc(close, j->out);
	j->first = 0;
}

void json_put_string(jsonw *j, const char *key, const char *text)
{
	if (!text) {
		json_put_null(j, key);
		return;
	}
	jsonw_next(j, key);
	jsonw_quote(j, text);
}

void json_put_int(jsonw *j, const char *key, int64_t value)
{
	jsonw_next(j, key);
	fprintf(j->out, "%" PRId64, value);
}

void json_put_uint(jsonw *j, const char *key, uint64_t value)
{
	jsonw_next(j, key);
	fprintf(j->out, "%" PRIu64, value);
}

void json_put_float(jsonw *j, const char *key, double value)
{
	char text[NUMBER_TEXT];
	if (!isfinite(value)) {
		json_put_null(j, key);
		return;
	}
	jsonw_next(j, key);
	number_put_float(text, value);
	fputs(text, j->out);
}

void json_put_bool(jsonw *j, const char *key, int value)
{
	jsonw_next(j, key);
	fputs(value ? "true" : "false", j->out);
}

void json_put_null(jsonw *j, const char *key)
{
	jsonw_next(j, key);
	fputs("null", j->out);
}
