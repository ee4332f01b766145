#include "report_path.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "error.h"

gradcomp_status report_path_check(const char *path, gradcomp_error *err)
{
	size_t n = strlen(path);

	if (!n)
		return error_set(err, GRADCOMP_ERR_INVALID, "a report needs a file name");
	if (path[n - 1] == '/')
		return error_set(err, GRADCOMP_ERR_INVALID, "report '%s' names a directory, not a file", path);
	for (const char *p = path; *p; p++) {
		if ((unsigned char)*p < 0x20 || *p == 0x7f)
			return error_set(err, GRADCOMP_ERR_INVALID, "report '%s' has a control character", path);
		if (*p != '%')
			continue;
		p++;
		if (*p != 'j' && *p != 's' && *p != '%')
			return error_set(err, GRADCOMP_ERR_INVALID,
			                 "report '%s': after '%%' may come j (job), s (step) or another '%%'", path);
	}
	return GRADCOMP_OK;
}

/* Part of a path from now on: digits, or it is not believed. */
static const char *number_from(const char *variable, const char *otherwise)
{
	const char *v = getenv(variable);

	return v && *v && strlen(v) <= 20 && !v[strspn(v, "0123456789")] ? v : otherwise;
}

gradcomp_status report_path_expand(const char *path, char **out, gradcomp_error *err)
{
	gradcomp_status status = report_path_check(path, err);
	char pid[24], *text = NULL;
	size_t bytes;
	FILE *f;

	if (status)
		return status;
	snprintf(pid, sizeof pid, "%ld", (long)getpid());
	f = open_memstream(&text, &bytes);
	if (!f)
		return error_set(err, GRADCOMP_ERR_NOMEM, "no memory for the report's name");
	for (const char *p = path; *p; p++) {
		if (*p != '%')
			fputc(*p, f);
		else if (*++p == 'j')
			fputs(number_from("SLURM_JOB_ID", pid), f);
		else if (*p == 's')
			fputs(number_from("SLURM_STEP_ID", "0"), f);
		else
			fputc('%', f);
	}
	if (fclose(f)) {
		free(text);
		return error_set(err, GRADCOMP_ERR_NOMEM, "no memory for the report's name");
	}
	*out = text;
	return GRADCOMP_OK;
}
