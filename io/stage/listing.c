/* Listing a source tree; what cannot be staged is refused here, by name. Threads take
 * directories from a list and add what they find in batches. */
#include <errno.h>
#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/text.h"
#include "io/stage/stage_internal.h"
#include "base/thread.h"

#define BATCH 256

struct listing {
	stage_run *run;
	stage_manifest *m;
	pthread_mutex_t lock; /* of all below, and of the manifest */
	pthread_cond_t more;
	char **todo; /* directories not listed yet; strings of the manifest */
	size_t ntodo, capacity;
	unsigned nlisting; /* threads that may find more */
};

/* What one thread has found in one directory. */
struct batch {
	struct listing *listing;
	source_reader *from;
	const atomic_bool *stop;
	const char *dir;
	unsigned n;
	struct found {
		source_stat st;
		size_t name, target; /* in text; target 0: none */
	} found[BATCH];
	size_t used;
	char text[2 * PATH_MAX + BATCH * (NAME_MAX + 1)];
};

static int push(struct listing *s, char *path)
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
	char text[TEXT_NAME_MAX];
	const char *what = S_ISFIFO(mode)   ? "a FIFO"
	                   : S_ISSOCK(mode) ? "a socket"
	                   : S_ISBLK(mode)  ? "a block device"
	                   : S_ISCHR(mode)  ? "a character device"
	                                    : "of an unknown type";
	return error_set(err, GRADCOMP_ERR_UNSUPPORTED,
	                 "%s is %s; only files, directories and symbolic links inside the tree can be staged",
	                 gradcomp_printable(path, text, sizeof text), what);
}

/* With the lock held. */
static int add(struct listing *s, const char *dir, const char *name, const char *target, const source_stat *st)
{
	char *path = stage_manifest_join(s->m, dir, name);
	stage_entry *e = path ? stage_manifest_add(s->m) : NULL;
	if (!e)
		return -1;
	e->path = path;
	if (target) {
		e->type = STAGE_SYMLINK;
		e->mode = 0777;
		return (e->target = stage_manifest_join(s->m, "", target)) ? 0 : -1;
	}
	e->mtime_ns = st->mtime_ns;
	if (S_ISDIR(st->mode)) {
		e->type = STAGE_DIR;
		e->mode = (st->mode & 0777) | 0500;
		return push(s, path);
	}
	e->type = STAGE_FILE;
	e->mode = (st->mode & 0777) | 0400;
	e->size = st->size;
	e->stored = st->stored;
	atomic_fetch_add(&s->run->files, 1);
	atomic_fetch_add(&s->run->bytes, e->size);
	return st->nlink > 1 ? stage_manifest_inode(s->m, st->dev, st->ino, path) : 0;
}

static gradcomp_status flush(struct batch *b, gradcomp_error *err)
{
	struct listing *s = b->listing;
	int rc = 0;
	pthread_mutex_lock(&s->lock);
	for (unsigned i = 0; i < b->n && rc == 0; i++) {
		const struct found *f = &b->found[i];
		rc = add(s, b->dir, b->text + f->name, f->target ? b->text + f->target : NULL, &f->st);
	}
	if (s->ntodo)
		pthread_cond_broadcast(&s->more);
	pthread_mutex_unlock(&s->lock);
	b->n = 0;
	b->used = 0;
	return rc < 0 ? error_cannot(err, "list", b->dir) : GRADCOMP_OK;
}

/* Keeps text in the batch; there is room. */
static size_t keep(struct batch *b, const char *text)
{
	size_t at = b->used, n = strlen(text) + 1;
	memcpy(b->text + at, text, n);
	b->used += n;
	return at;
}

static gradcomp_status impossible(const struct batch *b, const char *name, const char *how, gradcomp_error *err)
{
	char shown[TEXT_NAME_MAX], in[TEXT_NAME_MAX];
	return error_set(err, GRADCOMP_ERR_UNSUPPORTED, "'%s' in %s %s", gradcomp_printable(name, shown, sizeof shown),
	                 gradcomp_printable(*b->dir ? b->dir : b->listing->m->source, in, sizeof in), how);
}

/* A server may say anything: a name that is none would be written outside of the copy. */
static gradcomp_status check(const struct batch *b, const char *name, const source_stat *st, gradcomp_error *err)
{
	size_t n = strlen(name);
	if (!text_is_file_name(name, n))
		return impossible(b, name, "is listed there, but no file can have such a name", err);
	if (strlen(b->dir) + 1 + n >= PATH_MAX)
		return impossible(b, name, "has a path of more than 4095 bytes", err);
	if (S_ISREG(st->mode) && st->size > INT64_MAX)
		return impossible(b, name, "is listed with more bytes than a file can have", err);
	return GRADCOMP_OK;
}

static gradcomp_status find(void *ctx, const char *name, const source_stat *st, gradcomp_error *err)
{
	struct batch *b = ctx;
	char path[PATH_MAX], text[TEXT_NAME_MAX], target[PATH_MAX];
	gradcomp_status status = check(b, name, st, err);
	if (status)
		return status;
	if (atomic_load(b->stop))
		return error_set(err, GRADCOMP_ERR_STATE, "stopped");
	if (!S_ISREG(st->mode) && !S_ISDIR(st->mode)) {
		snprintf(path, sizeof path, "%s%s%s", b->dir, *b->dir ? "/" : "", name);
		if (!S_ISLNK(st->mode))
			return refuse(err, path, st->mode);
		if ((status = source_readlink(b->from, path, target, err)))
			return status;
		if (!*target)
			return error_set(err, GRADCOMP_ERR_UNSUPPORTED, "the symbolic link %s is empty",
			                 gradcomp_printable(path, text, sizeof text));
	}
	if ((b->n == BATCH || sizeof b->text - b->used < 2 * PATH_MAX) && (status = flush(b, err)))
		return status;
	/* Text begins with a name, so a target is never at 0. */
	struct found *f = &b->found[b->n++];
	*f = (struct found){.st = *st, .name = keep(b, name)};
	if (S_ISLNK(st->mode))
		f->target = keep(b, target);
	return GRADCOMP_OK;
}

/* The next directory, or NULL when there are none and nobody can find one. */
static char *next(struct listing *s, const atomic_bool *stop)
{
	char *dir = NULL;
	pthread_mutex_lock(&s->lock);
	while (!s->ntodo && s->nlisting && !atomic_load(stop))
		thread_wait(&s->more, &s->lock, 1000);
	if (s->ntodo) {
		dir = s->todo[--s->ntodo];
		s->nlisting++;
	}
	pthread_mutex_unlock(&s->lock);
	return dir;
}

static void finished(struct listing *s)
{
	pthread_mutex_lock(&s->lock);
	if (!--s->nlisting && !s->ntodo)
		pthread_cond_broadcast(&s->more);
	pthread_mutex_unlock(&s->lock);
}

/* One thread, whatever its number. */
static gradcomp_status list(void *ctx, stage_worker *w, size_t i, gradcomp_error *err)
{
	struct listing *s = ctx;
	gradcomp_status status = GRADCOMP_OK;
	struct batch *b = malloc(sizeof *b);
	(void)i;
	if (!b)
		return error_cannot(err, "list", s->m->source);
	*b = (struct batch){.listing = s, .from = w->from, .stop = w->stop};
	while (!status && (b->dir = next(s, w->stop))) {
		status = source_list(w->from, b->dir, find, b, err);
		if (!status)
			status = flush(b, err);
		/* A directory or link that went while it was listed: everything starts again. */
		if (status == GRADCOMP_ERR_NOTFOUND)
			atomic_store(&s->run->changed, true);
		finished(s);
	}
	free(b);
	return status;
}

static gradcomp_status add_root(struct listing *s, source *from, gradcomp_error *err)
{
	source_reader *r;
	source_stat st;
	gradcomp_status status = source_reader_open(from, stage_run_wait(s->run), &r, err);
	if (status)
		return status;
	status = source_lookup(r, "", &st, err);
	source_reader_close(r);
	if (!status && add(s, "", "", NULL, &st) < 0)
		status = error_cannot(err, "list", s->m->source);
	return status;
}

gradcomp_status stage_list(stage_run *run, stage_manifest *m, source *from, gradcomp_error *err)
{
	struct listing s = {.run = run, .m = m};
	char name[TEXT_NAME_MAX];
	pthread_mutex_init(&s.lock, NULL);
	thread_condition(&s.more);
	stage_run_phase(run, GRADCOMP_STAGE_LIST, 0, 0);
	gradcomp_status status = add_root(&s, from, err);
	if (!status)
		status = stage_run_each(run, run->workers, from, -1, list, &s, err);
	if (!status)
		status = stage_manifest_finish(m, err);
	const stage_entry *outside = status ? NULL : stage_symlink_outside(m);
	if (outside)
		status = error_set(err, GRADCOMP_ERR_UNSUPPORTED,
		                   "the symbolic link %s leads out of the tree; it would not work in a copy",
		                   gradcomp_printable(outside->path, name, sizeof name));
	free(s.todo);
	pthread_cond_destroy(&s.more);
	pthread_mutex_destroy(&s.lock);
	return status;
}
