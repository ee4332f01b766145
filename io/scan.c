/* Listing a source tree; what cannot be staged is refused here, by name. */
#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "manifest.h"

struct scan {
	stage_run *run;
	stage_manifest *m;
	source_reader *from;
	const char *dir; /* being listed */
	char **todo;     /* directories not listed yet; strings of the manifest */
	size_t ntodo, capacity;
};

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

static gradcomp_status add_symlink(struct scan *s, char *path, gradcomp_error *err)
{
	char target[PATH_MAX];
	char name[STAGE_NAME_MAX];
	gradcomp_status status = source_readlink(s->from, path, target, err);
	if (status)
		return status;
	if (!*target)
		return error_set(err, GRADCOMP_ERR_UNSUPPORTED, "the symbolic link %s says nothing",
		                 gradcomp_printable(path, name, sizeof name));
	stage_entry *e = stage_manifest_add(s->m);
	if (!e || !(e->target = stage_manifest_join(s->m, "", target)))
		return stage_fail(err, "list", path);
	e->path = path;
	e->type = STAGE_SYMLINK;
	e->mode = 0777;
	return GRADCOMP_OK;
}

static gradcomp_status add(struct scan *s, char *path, const source_stat *st, gradcomp_error *err)
{
	if (S_ISLNK(st->mode))
		return add_symlink(s, path, err);
	if (!S_ISREG(st->mode) && !S_ISDIR(st->mode))
		return refuse(err, path, st->mode);
	stage_entry *e = stage_manifest_add(s->m);
	if (!e)
		return stage_fail(err, "list", path);
	e->path = path;
	e->mtime_ns = st->mtime_ns;
	if (S_ISDIR(st->mode)) {
		e->type = STAGE_DIR;
		e->mode = (st->mode & 0777) | 0500;
		return push(s, path) < 0 ? stage_fail(err, "list", path) : GRADCOMP_OK;
	}
	e->type = STAGE_FILE;
	e->mode = (st->mode & 0777) | 0400;
	e->size = st->size;
	e->stored = st->stored;
	if (st->nlink > 1 && stage_manifest_inode(s->m, st->dev, st->ino, path) < 0)
		return stage_fail(err, "list", path);
	atomic_fetch_add(&s->run->files, 1);
	atomic_fetch_add(&s->run->bytes, e->size);
	return GRADCOMP_OK;
}

static gradcomp_status impossible(const struct scan *s, const char *name, const char *how, gradcomp_error *err)
{
	char shown[STAGE_NAME_MAX], in[STAGE_NAME_MAX];
	return error_set(err, GRADCOMP_ERR_UNSUPPORTED, "'%s' in %s %s", gradcomp_printable(name, shown, sizeof shown),
	                 gradcomp_printable(*s->dir ? s->dir : s->m->source, in, sizeof in), how);
}

static gradcomp_status add_name(void *ctx, const char *name, const source_stat *st, gradcomp_error *err)
{
	struct scan *s = ctx;
	size_t n = strlen(name);
	/* A server may say anything: a name that is none would be written outside of the copy. */
	if (!stage_name_ok(name, n))
		return impossible(s, name, "is listed there, but no file can have such a name", err);
	if (strlen(s->dir) + 1 + n >= PATH_MAX)
		return impossible(s, name, "has a path of more than 4095 bytes", err);
	if (S_ISREG(st->mode) && st->size > INT64_MAX)
		return impossible(s, name, "is listed with more bytes than a file can have", err);
	char *path = stage_manifest_join(s->m, s->dir, name);
	gradcomp_status status = path ? add(s, path, st, err) : stage_fail(err, "list", s->dir);
	return status ? status : stage_run_tick(s->run, err);
}

gradcomp_status stage_scan(stage_run *run, stage_manifest *m, source *from, gradcomp_error *err)
{
	struct scan s = {.run = run, .m = m};
	char name[STAGE_NAME_MAX];
	source_stat st;
	gradcomp_status status = source_reader_open(from, stage_run_wait(run), &s.from, err);
	if (status)
		return status;
	stage_run_phase(run, GRADCOMP_STAGE_SCAN, 0, 0);
	char *top = stage_manifest_join(m, "", "");
	if (!top) {
		status = stage_fail(err, "list", m->source);
		goto done;
	}
	if (!(status = source_lookup(s.from, "", &st, err)))
		status = add(&s, top, &st, err);
	while (!status && s.ntodo) {
		s.dir = s.todo[--s.ntodo];
		status = source_list(s.from, s.dir, add_name, &s, err);
	}
	if (!status)
		status = stage_manifest_finish(m, err);
	const stage_entry *outside = status ? NULL : stage_symlink_outside(m);
	if (outside)
		status = error_set(err, GRADCOMP_ERR_UNSUPPORTED,
		                   "the symbolic link %s leads out of the tree; it would not work in a copy",
		                   gradcomp_printable(outside->path, name, sizeof name));
done:
	free(s.todo);
	source_reader_close(s.from);
	return status;
}
