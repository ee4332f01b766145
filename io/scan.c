/* Listing a source tree; what cannot be staged is refused here, by name. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "staging.h"

struct scan {
	stage_run *run;
	stage_manifest *m;
	stage_walk walk;
	char **todo; /* directories not listed yet; strings of the manifest */
	size_t ntodo, capacity;
};

static int64_t mtime_ns(const struct stat *st)
{
	return (int64_t)st->st_mtim.tv_sec * 1000000000 + st->st_mtim.tv_nsec;
}

static int push(struct scan *s, char *path)
{
	if (s->ntodo == s->capacity) {
		size_t more = s->capacity ? 2 * s->capacity : 64;
		char **p = reallocarray(s->todo, more, sizeof *p);
		if (!p)
			return -1;
		s->todo = p;
		s->capacity = more;
	}
	s->todo[s->ntodo++] = path;
	return 0;
}

static gradcomp_status refuse(gradcomp_error *err, const char *path, mode_t mode)
{
	char text[STAGE_NAME_MAX];
	const char *what = S_ISFIFO(mode)   ? "a FIFO"
	                   : S_ISSOCK(mode) ? "a socket"
	                   : S_ISBLK(mode)  ? "a block device"
	                   : S_ISCHR(mode)  ? "a character device"
	                                    : "of an unknown type";
	return error_set(err, GRADCOMP_ERR_UNSUPPORTED,
	                 "%s is %s; only files, directories and symbolic links inside the tree can be staged",
	                 gradcomp_printable(path, text, sizeof text), what);
}

static gradcomp_status add_symlink(struct scan *s, int fd, const char *name, char *path, gradcomp_error *err)
{
	char target[PATH_MAX];
	ssize_t n = readlinkat(fd, name, target, sizeof target);
	if (n < 0)
		return stage_fail(err, "read the symbolic link", path);
	if ((size_t)n == sizeof target)
		return error_set(err, GRADCOMP_ERR_UNSUPPORTED, "a symbolic link is longer than %d bytes",
		                 PATH_MAX);
	stage_entry *e = stage_manifest_add(s->m);
	if (!e || !(target[n] = 0, e->target = stage_manifest_join(s->m, "", target)))
		return stage_fail(err, "list", path);
	e->path = path;
	e->type = STAGE_SYMLINK;
	e->mode = 0777;
	return GRADCOMP_OK;
}

static gradcomp_status add(struct scan *s, int fd, const char *name, char *path, const struct stat *st,
                           gradcomp_error *err)
{
	if (S_ISLNK(st->st_mode))
		return add_symlink(s, fd, name, path, err);
	if (!S_ISREG(st->st_mode) && !S_ISDIR(st->st_mode))
		return refuse(err, path, st->st_mode);
	stage_entry *e = stage_manifest_add(s->m);
	if (!e)
		return stage_fail(err, "list", path);
	e->path = path;
	e->mtime_ns = mtime_ns(st);
	if (S_ISDIR(st->st_mode)) {
		e->type = STAGE_DIR;
		e->mode = (st->st_mode & 0777) | 0500;
		return push(s, path) < 0 ? stage_fail(err, "list", path) : GRADCOMP_OK;
	}
	e->type = STAGE_FILE;
	e->mode = (st->st_mode & 0777) | 0400;
	e->size = (uint64_t)st->st_size;
	e->stored = (uint64_t)st->st_blocks * 512;
	if (st->st_nlink > 1 && stage_manifest_inode(s->m, st->st_dev, st->st_ino, path) < 0)
		return stage_fail(err, "list", path);
	atomic_fetch_add(&s->run->files, 1);
	atomic_fetch_add(&s->run->bytes, e->size);
	return GRADCOMP_OK;
}

static gradcomp_status scan_dir(struct scan *s, const char *dir, gradcomp_error *err)
{
	int fd = stage_walk_to(&s->walk, dir, strlen(dir));
	int list = fd < 0 ? -1 : openat(fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	DIR *d = list < 0 ? NULL : fdopendir(list);
	if (!d) {
		gradcomp_status status = stage_fail(err, "list", *dir ? dir : s->m->source);
		if (list >= 0)
			close(list);
		return status;
	}
	gradcomp_status status = GRADCOMP_OK;
	struct dirent *de;
	while (!status && (errno = 0, de = readdir(d))) {
		struct stat st;
		if (!strcmp(de->d_name, ".") || !strcmp(de->d_name, ".."))
			continue;
		char *path = stage_manifest_join(s->m, dir, de->d_name);
		if (!path)
			status = stage_fail(err, "list", dir);
		else if (fstatat(list, de->d_name, &st, AT_SYMLINK_NOFOLLOW) < 0)
			status = stage_fail(err, "look at", path);
		else
			status = add(s, list, de->d_name, path, &st, err);
		if (!status)
			status = stage_run_tick(s->run, err);
	}
	if (!status && errno)
		status = stage_fail(err, "list", *dir ? dir : s->m->source);
	closedir(d);
	return status;
}

gradcomp_status stage_scan(stage_run *run, stage_manifest *m, int root, gradcomp_error *err)
{
	struct scan s = {.run = run, .m = m};
	char name[STAGE_NAME_MAX];
	gradcomp_status status;
	struct stat st;
	stage_walk_begin(&s.walk, root);
	stage_run_phase(run, GRADCOMP_STAGE_SCAN, 0, 0);
	char *top = stage_manifest_join(m, "", "");
	if (!top || fstat(root, &st) < 0) {
		status = stage_fail(err, "list", m->source);
		goto done;
	}
	status = add(&s, root, "", top, &st, err);
	while (!status && s.ntodo)
		status = scan_dir(&s, s.todo[--s.ntodo], err);
	if (!status)
		status = stage_manifest_finish(m, err);
	for (size_t i = 0; !status && i < m->n; i++)
		if (m->entries[i].type == STAGE_SYMLINK && !stage_symlink_inside(m, &m->entries[i]))
			status =
				error_set(err, GRADCOMP_ERR_UNSUPPORTED,
			                  "the symbolic link %s leads out of the tree; it would not work in a copy",
			                  gradcomp_printable(m->entries[i].path, name, sizeof name));
done:
	free(s.todo);
	stage_walk_end(&s.walk);
	return status;
}
