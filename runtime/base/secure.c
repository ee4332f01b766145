#include "base/secure.h"

#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "base/error.h"
#include "base/install.h"

static const char *secure_kind(mode_t mode)
{
	switch (mode & S_IFMT) {
	case S_IFDIR:
		return "a directory";
	case S_IFIFO:
		return "a FIFO";
	case S_IFSOCK:
		return "a socket";
	case S_IFLNK:
		return "a symbolic link";
	case S_IFREG:
		return "a regular file";
	default:
		return "a device";
	}
}

static gradcomp_status secure_regular(const char *path, const struct stat *st, gradcomp_error *err)
{
	if (S_ISREG(st->st_mode))
		return GRADCOMP_OK;
	return error_set(err, GRADCOMP_ERR_INVALID, "%s is %s, not a regular file", path, secure_kind(st->st_mode));
}

/* Read once: every part of every path that is checked is compared with it. */
static unsigned secure_overflow_id(void)
{
	static atomic_uint known; /* 0: not read yet, else one more than the id */
	unsigned id = atomic_load(&known);
	FILE *f = id ? NULL : fopen("/proc/sys/kernel/overflowuid", "re");
	if (id)
		return id - 1;
	if (!f || fscanf(f, "%u", &id) != 1)
		id = 65534;
	if (f)
		fclose(f);
	atomic_store(&known, id + 1);
	return id;
}

/* A user namespace shows whoever it has no number for as one user, the overflow id. *nobody: that
 * it does so with `uid`. *rootless: root outside is among them. */
static void secure_namespace(uid_t uid, bool *nobody, bool *rootless)
{
	unsigned long long overflow = secure_overflow_id(), inside, outside, count;
	FILE *f;

	*nobody = *rootless = false;
	if (uid != overflow)
		return;
	f = fopen("/proc/self/uid_map", "re");
	if (!f)
		return;
	*nobody = *rootless = true;
	while (fscanf(f, "%llu %llu %llu", &inside, &outside, &count) == 3) {
		*nobody &= overflow < inside || overflow - inside >= count;
		*rootless &= outside != 0 || !count;
	}
	fclose(f);
}

/* Returns true when `uid` owns the code that runs here, and `part` is in the prefix that it was installed to or a
 * folder above that: PREFIX/lib/libgradcomp.so, PREFIX/bin/gradcomp. */
static bool secure_of_installer(const char *part, uid_t uid)
{
	unsigned long long inode = 0;
	struct stat st;
	char *own = install_own_file(&inode);
	bool trusted = false;
	size_t n = strlen(part);

	if (own && !stat(own, &st) && st.st_ino == inode && st.st_uid == uid && install_prefix_of(own))
		trusted = !strcmp(part, "/") || (!strncmp(own, part, n) && (!own[n] || own[n] == '/')) ||
		          (!strncmp(part, own, strlen(own)) && part[strlen(own)] == '/');
	free(own);
	return trusted;
}

static gradcomp_status secure_owner(const char *path, const char *part, const char *which, uid_t uid,
                                    gradcomp_error *err)
{
	bool nobody, rootless;
	struct statvfs fs;
	secure_namespace(uid, &nobody, &rootless);
	/* Nobody outside owns it. Only what this namespace has mounted read-only was put there on purpose. */
	if (nobody) {
		if (rootless && !statvfs(part, &fs) && (fs.f_flag & ST_RDONLY))
			return GRADCOMP_OK;
		return error_set(
			err, GRADCOMP_ERR_INSECURE,
			"%s is not trusted: %s belongs to a user that this user namespace does not know (%u); it must "
			"be mounted read-only, or belong to user %u",
			path, which, (unsigned)uid, (unsigned)geteuid());
	}
	if (uid == 0 || uid == geteuid() || secure_of_installer(part, uid))
		return GRADCOMP_OK;
	return error_set(err, GRADCOMP_ERR_INSECURE,
	                 "%s is not trusted: %s belongs to user %u; it must belong to root or to user %u", path, which,
	                 (unsigned)uid, (unsigned)geteuid());
}

/* Returns the folder whose repair makes all of an installation good at once, where `part` is in the installation or
 * is a virtual environment around it: umask 002 has made every file and folder of it group-writable. Else NULL;
 * freed by the caller. */
static char *secure_whole_installation(const char *part)
{
	unsigned long long inode = 0;
	char *prefix = install_own_file(&inode), *marker = NULL;
	size_t n;

	if (!prefix || !install_prefix_of(prefix))
		goto none;
	n = strlen(prefix);
	if (!strncmp(part, prefix, n) && (!part[n] || part[n] == '/'))
		return prefix;
	n = strlen(part);
	if (strncmp(prefix, part, n) != 0 || prefix[n] != '/')
		goto none;
	if (asprintf(&marker, "%s/pyvenv.cfg", part) < 0)
		marker = NULL;
	if (marker && !access(marker, F_OK)) {
		free(marker);
		prefix[n] = '\0';
		return prefix;
	}
none:
	free(marker);
	free(prefix);
	return NULL;
}

static gradcomp_status secure_writable(const char *path, const char *which, const char *part, mode_t mode,
                                       gradcomp_error *err)
{
	char *whole = secure_whole_installation(part);
	error_set(err, GRADCOMP_ERR_INSECURE,
	          "%s is not trusted: %s can be written by %s (mode %04o); mend it with: chmod %sgo-w %s%s", path,
	          which, mode & S_IWOTH ? "everybody" : "its group", (unsigned)(mode & 07777), whole ? "-R " : "",
	          whole ? whole : part, whole ? " (umask 022 makes such files at once)" : "");
	free(whole);
	return GRADCOMP_ERR_INSECURE;
}

/* `part` is `path` or a directory above it. */
static gradcomp_status secure_judge(const char *path, const char *part, const struct stat *sb, gradcomp_error *err)
{
	int whole = !strcmp(path, part);
	const char *which = whole ? "it" : part;
	gradcomp_status st = secure_owner(path, part, which, sb->st_uid, err);
	if (st)
		return st;
	if (S_ISDIR(sb->st_mode) && (sb->st_mode & S_ISVTX))
		return GRADCOMP_OK;
	if (sb->st_mode & (S_IWGRP | S_IWOTH))
		return secure_writable(path, which, part, sb->st_mode, err);
	return GRADCOMP_OK;
}

/* `real` has no links. Every directory on the way, from / down. */
static gradcomp_status secure_walk(const char *real, char *part, gradcomp_error *err)
{
	for (const char *p = real; p; p = strchr(p + 1, '/')) {
		size_t n = p == real ? 1 : (size_t)(p - real);
		gradcomp_status st;
		struct stat sb;

		memcpy(part, real, n);
		part[n] = '\0';
		if (lstat(part, &sb))
			return error_errno(err, GRADCOMP_ERR_IO, "%s", part);
		if (!S_ISDIR(sb.st_mode))
			return error_set(err, GRADCOMP_ERR_INSECURE,
			                 "%s is not trusted: %s was exchanged while it was read", real, part);
		st = secure_judge(real, part, &sb, err);
		if (st)
			return st;
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
	gradcomp_status st;
	struct stat sb;
	int f = -1;
	if (!where)
		return secure_errno(path, err);
	part = malloc(strlen(where) + 2);
	if (!part) {
		st = error_set(err, GRADCOMP_ERR_NOMEM, "%s: no memory", path);
		goto fail;
	}
	if (lstat(where, &sb)) {
		st = secure_errno(path, err);
		goto fail;
	}
	/* Opening a device or a FIFO can do things or wait: look first. */
	if ((st = secure_regular(path, &sb, err)) || (st = secure_walk(where, part, err)))
		goto fail;
	f = open(where, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY);
	if (f < 0 || fstat(f, &sb)) {
		st = secure_errno(path, err);
		goto fail;
	}
	if ((st = secure_regular(path, &sb, err)) || (st = secure_judge(where, where, &sb, err)))
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
	return st;
}
