#include "base/error.h"
#include "gradcomp/gradcomp.h"

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
static void error_vset(gradcomp_error *err, gradcomp_status status, const char *tail, const char *fmt, va_list ap)
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

gradcomp_status(error_set)(gradcomp_error *err, gradcomp_status status, const char *fmt, ...)
{
	va_list ap;
	if (!err)
		return status;
	va_start(ap, fmt);
	error_vset(err, status, NULL, fmt, ap);
	va_end(ap);
	return status;
}

gradcomp_status(error_errno)(gradcomp_error *err, gradcomp_status status, const char *fmt, ...)
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

const char *gradcomp_version(void)
{
	return GRADCOMP_VERSION_STRING;
}

const char *gradcomp_strerror(gradcomp_status status)
{
	switch (status) {
	case GRADCOMP_OK:
		return "no error";
	case GRADCOMP_ERR_INVALID:
		return "wrong argument or value";
	case GRADCOMP_ERR_NOMEM:
		return "out of memory";
	case GRADCOMP_ERR_NOTFOUND:
		return "not found";
	case GRADCOMP_ERR_UNSUPPORTED:
		return "not supported here";
	case GRADCOMP_ERR_ABI:
		return "not a plugin of this ABI";
	case GRADCOMP_ERR_INSECURE:
		return "a file that others can write";
	case GRADCOMP_ERR_IO:
		return "input or output failed";
	case GRADCOMP_ERR_AUTH:
		return "a peer without the job's secret";
	case GRADCOMP_ERR_MISMATCH:
		return "ranks disagree";
	case GRADCOMP_ERR_PEER:
		return "a rank died or left";
	case GRADCOMP_ERR_TIMEOUT:
		return "a rank did not answer in time";
	case GRADCOMP_ERR_STATE:
		return "called at the wrong moment";
	case GRADCOMP_ERR_RANGE:
		return "too large";
	case GRADCOMP_ERR_PEER_LOST:
		return "a rank is lost";
	case GRADCOMP_ERR_OVERFLOW:
		return "finite numbers have overflowed";
	case GRADCOMP_ERR_INTERNAL:
		return "internal error, please report it";
	}
	return "unknown status";
}
