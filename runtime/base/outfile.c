#include "base/outfile.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/job_path.h"
#include "base/newfile.h"

struct outfile {
	const char *what;
	newfile *file;
};

gradcomp_status outfile_open(const char *what, const char *path, size_t room, outfile **out, gradcomp_error *err)
{
	outfile *f = calloc(1, sizeof *f);
	char *name = NULL, why[NEWFILE_WHY];
	gradcomp_status status;

	if (!f)
		return error_set(err, GRADCOMP_ERR_NOMEM, "no memory for the %s", what);
	f->what = what;
	status = job_path_expand(what, path, &name, err);
	if (!status && !(f->file = newfile_open(name, room, why)))
		status = error_set(err, errno == ENOMEM ? GRADCOMP_ERR_NOMEM : GRADCOMP_ERR_IO, "%s %s: %s", what, name, why);
	free(name);
	if (status)
		free(f);
	else
		*out = f;
	return status;
}

FILE *outfile_stream(const outfile *f)
{
	return newfile_stream(f->file);
}

const char *outfile_path(const outfile *f)
{
	return newfile_path(f->file);
}

void outfile_abandon(outfile *f)
{
	if (!f)
		return;
	newfile_abandon(f->file);
	free(f);
}

gradcomp_status outfile_close(outfile *f, gradcomp_error *err)
{
	char *path = strdup(newfile_path(f->file)), why[NEWFILE_WHY];
	gradcomp_status status = GRADCOMP_OK;

	if (newfile_close(f->file, why))
		status = error_set(err, GRADCOMP_ERR_IO, "%s %s cannot be written: %s", f->what, path ? path : "", why);
	free(path);
	free(f);
	return status;
}
