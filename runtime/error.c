#include "error.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

/* Text may quote a user's or a file's bytes: what would move a terminal's cursor
 * or start a new line of a log is replaced. */
static void error_clean(char *text)
{
	for (; *text; text++)
		if ((unsigned char)*text < 0x20 || *text == 0x7f)
			*text = '?';
}

GRADCOMP_PRINTF(4, 0)
static void error_vset(gradcomp_error *err, gradcomp_status status, const char *tail, const char *fmt,
                       va_list ap)
{
	/* The arguments may point into err->text itself, when a caller adds a
	 * prefix to what it was told. */
	char text[sizeof err->text];
	int n = vsnprintf(text, sizeof text, fmt, ap);

	if (n < 0) {
		text[0] = '\0';
		n = 0;
	}
	if (tail && (size_t)n < sizeof text)
		n += snprintf(text + n, sizeof text - (size_t)n, ": %s", tail);
	if ((size_t)n >= sizeof text)
		memcpy(text + sizeof text - 4, "...", 4);
	error_clean(text);
	err->status = status;
	memcpy(err->text, text, sizeof text);
}

gradcomp_status (error_set)(gradcomp_error *err, gradcomp_status status, const char *fmt, ...)
{
	va_list ap;

	if (!err)
		return status;
	va_start(ap, fmt);
	error_vset(err, status, NULL, fmt, ap);
	va_end(ap);
	return status;
}

gradcomp_status (error_errno)(gradcomp_error *err, gradcomp_status status, const char *fmt, ...)
{
	char buf[128];
	int code = errno;
	va_list ap;

	if (!err)
		return status;
	va_start(ap, fmt);
	error_vset(err, status, strerror_r(code, buf, sizeof buf), fmt, ap);
	va_end(ap);
	errno = code;
	return status;
}
