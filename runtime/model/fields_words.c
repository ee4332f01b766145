/* Words and numbers of a value. */
#include "fields.h"

#include <string.h>

#include "number.h"

int fields_words(char *text, char **word, int most)
{
	char *rest = NULL;
	int n = 0;

	for (char *w = strtok_r(text, " \t", &rest); w; w = strtok_r(NULL, " \t", &rest)) {
		if (n == most)
			return most + 1;
		word[n++] = w;
	}
	return n;
}

int fields_float(inifile *f, const char *what, const char *text, double least, double most, const char *unit,
                 double *out)
{
	if (number_float(text, out) == NUMBER_OK && *out >= least && *out <= most)
		return 1;
	inifile_fail(f, "%s is '%s'; it must be %s, %g to %g", what, text, unit, least, most);
	return 0;
}

int fields_seconds(inifile *f, const char *what, const char *word, double most, double *out)
{
	return fields_float(f, what, word, 0, most, "seconds", out);
}

int fields_line(inifile *f, const char *key, const char *text, double a_most, double b_most, double out[2])
{
	char copy[200], *w[2], what[80];

	snprintf(copy, sizeof copy, "%s", text);
	if (fields_words(copy, w, 2) != 2) {
		inifile_fail(f, "%s is '%s'; write two numbers A B, for A + B x seconds", key, text);
		return 0;
	}
	snprintf(what, sizeof what, "the first number of %s", key);
	if (!fields_float(f, what, w[0], 0, a_most, "seconds", &out[0]))
		return 0;
	snprintf(what, sizeof what, "the second number of %s", key);
	return fields_float(f, what, w[1], 0, b_most, "seconds for each x", &out[1]);
}

int fields_number(inifile *f, const char *what, const char *text, uint32_t next)
{
	int64_t n;

	if (number_int(text, &n) != NUMBER_OK || n < 0 || n > UINT32_MAX)
		inifile_fail(f, "'%s' is no number of a %s", text, what);
	else if (n < next)
		inifile_fail(f, "%s %s was given already, or comes too late; the next is %u", what, text, next);
	else if (n > next)
		inifile_fail(f, "%s %s comes where %u would be right", what, text, next);
	return !f->status;
}
