#include "base/job_path.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/error.h"

gradcomp_status job_path_check(const char *what, const char *path, gradcomp_error *err)
{
	size_t n = strlen(path);
	if (!n)
		return error_set(err, GRADCOMP_ERR_INVALID, "a %s needs a file name", what);
	if (path[n - 1] == '/')
		return error_set(err, GRADCOMP_ERR_INVALID, "%s '%s' names a directory, not a file", what, path);
	for (const char *p = path; *p; p++) {
		if ((unsigned char)*p < 0x20 || *p == 0x7f)
			return error_set(err, GRADCOMP_ERR_INVALID, "%s '%s' has a control character", what, path);
		if (*p != '%')
			continue;
		p++;
		if (*p != 'j' && *p != 's' && *p != '%')
			return error_set(err, GRADCOMP_ERR_INVALID,
			                 "%s '%s': after '%%' may come j (job), s (step) or another '%%'", what, path);
	}
	return GRADCOMP_OK;
}

/* Part of a path from now on: digits, or it is not believed. */
static const char *number_from(const char *variable, const char *otherwise)
{
	const char *v = getenv(variable);
	return v && *v && strlen(v) <= 20 && !v[strspn(v, "0123456789")] ? v : otherwise;
}

gradcomp_status job_path_expand(const char *what, const char *path, char **out, gradcomp_error *err)
{
	gradcomp_status st = job_path_check(what, path, err);
	char pid[24], *text = NULL;
	size_t bytes;
	FILE *f;
	if (st)
		return st;
	snprintf(pid, sizeof pid, "%ld", (long)getpid());
	f = open_memstream(&text, &bytes);
	if (!f)
		return error_set(err, GRADCOMP_ERR_NOMEM, "no memory for the name of the %s", what);
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
		return error_set(err, GRADCOMP_ERR_NOMEM, "no memory for the name of the %s", what);
	}
	*out = text;
	return GRADCOMP_OK;
}
