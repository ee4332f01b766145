#include "outfile.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include "error.h"
#include "job_path.h"

struct outfile {
	const char *what;
	char *path;   /* for messages */
	char *name;   /* the last part of path */
	char *hidden; /* the name until it is published */
	int dir;      /* kept open: the program may change its directory */
	int fd;
	FILE *stream; /* on fd */
	int named;    /* `hidden` exists */
};

static gradcomp_status names(outfile *f, gradcomp_error *err)
{
	const char *slash = strrchr(f->path, '/');
	uint64_t random = 0;

	/* In /tmp nobody may be able to take the hidden name before us. */
	if (getrandom(&random, sizeof random, 0) != sizeof random)
		random = (uint64_t)getpid();
	f->name = strdup(slash ? slash + 1 : f->path);
	if (!f->name || asprintf(&f->hidden, ".%s.%016llx.tmp", f->name, (unsigned long long)random) < 0) {
		f->hidden = NULL;
		return error_set(err, GRADCOMP_ERR_NOMEM, "no memory for the %s", f->what);
	}
	return GRADCOMP_OK;
}

static gradcomp_status directory(outfile *f, gradcomp_error *err)
{
	size_t n = strlen(f->path) - strlen(f->name);
	char *folder = n ? strndup(f->path, n) : strdup(".");

	if (!folder)
		return error_set(err, GRADCOMP_ERR_NOMEM, "no memory for the %s", f->what);
	f->dir = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (f->dir < 0)
		error_errno(err, GRADCOMP_ERR_IO, "%s %s: directory %s", f->what, f->path, folder);
	free(folder);
	return f->dir < 0 ? GRADCOMP_ERR_IO : GRADCOMP_OK;
}

/* A file without a name where the file system can make one: nothing stays behind
 * when the process is killed. */
static gradcomp_status file(outfile *f, size_t room, gradcomp_error *err)
{
	struct stat st;
	int code;

	if (!fstatat(f->dir, f->name, &st, AT_SYMLINK_NOFOLLOW) && !S_ISREG(st.st_mode))
		return error_set(err, GRADCOMP_ERR_IO, "%s %s: there is something of that name that is no file", f->what,
		                 f->path);
	f->fd = openat(f->dir, ".", O_TMPFILE | O_WRONLY | O_CLOEXEC, 0666);
	if (f->fd < 0) {
		f->fd = openat(f->dir, f->hidden, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0666);
		f->named = f->fd >= 0;
	}
	if (f->fd < 0 || !(f->stream = fdopen(f->fd, "w")))
		return error_errno(err, GRADCOMP_ERR_IO, "%s %s", f->what, f->path);
	code = posix_fallocate(f->fd, 0, (off_t)room);
	if (code) {
		errno = code;
		return error_errno(err, GRADCOMP_ERR_IO, "%s %s: no room of %zu bytes", f->what, f->path, room);
	}
	return GRADCOMP_OK;
}

gradcomp_status outfile_open(const char *what, const char *path, size_t room, outfile **out, gradcomp_error *err)
{
	outfile *f = calloc(1, sizeof *f);
	gradcomp_status status;

	if (!f)
		return error_set(err, GRADCOMP_ERR_NOMEM, "no memory for the %s", what);
	f->what = what;
	f->dir = f->fd = -1;
	status = job_path_expand(what, path, &f->path, err);
	if (!status)
		status = names(f, err);
	if (!status)
		status = directory(f, err);
	if (!status)
		status = file(f, room, err);
	if (status)
		outfile_abandon(f);
	else
		*out = f;
	return status;
}

FILE *outfile_stream(const outfile *f)
{
	return f->stream;
}

const char *outfile_path(const outfile *f)
{
	return f->path;
}

void outfile_abandon(outfile *f)
{
	if (!f)
		return;
	if (f->hidden && f->named)
		unlinkat(f->dir, f->hidden, 0);
	if (f->stream)
		fclose(f->stream);
	else if (f->fd >= 0)
		close(f->fd);
	if (f->dir >= 0)
		close(f->dir);
	free(f->path);
	free(f->name);
	free(f->hidden);
	free(f);
}

/* Gives a file made by O_TMPFILE its hidden name. */
static int name_it(outfile *f)
{
	char self[40];

	if (f->named)
		return 0;
	snprintf(self, sizeof self, "/proc/self/fd/%d", f->fd);
	if (linkat(AT_FDCWD, self, f->dir, f->hidden, AT_SYMLINK_FOLLOW))
		return -1;
	f->named = 1;
	return 0;
}

static int complete(const outfile *f)
{
	long end = ftell(f->stream);

	if (end < 0 || fflush(f->stream) || ferror(f->stream))
		return -1;
	return ftruncate(f->fd, end) || fsync(f->fd) ? -1 : 0;
}

gradcomp_status outfile_close(outfile *f, gradcomp_error *err)
{
	gradcomp_status status = GRADCOMP_OK;

	if (complete(f) || name_it(f) || renameat(f->dir, f->hidden, f->dir, f->name))
		status = error_errno(err, GRADCOMP_ERR_IO, "%s %s cannot be written", f->what, f->path);
	else
		f->named = 0;
	outfile_abandon(f);
	return status;
}
