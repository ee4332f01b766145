#include "base/text.h"
#include "io/format/whole_file.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "io/format/samples_internal.h"

#define BUFFER (1u << 20)

/* With the modes that the umask leaves. */
static int open_temp(whole_file *f)
{
	unsigned long long random = 0;
	for (int i = 0; i < 100; i++) {
		if (getrandom(&random, sizeof random, 0) < 0 && errno != EINTR)
			return -1;
		free(f->temp);
		if (asprintf(&f->temp, "%s.%016llx.tmp", f->path, random) < 0) {
			f->temp = NULL;
			errno = ENOMEM;
			return -1;
		}
		f->fd = open(f->temp, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0666);
		if (f->fd >= 0)
			return 0;
		if (errno != EEXIST)
			break;
	}
	free(f->temp);
	f->temp = NULL;
	return -1;
}

gradcomp_status whole_begin(whole_file *f, const char *path, gradcomp_error *err)
{
	char name[TEXT_NAME_MAX];
	struct stat st;
	gradcomp_status status;
	*f = (whole_file){.fd = -1};
	if (stat(path, &st) == 0 && !S_ISREG(st.st_mode))
		return error_set(err, GRADCOMP_ERR_INVALID, "%s exists and is no file",
		                 gradcomp_printable(path, name, sizeof name));
	f->path = strdup(path);
	f->buffer = malloc(BUFFER);
	if (f->path && f->buffer && open_temp(f) == 0)
		return GRADCOMP_OK;
	status = error_cannot(err, "create", path);
	whole_end(f);
	return status;
}

static int write_all(int fd, const unsigned char *p, size_t n)
{
	while (n) {
		ssize_t done = write(fd, p, n < 1u << 30 ? n : 1u << 30);
		if (done < 0 && errno == EINTR)
			continue;
		if (done <= 0)
			return -1;
		p += done;
		n -= (size_t)done;
	}
	return 0;
}

static int flush(whole_file *f)
{
	int bad = write_all(f->fd, f->buffer, f->held);
	f->held = 0;
	return bad;
}

int whole_put(whole_file *f, const void *data, size_t n)
{
	f->at += n;
	if (n > BUFFER - f->held && flush(f) < 0)
		return -1;
	if (n > BUFFER)
		return write_all(f->fd, data, n);
	if (n)
		memcpy(f->buffer + f->held, data, n);
	f->held += n;
	return 0;
}

/* Brings the directory of the file to the disk, so that its name is there. */
static int sync_parent(const char *path)
{
	char parent[PATH_MAX];
	const char *slash = strrchr(path, '/');
	size_t n = slash ? (size_t)(slash - path) + 1 : 0;
	if (n + 2 > sizeof parent) {
		errno = ENAMETOOLONG;
		return -1;
	}
	memcpy(parent, path, n);
	memcpy(parent + n, ".", 2);
	int fd = open(parent, O_RDONLY | O_DIRECTORY | O_CLOEXEC), bad = fd < 0 || fsync(fd) < 0, e = errno;
	if (fd >= 0)
		close(fd);
	errno = e;
	return bad ? -1 : 0;
}

gradcomp_status whole_publish(whole_file *f, gradcomp_error *err)
{
	if (flush(f) < 0 || fsync(f->fd) < 0 || rename(f->temp, f->path) < 0)
		return whole_failed(f, err);
	free(f->temp);
	f->temp = NULL;
	return sync_parent(f->path) < 0 ? error_cannot(err, "bring to the disk the name of", f->path) : GRADCOMP_OK;
}

gradcomp_status whole_failed(whole_file *f, gradcomp_error *err)
{
	char name[TEXT_NAME_MAX / 2], done[32], left[32];
	struct statvfs fs;
	int e = errno;
	gradcomp_printable(f->path, name, sizeof name);
	gradcomp_size_text(f->at, done);
	if (e == ENOSPC)
		return error_set(err, GRADCOMP_ERR_IO,
		                 "no space: %s needs more than %s, and its filesystem has %s left", name, done,
		                 fstatvfs(f->fd, &fs) == 0
		                         ? gradcomp_size_text((uint64_t)fs.f_bavail * fs.f_frsize, left)
		                         : "nothing");
	if (e == EDQUOT)
		return error_set(err, GRADCOMP_ERR_IO, "your disk quota is used up: %s needs more than %s", name,
		                 done);
	errno = e;
	return error_cannot(err, "write", f->path);
}

void whole_end(whole_file *f)
{
	if (f->fd >= 0)
		close(f->fd);
	if (f->temp)
		unlink(f->temp);
	free(f->path);
	free(f->temp);
	free(f->buffer);
	*f = (whole_file){.fd = -1};
}
