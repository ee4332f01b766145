#include "base/outfile.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/error.h"
#include "base/job_path.h"

struct outfile {
	const char *what;
	char *path;
	const char *name; /* the last part of path */
	char *hidden;     /* the name until it is published */
	int dir;          /* kept open: the program may change its directory */
	int fd;
	FILE *stream; /* on fd */
	bool named;   /* `hidden` exists */
};

/* In /tmp nobody may be able to take the hidden name before us. NULL with errno. */
static char *hidden_name(const char *name)
{
	uint64_t random = 0;
	char *hidden;
	if (getrandom(&random, sizeof random, 0) != sizeof random)
		random = (uint64_t)getpid();
	if (asprintf(&hidden, ".%s.%016llx.tmp", name, (unsigned long long)random) >= 0)
		return hidden;
	errno = ENOMEM;
	return NULL;
}

static int open_hidden(int dir, const char *hidden, mode_t mode)
{
	return openat(dir, hidden, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, mode);
}

/* Puts errno in words behind `detail`. */
static gradcomp_status failed(const outfile *f, const char *detail, gradcomp_error *err)
{
	return error_errno(err, errno == ENOMEM ? GRADCOMP_ERR_NOMEM : GRADCOMP_ERR_IO, "%s %s cannot be written%s%s",
	                   f->what, f->path, *detail ? ": " : "", detail);
}

static gradcomp_status directory(outfile *f, gradcomp_error *err)
{
	size_t n = (size_t)(f->name - f->path);
	char *folder = n ? strndup(f->path, n) : strdup(".");
	char detail[200];
	if (!folder)
		return failed(f, "", err);
	f->dir = open(folder, O_PATH | O_DIRECTORY | O_CLOEXEC); /* which need not be readable */
	snprintf(detail, sizeof detail, "directory %.180s", folder);
	free(folder);
	return f->dir < 0 ? failed(f, detail, err) : GRADCOMP_OK;
}

/* A file without a name where the file system can make one: nothing stays behind
 * when the process is killed. */
static gradcomp_status file(outfile *f, size_t room, gradcomp_error *err)
{
	struct stat st;
	char detail[60];
	if (!*f->name || (!fstatat(f->dir, f->name, &st, AT_SYMLINK_NOFOLLOW) && !S_ISREG(st.st_mode)))
		return error_set(err, GRADCOMP_ERR_IO,
		                 "%s %s cannot be written: there is something of that name that is no file", f->what,
		                 f->path);
	f->fd = openat(f->dir, ".", O_TMPFILE | O_WRONLY | O_CLOEXEC, 0666);
	if (f->fd < 0) {
		f->fd = open_hidden(f->dir, f->hidden, 0666);
		f->named = f->fd >= 0;
	}
	if (f->fd < 0 || !(f->stream = fdopen(f->fd, "w")))
		return failed(f, "", err);
	errno = room ? posix_fallocate(f->fd, 0, (off_t)room) : 0;
	if (!errno)
		return GRADCOMP_OK;
	snprintf(detail, sizeof detail, "no room of %zu bytes", room);
	return failed(f, detail, err);
}

/* Takes `path`. */
static gradcomp_status open_path(const char *what, char *path, size_t room, outfile **out, gradcomp_error *err)
{
	outfile *f = path ? calloc(1, sizeof *f) : NULL;
	const char *slash;
	gradcomp_status st;
	if (!f) {
		free(path);
		return error_set(err, GRADCOMP_ERR_NOMEM, "no memory for the %s", what);
	}
	slash = strrchr(path, '/');
	*f = (outfile){.what = what, .path = path, .name = slash ? slash + 1 : path, .dir = -1, .fd = -1};
	f->hidden = hidden_name(f->name);
	st = f->hidden ? directory(f, err) : failed(f, "", err);
	if (!st)
		st = file(f, room, err);
	if (st)
		outfile_abandon(f);
	else
		*out = f;
	return st;
}

gradcomp_status outfile_open(const char *what, const char *path, size_t room, outfile **out, gradcomp_error *err)
{
	return open_path(what, strdup(path), room, out, err);
}

gradcomp_status outfile_open_job(const char *what, const char *path, size_t room, outfile **out, gradcomp_error *err)
{
	char *expanded;
	gradcomp_status st = job_path_expand(what, path, &expanded, err);
	return st ? st : open_path(what, expanded, room, out, err);
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
	if (f->named)
		unlinkat(f->dir, f->hidden, 0);
	if (f->stream)
		fclose(f->stream);
	else if (f->fd >= 0)
		close(f->fd);
	if (f->dir >= 0)
		close(f->dir);
	free(f->path);
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
	f->named = true;
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
	gradcomp_status st = GRADCOMP_OK;
	if (complete(f) || name_it(f) || renameat(f->dir, f->hidden, f->dir, f->name))
		st = failed(f, "", err);
	else
		f->named = false;
	outfile_abandon(f);
	return st;
}

int outfile_put(int dir, const char *name, const void *data, size_t bytes)
{
	char *hidden = hidden_name(name);
	int fd = hidden ? open_hidden(dir, hidden, 0644) : -1;
	int code = fd < 0 ? errno : 0;
	if (fd >= 0) {
		ssize_t n = write(fd, data, bytes);

		if (n != (ssize_t)bytes)
			code = n < 0 ? errno : ENOSPC;
		if (close(fd) && !code)
			code = errno;
		if (!code && renameat(dir, hidden, dir, name))
			code = errno;
		if (code)
			unlinkat(dir, hidden, 0);
	}
	free(hidden);
	errno = code;
	return code ? -1 : 0;
}
