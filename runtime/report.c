#include "report.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include "error.h"
#include "job_path.h"
#include "report_text.h"

/* Room taken at the start: a report of some ten thousand tensors. */
#define REPORT_ROOM (1 << 20)

struct report {
	char *path;   /* for messages */
	char *name;   /* the last part of path */
	char *hidden; /* the name until it is published */
	int dir;      /* kept open: the program may change its directory */
	int fd;
	FILE *stream; /* on fd */
	int named;    /* `hidden` exists */
};

static int report_name(report *r)
{
	const char *slash = strrchr(r->path, '/');
	uint64_t random = 0;

	/* In /tmp nobody may be able to take the hidden name before us. */
	if (getrandom(&random, sizeof random, 0) != sizeof random)
		random = (uint64_t)getpid();
	r->name = strdup(slash ? slash + 1 : r->path);
	if (!r->name || asprintf(&r->hidden, ".%s.%016llx.tmp", r->name, (unsigned long long)random) < 0) {
		r->hidden = NULL;
		return 0;
	}
	return 1;
}

static gradcomp_status report_directory(report *r, gradcomp_error *err)
{
	size_t n = strlen(r->path) - strlen(r->name);
	char *folder = n ? strndup(r->path, n) : strdup(".");

	if (!folder)
		return error_set(err, GRADCOMP_ERR_NOMEM, "no memory for the report");
	r->dir = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (r->dir < 0)
		error_errno(err, GRADCOMP_ERR_IO, "report %s: directory %s", r->path, folder);
	free(folder);
	return r->dir < 0 ? GRADCOMP_ERR_IO : GRADCOMP_OK;
}

/* A file without a name where the file system can make one: nothing stays behind
 * when the process is killed. */
static gradcomp_status report_file(report *r, gradcomp_error *err)
{
	struct stat st;
	int code;

	if (!fstatat(r->dir, r->name, &st, AT_SYMLINK_NOFOLLOW) && !S_ISREG(st.st_mode))
		return error_set(err, GRADCOMP_ERR_IO, "report %s: there is something of that name that is no file", r->path);
	r->fd = openat(r->dir, ".", O_TMPFILE | O_WRONLY | O_CLOEXEC, 0666);
	if (r->fd < 0) {
		r->fd = openat(r->dir, r->hidden, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0666);
		r->named = r->fd >= 0;
	}
	if (r->fd < 0 || !(r->stream = fdopen(r->fd, "w")))
		return error_errno(err, GRADCOMP_ERR_IO, "report %s", r->path);
	code = posix_fallocate(r->fd, 0, REPORT_ROOM);
	if (code) {
		errno = code;
		return error_errno(err, GRADCOMP_ERR_IO, "report %s: no room of %d bytes", r->path, REPORT_ROOM);
	}
	return GRADCOMP_OK;
}

gradcomp_status report_open(const char *path, report **out, gradcomp_error *err)
{
	report *r = calloc(1, sizeof *r);
	gradcomp_status status;

	if (!r)
		return error_set(err, GRADCOMP_ERR_NOMEM, "no memory for the report");
	r->dir = r->fd = -1;
	status = job_path_expand("report", path, &r->path, err);
	if (status)
		goto fail;
	if (!report_name(r)) {
		status = error_set(err, GRADCOMP_ERR_NOMEM, "no memory for the report");
		goto fail;
	}
	if ((status = report_directory(r, err)) || (status = report_file(r, err)))
		goto fail;
	*out = r;
	return GRADCOMP_OK;
fail:
	report_abandon(r);
	return status;
}

void report_abandon(report *r)
{
	if (!r)
		return;
	if (r->hidden && r->named)
		unlinkat(r->dir, r->hidden, 0);
	if (r->stream)
		fclose(r->stream);
	else if (r->fd >= 0)
		close(r->fd);
	if (r->dir >= 0)
		close(r->dir);
	free(r->path);
	free(r->name);
	free(r->hidden);
	free(r);
}

/* Gives a file made by O_TMPFILE its hidden name. */
static int report_name_it(report *r)
{
	char self[40];

	if (r->named)
		return 0;
	snprintf(self, sizeof self, "/proc/self/fd/%d", r->fd);
	if (linkat(AT_FDCWD, self, r->dir, r->hidden, AT_SYMLINK_FOLLOW))
		return -1;
	r->named = 1;
	return 0;
}

static int report_fill(const report *r, const report_job *job)
{
	long end;

	report_write(r->stream, job);
	end = ftell(r->stream);
	if (end < 0 || fflush(r->stream) || ferror(r->stream))
		return -1;
	return ftruncate(r->fd, end) || fsync(r->fd) ? -1 : 0;
}

gradcomp_status report_close(report *r, const report_job *job, gradcomp_error *err)
{
	gradcomp_status status = GRADCOMP_OK;

	if (report_fill(r, job) || report_name_it(r) || renameat(r->dir, r->hidden, r->dir, r->name))
		status = error_errno(err, GRADCOMP_ERR_IO, "report %s cannot be written", r->path);
	else
		r->named = 0;
	report_abandon(r);
	return status;
}
