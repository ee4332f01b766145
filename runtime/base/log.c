#include "base/log.h"

#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/error.h"

static const char *const log_names[] = {[GRADCOMP_LOG_ERROR] = "error",
                                        [GRADCOMP_LOG_WARN] = "warn",
                                        [GRADCOMP_LOG_INFO] = "info",
                                        [GRADCOMP_LOG_DEBUG] = "debug"};

static bool log_wanted(const log_sink *log, gradcomp_log_level level)
{
	if (level > log->level)
		return false;
	return level != GRADCOMP_LOG_INFO || log->rank <= 0;
}

void log_vline(const log_sink *log, gradcomp_log_level level, const char *fmt, va_list ap)
{
	char line[1024];
	int saved = errno, head, n;
	size_t len, room;
	if (!log_wanted(log, level))
		return;
	if (log->rank > 0)
		head = snprintf(line, sizeof line, "gradcomp: rank %d: ", log->rank);
	else
		head = snprintf(line, sizeof line, "gradcomp: ");

	room = sizeof line - (size_t)head - 1; /* one byte for the newline */
	errno = saved;                         /* the caller may have written %m */
	n = vsnprintf(line + head, room, fmt, ap);
	if (n < 0)
		n = 0;
	if ((size_t)n >= room) {
		memcpy(line + sizeof line - 5, "...", 3);
		n = (int)room - 1;
	}
	len = (size_t)head + (size_t)n;
	for (size_t i = (size_t)head; i < len; i++)
		if ((unsigned char)line[i] < 0x20 || line[i] == 0x7f)
			line[i] = ' ';
	line[len++] = '\n';

	/* A line that cannot be written is lost: nothing better can be done here. */
	while (write(STDERR_FILENO, line, len) < 0 && errno == EINTR)
		;
	errno = saved;
}

void log_line(const log_sink *log, gradcomp_log_level level, const char *fmt, ...)
{
	va_list ap;
	va_start(ap, fmt);
	log_vline(log, level, fmt, ap);
	va_end(ap);
}

gradcomp_status log_level_parse(const char *text, gradcomp_log_level *level, gradcomp_error *err)
{
	for (size_t i = 0; i < sizeof log_names / sizeof log_names[0]; i++)
		if (!strcmp(text, log_names[i])) {
			*level = (gradcomp_log_level)i;
			return GRADCOMP_OK;
		}
	return error_set(err, GRADCOMP_ERR_INVALID, "log level '%s' is not error, warn, info or debug", text);
}
