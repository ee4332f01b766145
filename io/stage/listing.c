/* Listing a source tree; what cannot be staged is refused here, by name. Threads take
 * directories from a list and add what they find in batches. */
#include <errno.h>
#include <fnmatch.h>
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

#define EXCLUDE_MAX 4096u

struct todo {
	size_t entry; /* place in the manifest, which moves */
	bool linked;  /* a symbolic link was followed on the way to it */
};

struct listing {
	stage_run *run;
	stage_manifest *m;
	const source *from;
	pthread_mutex_t lock; /* guards all below, and the manifest */
	pthread_cond_t more;
	struct todo *todo; /* directories not listed yet */
	size_t ntodo, capacity;
	unsigned nlisting; /* threads that may find more */
};

/* Holds what one thread has found in one directory. */
struct batch {
	struct listing *listing;
	source_reader *from;
	const atomic_bool *stop;
	const char *dir;
	struct todo todo;
	unsigned n;
	struct found {
		source_stat st;
		size_t name, target; /* in text; target 0: none */
	} found[BATCH];
	size_t used;
	char text[2 * PATH_MAX + BATCH * (NAME_MAX + 1)];
};

static int push(struct listing *s, size_t entry, bool linked)
{
	if (s->ntodo == s->capacity) {
		size_t more = s->capacity ? 2 * s->capacity : 64;
		struct todo *p = reallocarray(s->todo, more, sizeof *p);
		if (!p)
			return -1;
		s->todo = p;
		s->capacity = more;
	}
	s->todo[s->ntodo++] = (struct todo){entry, linked};
	return 0;
}

/* Nothing is copied, so nothing can be in the way of it. */
static bool only_linked(const struct listing *s)
{
	return s->run->options->mode == GRADCOMP_STAGE_LINK;
}

/* One line more of what was left out, as far as there is room. With the lock held. */
static int leave_out(struct listing *s, const char *why, const char *path)
{
	stage_manifest *m = s->m;
	char name[TEXT_NAME_MAX];
	if (!m->left_out && !(m->left_out = calloc(1, STAGE_LEFT_OUT_BYTES)))
		return -1;
	m->nleft_out++;
	gradcomp_printable(path, name, sizeof name);
	int n = snprintf(NULL, 0, "%s %s\n", why, name);
	if (m->left_out_bytes + (size_t)n >= STAGE_LEFT_OUT_BYTES)
		return 0;
	snprintf(m->left_out + m->left_out_bytes, (size_t)n + 1, "%s %s\n", why, name);
	m->left_out_bytes += (size_t)n;
	return 0;
}

static gradcomp_status leave_out_locked(struct listing *s, const char *why, const char *path, gradcomp_error *err)
{
	pthread_mutex_lock(&s->lock);
	int rc = leave_out(s, why, path);
	pthread_mutex_unlock(&s->lock);
	return rc < 0 ? text_cannot(err, "list", path) : GRADCOMP_OK;
}

/* Returns true when one of the globs means an entry; its name is the end of its path. */
static bool excluded(const struct listing *s, const char *path, const char *name, bool directory)
{
	char glob[EXCLUDE_MAX];
	const char *list = s->run->options->exclude;
	for (const char *p = list; p && *p;) {
		size_t n = strcspn(p, "\n"), bytes = n;
		const char *from = p;
		p += n + (p[n] == '\n');
		bool directories = bytes && from[bytes - 1] == '/';
		if (directories && (bytes--, !directory))
			continue;
		bool deep = memchr(from, '/', bytes);
		if (bytes && *from == '/')
			from++, bytes--;
		if (!bytes)
			continue;
		memcpy(glob, from, bytes);
		glob[bytes] = 0;
		if (!fnmatch(glob, deep ? path : name, deep ? FNM_PATHNAME : 0))
			return true;
	}
	return false;
}

static gradcomp_status refuse(gradcomp_error *err, const char *path, mode_t mode)
{
	char text[TEXT_NAME_MAX / 3], glob[TEXT_NAME_MAX / 3];
	const char *what = S_ISFIFO(mode)   ? "a FIFO"
	                   : S_ISSOCK(mode) ? "a socket"
	                   : S_ISBLK(mode)  ? "a block device"
	                   : S_ISCHR(mode)  ? "a character device"
	                                    : "of an unknown type";
	return error_set(
		err, GRADCOMP_ERR_UNSUPPORTED,
		"%s is %s; only files, directories and symbolic links inside the tree can be staged; exclude=%s "
		"leaves it out",
		gradcomp_printable(path, text, sizeof text), what, source_glob_of(path, glob, sizeof glob));
}

static gradcomp_status refuse_link(gradcomp_error *err, const char *path, const char *how)
{
	char text[TEXT_NAME_MAX / 3], glob[TEXT_NAME_MAX / 3];
	return error_set(err, GRADCOMP_ERR_UNSUPPORTED, "the symbolic link %s %s; exclude=%s leaves it out",
	                 gradcomp_printable(path, text, sizeof text), how, source_glob_of(path, glob, sizeof glob));
}

/* An absolute target in the tree as one that begins where the link is. False: it is none. Where it leads by other
 * links, and is there, they are followed first. */
static bool rewrite(const struct listing *s, const char *path, char target[PATH_MAX])
{
	const char *root = s->m->source;
	char real[PATH_MAX], out[PATH_MAX], *rest = NULL;
	size_t n = strlen(root), at = 0;
	n -= n == 1; /* "/" */
	if (!strncmp(target, root, n) && (target[n] == '/' || !target[n]))
		rest = target + n;
	else if (realpath(target, real) && !strncmp(real, root, n) && (real[n] == '/' || !real[n]))
		rest = real + n;
	if (!rest)
		return false;
	rest += strspn(rest, "/");
	for (const char *p = path; (p = strchr(p, '/')) && at + 4 < sizeof out; p++)
		at += (size_t)snprintf(out + at, sizeof out - at, "../");
	int more = snprintf(out + at, sizeof out - at, "%s", *rest || at ? rest : ".");
	if (more < 0 || at + (size_t)more >= sizeof out)
		return false;
	strcpy(target, out);
	return true;
}

/* Called with the lock held. */
static int add(struct listing *s, const char *dir, const char *name, const char *target, const source_stat *st,
               bool linked)
{
	char *path = manifest_join(s->m, dir, name);
	stage_entry *e = path ? manifest_add(s->m) : NULL;
	if (!e)
		return -1;
	e->path = path;
	if (target) {
		e->type = STAGE_SYMLINK;
		e->mode = 0777;
		return (e->target = manifest_join(s->m, "", target)) ? 0 : -1;
	}
	e->mtime_ns = st->mtime_ns;
	if (S_ISDIR(st->mode)) {
		e->type = STAGE_DIR;
		e->mode = (st->mode & 0777) | 0500;
		return push(s, s->m->n - 1, linked || st->linked);
	}
	e->type = STAGE_FILE;
	e->mode = (st->mode & 0777) | 0400;
	e->size = st->size;
	e->stored = st->stored;
	atomic_fetch_add(&s->run->files, 1);
	atomic_fetch_add(&s->run->bytes, e->size);
	return st->nlink > 1 ? manifest_inode(s->m, st->dev, st->ino, path) : 0;
}

static gradcomp_status flush(struct batch *b, gradcomp_error *err)
{
	struct listing *s = b->listing;
	int rc = 0;
	pthread_mutex_lock(&s->lock);
	for (unsigned i = 0; i < b->n && rc == 0; i++) {
		const struct found *f = &b->found[i];
		rc = add(s, b->dir, b->text + f->name, f->target ? b->text + f->target : NULL, &f->st, b->todo.linked);
	}
	if (s->ntodo)
		pthread_cond_broadcast(&s->more);
	pthread_mutex_unlock(&s->lock);
	b->n = 0;
	b->used = 0;
	return rc < 0 ? text_cannot(err, "list", b->dir) : GRADCOMP_OK;
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

static gradcomp_status find(void *ctx, const char *name, const source_stat *sb, gradcomp_error *err)
{
	struct batch *b = ctx;
	char path[2 * PATH_MAX], target[PATH_MAX];
	gradcomp_status st = check(b, name, sb, err);
	if (st)
		return st;
	if (atomic_load(b->stop))
		return error_set(err, GRADCOMP_ERR_STATE, "stopped");
	snprintf(path, sizeof path, "%s%s%s", b->dir, *b->dir ? "/" : "", name);
	if (excluded(b->listing, path, name, S_ISDIR(sb->mode)))
		return leave_out_locked(b->listing, "excluded", path, err);
	if (S_ISDIR(sb->mode) && sb->linked && b->todo.linked)
		return refuse_link(err, path,
		                   "leads to a directory, below another such link, so there may be no end of it");
	if (!S_ISREG(sb->mode) && !S_ISDIR(sb->mode)) {
		const gradcomp_stage_options *o = b->listing->run->options;
		if (only_linked(b->listing))
			return GRADCOMP_OK;
		if (!S_ISLNK(sb->mode))
			return refuse(err, path, sb->mode);
		if (o->flags & GRADCOMP_STAGE_FOLLOW)
			return refuse_link(err, path, "leads to nothing that can be reached");
		if ((st = source_readlink(b->from, path, target, err)))
			return st;
		if (!*target)
			return refuse_link(err, path, "is empty");
		if (*target == '/' && o->flags & GRADCOMP_STAGE_REWRITE && source_is_mounted(b->listing->from))
			rewrite(b->listing, path, target);
	}
	if ((b->n == BATCH || sizeof b->text - b->used < 2 * PATH_MAX) && (st = flush(b, err)))
		return st;
	/* Text begins with a name, so a target is never at 0. */
	struct found *f = &b->found[b->n++];
	*f = (struct found){.st = *sb, .name = keep(b, name)};
	if (S_ISLNK(sb->mode))
		f->target = keep(b, target);
	return GRADCOMP_OK;
}

/* The next directory, or NULL when there are none and nobody can find one. */
static const char *next(struct listing *s, const atomic_bool *stop, struct todo *todo)
{
	char *dir = NULL;
	pthread_mutex_lock(&s->lock);
	while (!s->ntodo && s->nlisting && !atomic_load(stop))
		thread_wait(&s->more, &s->lock, 1000);
	if (s->ntodo) {
		*todo = s->todo[--s->ntodo];
		dir = s->m->entries[todo->entry].path;
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

static bool skips_unreadable(const struct listing *s)
{
	return s->run->options->flags & GRADCOMP_STAGE_SKIP_UNREADABLE;
}

/* An entry that may not be read goes from the list: it has no type from then on. */
static gradcomp_status drop(struct listing *s, size_t entry, gradcomp_error *err)
{
	pthread_mutex_lock(&s->lock);
	stage_entry *e = &s->m->entries[entry];
	int rc = leave_out(s, "unreadable", e->path);
	e->type = 0;
	pthread_mutex_unlock(&s->lock);
	return rc < 0 ? text_cannot(err, "list", s->m->source) : GRADCOMP_OK;
}

/* Opens and reads the file, which tells better than its mode. */
static gradcomp_status try_file(void *ctx, stage_worker *w, size_t i, gradcomp_error *err)
{
	struct listing *s = ctx;
	const stage_entry *e = &s->m->entries[i];
	source_stat sb;
	uint64_t got;
	char byte;
	if (e->type != STAGE_FILE)
		return GRADCOMP_OK;
	gradcomp_status st = source_file(w->from, e->path, 0, &sb, err);
	if (!st && sb.size)
		st = source_read(w->from, &byte, 1, 0, &got, err);
	if (st == GRADCOMP_ERR_NOTFOUND)
		atomic_store(&s->run->changed, true);
	return st && source_denied(w->from) ? drop(s, i, err) : st;
}

static void sweep(stage_manifest *m)
{
	size_t n = 0;
	for (size_t i = 0; i < m->n; i++)
		if (m->entries[i].type)
			m->entries[n++] = m->entries[i];
	m->n = n;
}

/* Says what was left out: the first names, and how much it is. */
static void tell_left_out(const struct listing *s)
{
	char names[300] = "";
	const char *p = s->m->left_out;
	size_t n = 0;
	for (int i = 0; i < 3 && p && *p && n < sizeof names - 1; i++) {
		size_t why = strcspn(p, " "), line = strcspn(p, "\n");
		int name = (int)(line - why - 1) < 80 ? (int)(line - why - 1) : 80;
		n += (size_t)snprintf(names + n, sizeof names - n, "%s%.*s (%.*s)", i ? ", " : "", name, p + why + 1,
		                      (int)why, p);
		p += line + 1;
	}
	stage_run_notice(s->run, "%llu %s left out: %s%s", (unsigned long long)s->m->nleft_out,
	                 s->m->nleft_out == 1 ? "entry was" : "entries were", names, p && *p ? " ..." : "");
}

/* Lists in one thread, whatever its number. */
static gradcomp_status list(void *ctx, stage_worker *w, size_t i, gradcomp_error *err)
{
	struct listing *s = ctx;
	gradcomp_status st = GRADCOMP_OK;
	struct batch *b = malloc(sizeof *b);
	(void)i;
	if (!b)
		return text_cannot(err, "list", s->m->source);
	*b = (struct batch){.listing = s, .from = w->from, .stop = w->stop};
	while (!st && (b->dir = next(s, w->stop, &b->todo))) {
		st = source_list(w->from, b->dir, find, b, err);
		if (st && *b->dir && source_denied(w->from) && skips_unreadable(s)) {
			b->n = 0;
			b->used = 0;
			st = drop(s, b->todo.entry, err);
		}
		if (!st)
			st = flush(b, err);
		/* A directory or link that went while it was listed: everything starts again. */
		if (st == GRADCOMP_ERR_NOTFOUND)
			atomic_store(&s->run->changed, true);
		finished(s);
	}
	free(b);
	return st;
}

static gradcomp_status add_root(struct listing *s, source *from, gradcomp_error *err)
{
	source_reader *r;
	source_stat sb;
	gradcomp_status st = source_reader_open(from, stage_run_wait(s->run), &r, err);
	if (st)
		return st;
	st = source_lookup(r, "", &sb, err);
	source_reader_close(r);
	if (!st && add(s, "", "", NULL, &sb, false) < 0)
		st = text_cannot(err, "list", s->m->source);
	return st;
}

gradcomp_status stage_list(stage_run *run, stage_manifest *m, source *from, gradcomp_error *err)
{
	struct listing s = {.run = run, .m = m, .from = from};
	pthread_mutex_init(&s.lock, NULL);
	thread_condition(&s.more);
	stage_run_phase(run, GRADCOMP_STAGE_LIST, 0, 0);
	gradcomp_status st = add_root(&s, from, err);
	if (!st)
		st = stage_run_each(run, run->workers, from, -1, list, &s, err);
	if (!st && skips_unreadable(&s) && !only_linked(&s))
		st = stage_run_each(run, m->n, from, -1, try_file, &s, err);
	sweep(m);
	if (!st)
		st = manifest_finish(m, err);
	const stage_entry *outside = st || only_linked(&s) ? NULL : symlink_outside(m);
	if (outside)
		st = refuse_link(
			err, outside->path,
			*outside->target == '/'
				? "leads out of the tree, being absolute; it would not work in a copy; links=rewrite makes "
				  "one that leads into the tree relative, links=follow copies what it leads to"
				: "leads out of the tree; it would not work in a copy; links=follow copies what it leads to");
	if (!st && m->nleft_out)
		tell_left_out(&s);
	free(s.todo);
	pthread_cond_destroy(&s.more);
	pthread_mutex_destroy(&s.lock);
	return st;
}

gradcomp_status stage_open(staging *s, gradcomp_error *err)
{
	if (s->from)
		return GRADCOMP_OK;
	gradcomp_status st =
		source_open(s->run->config, s->run->options->source, stage_run_wait(s->run), &s->from, err);
	s->run->reads = s->from;
	if (!st && s->run->options->flags & GRADCOMP_STAGE_FOLLOW)
		st = source_follow(s->from, err);
	return st;
}
