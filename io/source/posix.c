/* Sources on mounted filesystems. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/dirwalk.h"
#include "base/fileio.h"
#include "base/text.h"
#include "io/source/source_ops.h"

struct local {
	source base;
	int root;
};

struct posix_reader {
	source_reader base;
	dirwalk walk;
	int file; /* -1: none is open */
};

static void take_stat(source_stat *out, const struct stat *st)
{
	*out = (source_stat){
		.mode = st->st_mode,
		.nlink = (uint32_t)st->st_nlink,
		.dev = st->st_dev,
		.ino = st->st_ino,
		.size = (uint64_t)st->st_size,
		.stored = (uint64_t)st->st_blocks * 512,
		.mtime_ns = source_time_ns(st->st_mtim.tv_sec, st->st_mtim.tv_nsec),
	};
}

static struct posix_reader *posix_reader(source_reader *r)
{
	return (struct posix_reader *)r;
}

/* errno as a status: NOTFOUND when it is not there or something else is. */
static gradcomp_status failed(source_reader *r, const char *what, const char *path, gradcomp_error *err)
{
	bool missing = errno == ENOENT || errno == ENOTDIR || errno == ELOOP;
	r->denied = errno == EACCES || errno == EPERM;
	gradcomp_status st = text_cannot(err, what, *path ? path : r->from->name);
	return missing ? GRADCOMP_ERR_NOTFOUND : st;
}

/* The directory that holds `path`, or where links are followed the root, below which the kernel finds it. */
static int parent(struct posix_reader *r, const char *path, const char **name)
{
	if (!r->base.from->follow)
		return dirwalk_parent(&r->walk, path, name);
	*name = path;
	return ((struct local *)r->base.from)->root;
}

static void posix_close(source *s)
{
	close(((struct local *)s)->root);
	free(s);
}

static gradcomp_status posix_reader_open(source *s, source_wait wait, source_reader **out, gradcomp_error *err)
{
	struct posix_reader *r = calloc(1, sizeof *r);
	if (!r)
		return error_set(err, GRADCOMP_ERR_NOMEM, "out of memory");
	*r = (struct posix_reader){.base = {.from = s, .wait = wait}, .file = -1};
	dirwalk_begin(&r->walk, ((struct local *)s)->root);
	*out = &r->base;
	return GRADCOMP_OK;
}

static void posix_file_close(struct posix_reader *r)
{
	if (r->file >= 0)
		close(r->file);
	r->file = -1;
}

static void posix_reader_close(source_reader *base)
{
	struct posix_reader *r = posix_reader(base);
	posix_file_close(r);
	dirwalk_end(&r->walk);
	free(r);
}

static gradcomp_status posix_list(source_reader *base, const char *dir, source_each *each, void *ctx,
                                  gradcomp_error *err)
{
	struct posix_reader *r = posix_reader(base);
	int fd = base->from->follow ? ((struct local *)base->from)->root : dirwalk_to(&r->walk, dir, strlen(dir));
	int list = fd < 0 ? -1 : openat(fd, base->from->follow && *dir ? dir : ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	DIR *d = list < 0 ? NULL : fdopendir(list);
	if (!d) {
		gradcomp_status st = failed(base, "list", dir, err);
		if (list >= 0)
			close(list);
		return st;
	}
	gradcomp_status st = GRADCOMP_OK;
	struct dirent *de;
	while (!st && (errno = 0, de = readdir(d))) {
		source_stat out;
		struct stat sb;
		if (!strcmp(de->d_name, ".") || !strcmp(de->d_name, ".."))
			continue;
		if (fstatat(list, de->d_name, &sb, AT_SYMLINK_NOFOLLOW) < 0) {
			if (errno == ENOENT)
				continue; /* it has gone since */
			char path[2 * PATH_MAX];
			snprintf(path, sizeof path, "%s%s%s", dir, *dir ? "/" : "", de->d_name);
			st = text_cannot(err, "look at", path);
			break;
		}
		bool linked = base->from->follow && S_ISLNK(sb.st_mode) && fstatat(list, de->d_name, &sb, 0) == 0;
		take_stat(&out, &sb);
		out.linked = linked;
		st = each(ctx, de->d_name, &out, err);
		errno = 0;
	}
	if (!st && errno)
		st = failed(base, "list", dir, err);
	closedir(d);
	return st;
}

static gradcomp_status posix_lookup(source_reader *base, const char *path, source_stat *out, gradcomp_error *err)
{
	struct posix_reader *r = posix_reader(base);
	const char *name;
	struct stat st;
	int dir = parent(r, path, &name);
	if (dir >= 0 &&
	    (*path ? fstatat(dir, name, &st, base->from->follow ? 0 : AT_SYMLINK_NOFOLLOW) : fstat(dir, &st)) == 0) {
		take_stat(out, &st);
		return GRADCOMP_OK;
	}
	return failed(base, "look at", path, err);
}

static gradcomp_status posix_readlink(source_reader *base, const char *path, char target[4096], gradcomp_error *err)
{
	struct posix_reader *r = posix_reader(base);
	const char *name;
	int dir = parent(r, path, &name);
	ssize_t n = dir < 0 ? -1 : readlinkat(dir, name, target, 4096);
	if (n < 0)
		return failed(base, "read the symbolic link", path, err);
	if (n == 4096)
		return error_set(err, GRADCOMP_ERR_UNSUPPORTED, "a symbolic link is longer than %d bytes", 4095);
	target[n] = 0;
	return GRADCOMP_OK;
}

static gradcomp_status posix_file(source_reader *base, const char *path, uint64_t ahead, source_stat *out,
                                  gradcomp_error *err)
{
	(void)ahead; /* the kernel reads ahead */
	struct posix_reader *r = posix_reader(base);
	char name[TEXT_NAME_MAX];
	const char *last;
	struct stat st;
	posix_file_close(r);
	int dir = parent(r, path, &last);
	/* Non-blocking, in case a FIFO has replaced the file. */
	if (dir >= 0)
		r->file = openat(dir, last,
		                 O_RDONLY | (base->from->follow ? 0 : O_NOFOLLOW) | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
	if (r->file < 0 && errno != ENOENT && errno != ELOOP && errno != ENOTDIR && errno != ENXIO)
		return failed(base, "read", path, err);
	if (r->file >= 0 && fstat(r->file, &st) < 0)
		return text_cannot(err, "look at", path);
	if (r->file < 0 || !S_ISREG(st.st_mode))
		return error_set(err, GRADCOMP_ERR_NOTFOUND, "there is no file %s any more",
		                 gradcomp_printable(path, name, sizeof name));
	posix_fadvise(r->file, 0, 0, POSIX_FADV_SEQUENTIAL);
	take_stat(out, &st);
	return GRADCOMP_OK;
}

static gradcomp_status posix_read(source_reader *base, void *buf, uint64_t n, uint64_t at, uint64_t *got,
                                  gradcomp_error *err)
{
	struct posix_reader *r = posix_reader(base);
	int64_t have = fileio_read(r->file, buf, n, at);
	*got = have < 0 ? 0 : (uint64_t)have;
	return have < 0 ? failed(base, "read", base->path, err) : GRADCOMP_OK;
}

static void posix_run(source_reader *base, uint64_t at, uint64_t size, uint64_t *data, uint64_t *hole)
{
	int fd = posix_reader(base)->file;
	off_t begin = lseek(fd, (off_t)at, SEEK_DATA);
	if (begin < 0)
		begin = errno == ENXIO ? (off_t)size : (off_t)at;
	*data = (uint64_t)begin < size ? (uint64_t)begin : size;
	off_t end = *data < size ? lseek(fd, begin, SEEK_HOLE) : -1;
	*hole = end > begin && (uint64_t)end < size ? (uint64_t)end : size;
}

static gradcomp_status posix_again(source_reader *base, source_stat *out, gradcomp_error *err)
{
	struct stat st;
	if (fstat(posix_reader(base)->file, &st) < 0)
		return text_cannot(err, "look at", base->path);
	take_stat(out, &st);
	return GRADCOMP_OK;
}

static const source_ops local_ops = {
	.close = posix_close,
	.reader_open = posix_reader_open,
	.reader_close = posix_reader_close,
	.list = posix_list,
	.lookup = posix_lookup,
	.readlink = posix_readlink,
	.file = posix_file,
	.read = posix_read,
	.run = posix_run,
	.again = posix_again,
};

/* Opens `dir`, or for a file the directory that holds it. */
static gradcomp_status open_root(struct local *l, gradcomp_error *err)
{
	const int flags = O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC;
	char name[TEXT_NAME_MAX], *dir = l->base.name;
	struct stat sb;
	l->root = open(dir, O_RDONLY | flags);
	if (l->root >= 0 || errno != ENOTDIR)
		return l->root >= 0 ? GRADCOMP_OK : text_cannot(err, "read", dir);
	if (lstat(dir, &sb) < 0)
		return text_cannot(err, "look at", dir);
	if (!S_ISREG(sb.st_mode))
		return error_set(err, GRADCOMP_ERR_INVALID,
		                 "%s is neither a directory nor a file; only these can be staged",
		                 gradcomp_printable(dir, name, sizeof name));
	char *slash = strrchr(dir, '/');
	if (!(l->base.only = strdup(slash + 1)))
		return error_set(err, GRADCOMP_ERR_NOMEM, "out of memory");
	*slash = 0;
	l->root = open(*dir ? dir : "/", O_PATH | flags);
	gradcomp_status st = l->root < 0 ? text_cannot(err, "read", *dir ? dir : "/") : GRADCOMP_OK;
	*slash = '/';
	return st;
}

gradcomp_status source_posix_open(const char *path, source **out, gradcomp_error *err)
{
	char name[TEXT_NAME_MAX];
	struct local *l = calloc(1, sizeof *l);
	if (!l)
		return error_set(err, GRADCOMP_ERR_NOMEM, "out of memory");
	*l = (struct local){.base = {.ops = &local_ops, .mounted = true, .can_follow = true}, .root = -1};
	gradcomp_status st;
	if ((l->base.name = realpath(path, NULL)))
		st = open_root(l, err);
	else if (errno == ENOENT || errno == ENOTDIR)
		st = error_set(err, GRADCOMP_ERR_NOTFOUND, "there is no directory or file %s to stage",
		               gradcomp_printable(path, name, sizeof name));
	else
		st = text_cannot(err, "find", path);
	if (!st) {
		*out = &l->base;
		return GRADCOMP_OK;
	}
	free(l->base.name);
	free(l->base.only);
	free(l);
	return st;
}
