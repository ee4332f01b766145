/* Reading copies again: every file against the checksum in the manifest. */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/text.h"
#include "io/cache/manage_internal.h"
#include "config/config.h"
#include "io/manifest/manifest.h"

#define OPEN_DIR (O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC)

struct verify {
	const cache_area *area;
	const char *key;
	stage_run run;
	stage_manifest m;
	unsigned char *wrong; /* an entry each: enum file_state */
	void (*damaged)(void *ctx, const char *key, const char *file, const char *what);
	void *ctx;
	uint64_t total;
};

enum file_state { RIGHT, MISSING, WRONG_TYPE, WRONG_CONTENT, UNREADABLE };

static const char *const state_text[] = {
	[MISSING] = "is missing",
	[WRONG_TYPE] = "is of another type",
	[WRONG_CONTENT] = "does not have its size and checksum",
	[UNREADABLE] = "cannot be read",
};

static mode_t type_of(const stage_entry *e)
{
	return e->type == STAGE_DIR ? S_IFDIR : e->type == STAGE_SYMLINK ? S_IFLNK : S_IFREG;
}

/* A symbolic link must have the target of the manifest. */
static bool leads_there(int dir, const char *base, const stage_entry *e)
{
	char target[4096];
	ssize_t n = readlinkat(dir, base, target, sizeof target);
	return n >= 0 && (size_t)n == strlen(e->target) && !memcmp(target, e->target, (size_t)n);
}

static gradcomp_status check(void *ctx, stage_worker *w, size_t i, gradcomp_error *err)
{
	struct verify *v = ctx;
	const stage_entry *e = &v->m.entries[i];
	enum file_state state = RIGHT;
	const char *base;
	struct stat st;
	int dir = dirwalk_parent(&w->to, e->path, &base);
	if (dir < 0 || (*e->path ? fstatat(dir, base, &st, AT_SYMLINK_NOFOLLOW) : fstat(dir, &st)) < 0)
		state = errno == ENOENT || errno == ENOTDIR || errno == ELOOP ? MISSING : UNREADABLE;
	else if ((st.st_mode & S_IFMT) != type_of(e))
		state = WRONG_TYPE;
	else if (e->type == STAGE_SYMLINK && !leads_there(dir, base, e))
		state = WRONG_CONTENT;
	else if (e->type == STAGE_FILE) {
		int right = cache_check_file(&v->run, w, e);
		if (right < 0 && errno == ECANCELED)
			return error_set(err, GRADCOMP_ERR_STATE, "stopped before the end");
		state = right > 0 ? RIGHT : right < 0 ? UNREADABLE : WRONG_CONTENT;
	}
	v->wrong[i] = (unsigned char)state;
	return GRADCOMP_OK;
}

static void report(struct verify *v, const char *file, const char *what)
{
	char name[TEXT_NAME_MAX];
	v->total++;
	if (v->damaged)
		v->damaged(v->ctx, v->key, gradcomp_printable(file, name, sizeof name), what);
}

/* Progress is reported to nobody: the callback only says whether to go on. */
static int on_progress(void *ctx, const gradcomp_stage_progress *p)
{
	const cache_area *a = ctx;
	(void)p;
	return a->options.stop && a->options.stop(a->options.ctx);
}

static gradcomp_status verify_data(struct verify *v, int dir, gradcomp_error *err)
{
	int data = openat(dir, "data", OPEN_DIR);
	gradcomp_status st = GRADCOMP_OK;
	if (data < 0) {
		report(v, "data", state_text[MISSING]);
		return GRADCOMP_OK;
	}
	if (!(v->wrong = calloc(v->m.n ? v->m.n : 1, 1)))
		st = error_set(err, GRADCOMP_ERR_NOMEM, "no memory to verify %zu files", v->m.n);
	if (!st) {
		stage_run_phase(&v->run, GRADCOMP_STAGE_CHECK, v->m.files, v->m.bytes);
		st = stage_run_each(&v->run, v->m.n, NULL, data, check, v, err);
	}
	for (size_t i = 0; !st && i < v->m.n; i++)
		if (v->wrong[i])
			report(v, *v->m.entries[i].path ? v->m.entries[i].path : ".", state_text[v->wrong[i]]);
	free(v->wrong);
	v->wrong = NULL;
	close(data);
	return st;
}

static gradcomp_status verify_one(struct verify *v, gradcomp_error *err)
{
	const char *why = NULL;
	gradcomp_status st = GRADCOMP_OK;
	int dir = openat(v->area->fd, v->key, OPEN_DIR);
	if (dir < 0)
		return errno == ENOENT ? cache_no_copy(v->area, v->key, err) : text_cannot(err, "open", v->key);
	if (!manifest_load(&v->m, dir, "manifest", &why))
		report(v, "manifest", why ? why : "there is no memory for it");
	else if (strcmp(v->m.key, v->key))
		report(v, "manifest", "it is that of another copy");
	else
		st = verify_data(v, dir, err);
	manifest_clear(&v->m);
	close(dir);
	return st;
}

static gradcomp_status verify_all(struct verify *v, gradcomp_error *err)
{
	cache_entries entries;
	gradcomp_status st = cache_entries_read(v->area->fd, &entries, err);
	if (st)
		return st;
	for (size_t i = 0; !st && i < entries.n; i++) {
		if (entries.entry[i].kind != CACHE_PUBLISHED)
			continue;
		v->key = entries.entry[i].key;
		st = verify_one(v, err);
		if (st == GRADCOMP_ERR_NOTFOUND) /* evicted since it was listed */
			st = GRADCOMP_OK;
	}
	cache_entries_free(&entries);
	return st;
}

gradcomp_status gradcomp_cache_verify(const gradcomp_cache_options *options, const char *key,
                                      void (*damaged)(void *ctx, const char *key, const char *file, const char *what),
                                      void *ctx, gradcomp_error *err)
{
	gradcomp_stage_options tell = {.struct_size = sizeof tell, .progress = on_progress};
	cache_area a;
	config *c = NULL;
	gradcomp_status st = key ? cache_key_check(key, err) : GRADCOMP_OK;
	if (st || (st = cache_area_begin(&a, options, false, err)))
		return st;
	struct verify *v = calloc(1, sizeof *v);
	if (!v)
		st = error_set(err, GRADCOMP_ERR_NOMEM, "no memory to verify copies");
	if (st || (st = config_load(NULL, &c, err)))
		goto done;
	tell.ctx = &a;
	v->area = &a;
	v->key = key;
	v->run.options = &tell;
	v->run.workers = STAGE_WORKERS;
	v->damaged = damaged;
	v->ctx = ctx;
	if (a.empty)
		st = key ? cache_no_copy(&a, key, err) : GRADCOMP_OK;
	else
		st = key ? verify_one(v, err) : verify_all(v, err);
	if (!st && v->total)
		st = error_set(err, GRADCOMP_ERR_MISMATCH, "%llu file%s damaged in %s", (unsigned long long)v->total,
		               v->total == 1 ? " is" : "s are", a.path);
done:
	free(v);
	config_free(c);
	cache_area_end(&a);
	return st;
}
