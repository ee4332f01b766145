#include "base/newfile.h"

#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

struct newfile {
	char *path;   /* for messages */
	char *name;   /* the last part of path */
	char *hidden; /* the name until it is published */
	int dir;      /* kept open: the program may change its directory */
	int fd;
	FILE *stream; /* on fd */
	int named;    /* `hidden` exists */
};

/* errno in words, behind `what`. */
static int failed(char *why, const char *what)
{
	int code = errno;
	char text[100];

	snprintf(why, NEWFILE_WHY, "%s%s", what, strerror_r(code, text, sizeof text));
	errno = code;
	return -1;
}

static int names(newfile *f, const char *path)
{
	const char *slash = strrchr(path, '/');
	uint64_t random = 0;

	/* In /tmp nobody may be able to take the hidden name before us. */
	if (getrandom(&random, sizeof random, 0) != sizeof random)
		random = (uint64_t)getpid();
	f->path = strdup(path);
	f->name = strdup(slash ? slash + 1 : path);
	if (!f->path || !f->name || asprintf(&f->hidden, ".%s.%016llx.tmp", f->name, (unsigned long long)random) < 0) {
		f->hidden = NULL;
		errno = ENOMEM;
		return -1;
	}
	return 0;
}

static int directory(newfile *f, char *why)
{
	size_t n = strlen(f->path) - strlen(f->name);
	char *folder = n ? strndup(f->path, n) : strdup(".");
	char what[NEWFILE_WHY];

	if (!folder)
		return failed(why, "");
	f->dir = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (f->dir < 0) {
		snprintf(what, sizeof what, "directory %.180s: ", folder);
		failed(why, what);
	}
	free(folder);
	return f->dir < 0 ? -1 : 0;
}

/* A file without a name where the file system can make one: nothing stays behind
 * when the process is killed. */
static int file(newfile *f, size_t room, char *why)
{
	struct stat st;
	char what[60];
	int code;

	if (!*f->name || (!fstatat(f->dir, f->name, &st, AT_SYMLINK_NOFOLLOW) && !S_ISREG(st.st_mode))) {
		snprintf(why, NEWFILE_WHY, "there is something of that name that is no file");
		errno = EEXIST;
		return -1;
	}
	f->fd = openat(f->dir, ".", O_TMPFILE | O_WRONLY | O_CLOEXEC, 0666);
	if (f->fd < 0) {
		f->fd = openat(f->dir, f->hidden, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0666);
		f->named = f->fd >= 0;
	}
	if (f->fd < 0 || !(f->stream = fdopen(f->fd, "w")))
		return failed(why, "");
	code = room ? posix_fallocate(f->fd, 0, (off_t)room) : 0;
	if (!code)
		return 0;
	snprintf(what, sizeof what, "no room of %zu bytes: ", room);
	errno = code;
	return failed(why, what);
}

newfile *newfile_open(const char *path, size_t room, char why[NEWFILE_WHY])
{
	newfile *f = calloc(1, sizeof *f);

	if (!f) {
		failed(why, "");
		return NULL;
	}
	f->dir = f->fd = -1;
	if (names(f, path))
		failed(why, "");
	else if (!directory(f, why) && !file(f, room, why))
		return f;
	newfile_abandon(f);
	return NULL;
}

FILE *newfile_stream(const newfile *f)
{
	return f->stream;
}

const char *newfile_path(const newfile *f)
{
	return f->path;
}

void newfile_abandon(newfile *f)
{
	int code = errno;

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
	errno = code;
}

/* Gives a file made by O_TMPFILE its hidden name. */
static int name_it(newfile *f)
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

static int complete(const newfile *f)
{
	long end = ftell(f->stream);

	if (end < 0 || fflush(f->stream) || ferror(f->stream))
		return -1;
	return ftruncate(f->fd, end) || fsync(f->fd) ? -1 : 0;
}

int newfile_close(newfile *f, char why[NEWFILE_WHY])
{
	int status = 0;

	if (complete(f) || name_it(f) || renameat(f->dir, f->hidden, f->dir, f->name))
		status = failed(why, "");
	else
		f->named = 0;
	newfile_abandon(f);
	return status;
}
