/* Areas of the cache, a user's and the shared one. Each is opened so that nobody but root and
 * the owner can have made it or can replace it. */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/text.h"
#include "io/cache/cache.h"

#define OPEN_DIR (O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC)

/* A directory whose entries only root, the user and `owner` can replace. */
static gradcomp_status check_dir(int fd, const char *path, uid_t owner, gradcomp_error *err)
{
	char name[TEXT_NAME_MAX];
	struct stat st;
	if (fstat(fd, &st) < 0)
		return text_cannot(err, "look at", path);
	if (st.st_uid != 0 && st.st_uid != geteuid() && st.st_uid != owner)
		return error_set(err, GRADCOMP_ERR_INSECURE,
		                 "%s belongs to uid %u, not to root or to you: a cache below it cannot be trusted; "
		                 "the administrator can remove it and make it as root (a line in tmpfiles.d), or set "
		                 "stage.cache_dir",
		                 gradcomp_printable(path, name, sizeof name), (unsigned)st.st_uid);
	if ((st.st_mode & 022) && !(st.st_mode & S_ISVTX))
		return error_set(err, GRADCOMP_ERR_INSECURE,
		                 "%s can be written by others (mode %04o) and is not sticky: a cache below it "
		                 "cannot be trusted; chmod go-w or +t, or set stage.cache_dir",
		                 gradcomp_printable(path, name, sizeof name), (unsigned)(st.st_mode & 07777));
	return GRADCOMP_OK;
}

/* The directory that the cache is in. Its real path is opened from / on, a component at a time,
 * and each of them checked, so it does not matter by which links it is reached. */
static gradcomp_status open_parent(const char *path, uid_t owner, int *out, gradcomp_error *err)
{
	char real[PATH_MAX], shown[PATH_MAX];
	gradcomp_status st;
	int fd = -1;
	if (!realpath(path, real)) {
		if (errno == ENOENT) {
			char name[TEXT_NAME_MAX];
			return error_set(err, GRADCOMP_ERR_IO,
			                 "there is no directory %s for the cache (setting stage.cache_dir)",
			                 gradcomp_printable(path, name, sizeof name));
		}
		return text_cannot(err, "find", path);
	}
	strcpy(shown, "/");
	if ((fd = open("/", O_PATH | O_DIRECTORY | O_CLOEXEC)) < 0)
		return text_cannot(err, "open", "/");
	if ((st = check_dir(fd, shown, owner, err)))
		goto fail;
	char *save = NULL;
	for (char *part = strtok_r(real, "/", &save); part; part = strtok_r(NULL, "/", &save)) {
		if (shown[1])
			strcat(shown, "/");
		strcat(shown, part);
		int next = openat(fd, part, O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
		if (next < 0) {
			st = text_cannot(err, "open", shown);
			goto fail;
		}
		close(fd);
		fd = next;
		if ((st = check_dir(fd, shown, owner, err)))
			goto fail;
	}
	*out = fd;
	return GRADCOMP_OK;
fail:
	close(fd);
	return st;
}

static gradcomp_status not_yours(const char *path, uid_t uid, gradcomp_error *err)
{
	char name[TEXT_NAME_MAX];
	return error_set(
		err, GRADCOMP_ERR_INSECURE,
		"%s belongs to uid %u instead of you (uid %u): nothing is read from it or written to it; the "
		"administrator can remove it, and a cache made by root (a line in tmpfiles.d) cannot be taken so",
		gradcomp_printable(path, name, sizeof name), (unsigned)uid, (unsigned)geteuid());
}

/* Opens parent/name, making it with `mode` when asked to and absent. The
 * process's umask does not count. */
static gradcomp_status open_or_make(int parent, const char *name, const char *path, bool make, mode_t mode, int *out,
                                    gradcomp_error *err)
{
	char text[TEXT_NAME_MAX];
	bool made;
	int fd;
	/* A user who may make names here may also remove one before it is opened. */
	for (int i = 0; i < 10; i++) {
		made = make && mkdirat(parent, name, 0700) == 0;
		if (make && !made && errno != EEXIST)
			return text_cannot(err, "make the directory", path);
		fd = openat(parent, name, OPEN_DIR);
		if (fd >= 0 || errno != ENOENT || !make)
			break;
	}
	if (fd < 0 && errno == ENOENT && !make)
		return error_set(err, GRADCOMP_ERR_NOTFOUND, "there is no %s yet",
		                 gradcomp_printable(path, text, sizeof text));
	if (fd < 0 && (errno == ELOOP || errno == ENOTDIR))
		return error_set(err, GRADCOMP_ERR_INSECURE,
		                 "%s is not a directory (symbolic links are not followed there): remove it, or set "
		                 "stage.cache_dir",
		                 gradcomp_printable(path, text, sizeof text));
	struct stat st;
	if (fd < 0 && errno == EACCES && fstatat(parent, name, &st, AT_SYMLINK_NOFOLLOW) == 0 && st.st_uid != 0 &&
	    st.st_uid != geteuid())
		return not_yours(path, st.st_uid, err);
	if (fd < 0)
		return text_cannot(err, "open", path);
	if (made && fchmod(fd, mode) < 0) {
		close(fd);
		return text_cannot(err, "set the mode of", path);
	}
	*out = fd;
	return GRADCOMP_OK;
}

/* A user's area: only he can read and write it. */
static gradcomp_status check_area(int fd, const char *path, gradcomp_error *err)
{
	char name[TEXT_NAME_MAX];
	struct stat st;
	if (fstat(fd, &st) < 0)
		return text_cannot(err, "look at", path);
	if (st.st_uid != geteuid())
		return not_yours(path, st.st_uid, err);
	if (st.st_mode & 077)
		return error_set(err, GRADCOMP_ERR_INSECURE,
		                 "%s has mode %04o, so others can get at it: nothing is read from it or written to "
		                 "it; remove it, or chmod 700 it if you trust what is there",
		                 gradcomp_printable(path, name, sizeof name), (unsigned)(st.st_mode & 07777));
	return GRADCOMP_OK;
}

/* The shared area: its owner's, or root's, and nobody else can write there. */
static gradcomp_status check_shared(int fd, const char *path, uid_t owner, gradcomp_error *err)
{
	char name[TEXT_NAME_MAX];
	struct stat st;
	if (fstat(fd, &st) < 0)
		return text_cannot(err, "look at", path);
	if ((st.st_uid != 0 && st.st_uid != owner) || st.st_mode & 022)
		return error_set(err, GRADCOMP_ERR_INSECURE,
		                 "%s belongs to uid %u and has mode %04o; it must belong to root or to "
		                 "stage.shared_user "
		                 "(uid %u) and be writable by nobody else: it is not used",
		                 gradcomp_printable(path, name, sizeof name), (unsigned)st.st_uid,
		                 (unsigned)(st.st_mode & 07777), (unsigned)owner);
	return GRADCOMP_OK;
}

/* Room for "-UID/KEY/data" and names below it. */
#define CACHE_MAX (PATH_MAX - 256)

/* CACHE: its path, the directory that holds it, and its name there. */
struct location {
	char whole[CACHE_MAX + 1], dir[CACHE_MAX + 1];
	const char *base;
};

static gradcomp_status locate(const char *cache_dir, struct location *p, gradcomp_error *err)
{
	char text[TEXT_NAME_MAX];
	size_t n = strlen(cache_dir);
	while (n > 1 && cache_dir[n - 1] == '/')
		n--;
	if (cache_dir[0] != '/' || n < 2 || n > CACHE_MAX)
		return error_set(err, GRADCOMP_ERR_INVALID,
		                 "stage.cache_dir is '%s'; it must be an absolute path below /",
		                 gradcomp_printable(cache_dir, text, sizeof text));
	snprintf(p->whole, sizeof p->whole, "%.*s", (int)n, cache_dir);
	memcpy(p->dir, p->whole, sizeof p->dir);
	char *slash = strrchr(p->dir, '/');
	slash[slash == p->dir] = 0;
	p->base = strrchr(p->whole, '/') + 1;
	return GRADCOMP_OK;
}

/* CACHE/NAME; CACHE itself is made by root only. */
static gradcomp_status open_below(int parent, const struct location *p, const char *name, uid_t owner, bool create,
                                  mode_t mode, int *out, char path[4096], gradcomp_error *err)
{
	int fd = -1;
	snprintf(path, PATH_MAX, "%s/%s", p->whole, name);
	gradcomp_status st = open_or_make(parent, p->base, p->whole, create && geteuid() == 0, 01777, &fd, err);
	if (st)
		return st;
	if (!(st = check_dir(fd, p->whole, owner, err)))
		st = open_or_make(fd, name, path, create, mode, out, err);
	close(fd);
	return st;
}

/* Returns true when `name` is a directory of this user's. */
static bool own_dir(int parent, const char *name)
{
	struct stat st;
	return fstatat(parent, name, &st, AT_SYMLINK_NOFOLLOW) == 0 && S_ISDIR(st.st_mode) && st.st_uid == geteuid();
}

/* Returns true when the user's area stands beside the cache, as CACHE-UID. Only root can make a cache that all
 * users may trust; without one, or where another user has taken its name, a user has an area of his own next to
 * where it would be. It stays in use when root makes the cache later: jobs may have its copies open. */
static bool is_beside(int parent, const struct location *p, const char *uid)
{
	char beside[NAME_MAX + 1], within[CACHE_MAX + 1];
	struct stat st;
	if (geteuid() == 0)
		return false;
	if (fstatat(parent, p->base, &st, AT_SYMLINK_NOFOLLOW) < 0)
		return errno == ENOENT;
	if (st.st_uid != 0 && st.st_uid != geteuid())
		return true;
	snprintf(beside, sizeof beside, "%.200s-%s", p->base, uid);
	snprintf(within, sizeof within, "%s/%s", p->base, uid);
	return own_dir(parent, beside) && !own_dir(parent, within);
}

gradcomp_status cache_user_area(const char *cache_dir, bool create, int *out, char path[4096], gradcomp_error *err)
{
	struct location p;
	char uid[16];
	int parent = -1, area = -1;
	gradcomp_status st = locate(cache_dir, &p, err);
	if (st || (st = open_parent(p.dir, geteuid(), &parent, err)))
		return st;
	snprintf(uid, sizeof uid, "%u", (unsigned)geteuid());
	if (is_beside(parent, &p, uid)) {
		snprintf(path, PATH_MAX, "%s-%s", p.whole, uid);
		st = open_or_make(parent, strrchr(path, '/') + 1, path, create, 0700, &area, err);
	} else {
		st = open_below(parent, &p, uid, geteuid(), create, 0700, &area, path, err);
	}
	if (!st)
		st = check_area(area, path, err);
	if (st && area >= 0)
		close(area);
	else
		*out = area;
	close(parent);
	return st;
}

gradcomp_status cache_shared_area(const char *cache_dir, uid_t owner, bool create, int *out, char path[4096],
                                  gradcomp_error *err)
{
	struct location p;
	int parent = -1, area = -1;
	gradcomp_status st = locate(cache_dir, &p, err);
	if (st || (st = open_parent(p.dir, owner, &parent, err)))
		return st;
	st = open_below(parent, &p, "shared", owner, create, 0755, &area, path, err);
	if (!st)
		st = check_shared(area, path, owner, err);
	if (st && area >= 0)
		close(area);
	else
		*out = area;
	close(parent);
	return st;
}
