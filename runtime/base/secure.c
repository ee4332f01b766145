#include "base/secure.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/error.h"

static const char *secure_kind(mode_t mode)
{
	switch (mode & S_IFMT) {
	case S_IFDIR: return "a directory";
	case S_IFIFO: return "a FIFO";
	case S_IFSOCK: return "a socket";
	case S_IFLNK: return "a symbolic link";
	case S_IFREG: return "a regular file";
	default: return "a device";
	}
}

static gradcomp_status secure_regular(const char *path, const struct stat *st, gradcomp_error *err)
{
	if (S_ISREG(st->st_mode))
		return GRADCOMP_OK;
	return error_set(err, GRADCOMP_ERR_INVALID, "%s is %s, not a regular file", path, secure_kind(st->st_mode));
}

/* `part` is `path` or a directory above it. */
static gradcomp_status secure_judge(const char *path, const char *part, const struct stat *st,
                                    gradcomp_error *err)
{
	int whole = !strcmp(path, part);
	const char *which = whole ? "it" : part;

	if (st->st_uid != 0 && st->st_uid != geteuid())
		return error_set(err, GRADCOMP_ERR_INSECURE,
		                 "%s is not trusted: %s belongs to user %u; it must belong to root or to user %u",
		                 path, which, (unsigned)st->st_uid, (unsigned)geteuid());
	if (S_ISDIR(st->st_mode) && (st->st_mode & S_ISVTX))
		return GRADCOMP_OK;
	if (st->st_mode & (S_IWGRP | S_IWOTH))
		return error_set(err, GRADCOMP_ERR_INSECURE,
		                 "%s is not trusted: %s can be written by %s (mode %04o); mend it with: chmod go-w %s",
		                 path, which, st->st_mode & S_IWOTH ? "everybody" : "its group",
		                 (unsigned)(st->st_mode & 07777), part);
	return GRADCOMP_OK;
}

/* `real` has no links. Every directory on the way, from / down. */
static gradcomp_status secure_walk(const char *real, char *part, gradcomp_error *err)
{
	for (const char *p = real; p; p = strchr(p + 1, '/')) {
		size_t n = p == real ? 1 : (size_t)(p - real);
		gradcomp_status status;
		struct stat st;

		memcpy(part, real, n);
		part[n] = '\0';
		if (lstat(part, &st))
			return error_errno(err, GRADCOMP_ERR_IO, "%s", part);
		if (!S_ISDIR(st.st_mode))
			return error_set(err, GRADCOMP_ERR_INSECURE, "%s is not trusted: %s was exchanged while it was read",
			                 real, part);
		status = secure_judge(real, part, &st, err);
		if (status)
			return status;
	}
	return GRADCOMP_OK;
}

static gradcomp_status secure_errno(const char *path, gradcomp_error *err)
{
	return error_errno(err, errno == ENOENT || errno == ENOTDIR ? GRADCOMP_ERR_NOTFOUND : GRADCOMP_ERR_IO, "%s",
	                   path);
}

gradcomp_status secure_open(const char *path, int *fd, char **real, gradcomp_error *err)
{
	char *where = realpath(path, NULL), *part = NULL;
	gradcomp_status status;
	struct stat st;
	int f = -1;

	if (!where)
		return secure_errno(path, err);
	part = malloc(strlen(where) + 2);
	if (!part) {
		status = error_set(err, GRADCOMP_ERR_NOMEM, "%s: no memory", path);
		goto fail;
	}
	if (lstat(where, &st)) {
		status = secure_errno(path, err);
		goto fail;
	}
	/* Opening a device or a FIFO can do things or wait: look first. */
	if ((status = secure_regular(path, &st, err)) || (status = secure_walk(where, part, err)))
		goto fail;
	f = open(where, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY);
	if (f < 0 || fstat(f, &st)) {
		status = secure_errno(path, err);
		goto fail;
	}
	if ((status = secure_regular(path, &st, err)) || (status = secure_judge(where, where, &st, err)))
		goto fail;
	free(part);
	*fd = f;
	*real = where;
	return GRADCOMP_OK;
fail:
	if (f >= 0)
		close(f);
	free(part);
	free(where);
	return status;
}
