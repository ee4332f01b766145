/* Filling data/ of a temporary directory from the manifest. */
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "staging.h"

struct fill {
	stage_run *run;
	stage_manifest *m;
	int journal;
	atomic_uint_fast64_t resumed;
};

gradcomp_status stage_room(stage_run *run, const stage_manifest *m, int area, uint64_t have, gradcomp_error *err)
{
	char need_text[32], left_text[32];
	struct statvfs fs;
	if (fstatvfs(area, &fs) < 0 || !fs.f_frsize)
		return stage_fail(err, "ask for the free space of", run->where);
	uint64_t block = fs.f_frsize, need = 0, left = (uint64_t)fs.f_bavail * block;
	for (size_t i = 0; i < m->n; i++) {
		const stage_entry *e = &m->entries[i];
		uint64_t bytes = e->type == STAGE_DIR ? block : e->stored < e->size ? e->stored : e->size;
		need += (bytes + block - 1) / block * block;
	}
	need -= have < need ? have : need;
	if (need > left)
		return error_set(err, GRADCOMP_ERR_IO, "no space: needs %s, %s free on %s",
		                 gradcomp_size_text(need, need_text), gradcomp_size_text(left, left_text),
		                 run->where);
	if (fs.f_files && m->n > fs.f_favail)
		return error_set(err, GRADCOMP_ERR_IO, "no space: needs %zu inodes, %llu free on %s", m->n,
		                 (unsigned long long)fs.f_favail, run->where);
	return GRADCOMP_OK;
}

static gradcomp_status make_dirs(struct fill *f, stage_walk *to, gradcomp_error *err)
{
	for (size_t i = 0; i < f->m->n; i++) {
		const stage_entry *e = &f->m->entries[i];
		const char *base;
		if (e->type != STAGE_DIR || !*e->path)
			continue;
		/* Writable while it is filled; its own mode comes last. */
		int dir = stage_walk_parent(to, e->path, &base);
		if (dir < 0 || (mkdirat(dir, base, 0700) < 0 && errno != EEXIST) ||
		    fchmodat(dir, base, 0700, 0) < 0)
			return stage_write_failed(f->run, e->path, err);
		gradcomp_status status = stage_run_tick(f->run, err);
		if (status)
			return status;
	}
	return GRADCOMP_OK;
}

static gradcomp_status fill_file(void *ctx, stage_worker *w, size_t i, gradcomp_error *err)
{
	struct fill *f = ctx;
	stage_entry *e = &f->m->entries[i];
	if (e->type != STAGE_FILE)
		return GRADCOMP_OK;
	if (e->sealed && stage_check(f->run, w, e) == 1) {
		atomic_fetch_add(&f->resumed, e->size);
	} else {
		gradcomp_status status = stage_copy(f->run, w, e, err);
		if (status)
			return status;
		if (stage_journal_add(f->journal, i, e) < 0)
			return stage_write_failed(f->run, "the journal", err);
	}
	atomic_fetch_add(&f->run->files, 1);
	return GRADCOMP_OK;
}

static gradcomp_status make_links(struct fill *f, stage_walk *to, stage_walk *old, gradcomp_error *err)
{
	for (size_t i = 0; i < f->m->n; i++) {
		const stage_entry *e = &f->m->entries[i];
		const char *base, *first;
		if (e->type != STAGE_SYMLINK && e->type != STAGE_HARDLINK)
			continue;
		int dir = stage_walk_parent(to, e->path, &base), from = -1;
		if (dir < 0 || (unlinkat(dir, base, 0) < 0 && errno != ENOENT))
			return stage_write_failed(f->run, e->path, err);
		if (e->type == STAGE_SYMLINK) {
			if (symlinkat(e->target, dir, base) < 0)
				return stage_write_failed(f->run, e->path, err);
		} else {
			from = stage_walk_parent(old, e->target, &first);
			if (from < 0 || linkat(from, first, dir, base, 0) < 0)
				return stage_write_failed(f->run, e->path, err);
			atomic_fetch_add(&f->run->files, 1);
		}
		gradcomp_status status = stage_run_tick(f->run, err);
		if (status)
			return status;
	}
	return GRADCOMP_OK;
}

/* From the leaves up, since a directory that cannot be written any more can
 * still be entered. */
static gradcomp_status set_dir_modes(struct fill *f, stage_walk *to, int temp, gradcomp_error *err)
{
	for (size_t i = f->m->n; i-- > 0;) {
		const stage_entry *e = &f->m->entries[i];
		const char *base = "data";
		if (e->type != STAGE_DIR)
			continue;
		int dir = *e->path ? stage_walk_parent(to, e->path, &base) : temp;
		if (dir < 0 || fchmodat(dir, base, e->mode, 0) < 0)
			return stage_write_failed(f->run, e->path, err);
	}
	return GRADCOMP_OK;
}

gradcomp_status stage_fill(stage_run *run, stage_manifest *m, source *from, int temp, uint64_t *resumed,
                           gradcomp_error *err)
{
	struct fill f = {.run = run, .m = m, .journal = -1};
	stage_walk to, old;
	gradcomp_status status;
	int data = -1;
	if ((mkdirat(temp, "data", 0700) < 0 && errno != EEXIST) || fchmodat(temp, "data", 0700, 0) < 0 ||
	    (data = openat(temp, "data", O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC)) < 0 ||
	    (f.journal = stage_journal_open(temp)) < 0) {
		status = stage_write_failed(run, "data", err);
		if (data >= 0)
			close(data);
		return status;
	}
	stage_walk_begin(&to, data);
	stage_walk_begin(&old, data);
	stage_run_phase(run, GRADCOMP_STAGE_COPY, m->files, m->bytes);
	if ((status = make_dirs(&f, &to, err)) ||
	    (status = stage_pool(run, m->n, from, data, fill_file, &f, err)) ||
	    (status = make_links(&f, &to, &old, err)) || (status = set_dir_modes(&f, &to, temp, err)))
		goto done;
	*resumed = atomic_load(&f.resumed);
done:
	stage_walk_end(&to);
	stage_walk_end(&old);
	close(f.journal);
	close(data);
	return status;
}

static gradcomp_status look_again(void *ctx, stage_worker *w, size_t i, gradcomp_error *err)
{
	const struct fill *f = ctx;
	const stage_entry *e = &f->m->entries[i];
	char name[STAGE_NAME_MAX];
	source_stat st;
	if (e->type != STAGE_DIR)
		return GRADCOMP_OK;
	gradcomp_status status = source_lookup(w->from, e->path, &st, err);
	if (status == GRADCOMP_OK && S_ISDIR(st.mode) && st.mtime_ns == e->mtime_ns)
		return GRADCOMP_OK;
	if (status && status != GRADCOMP_ERR_NOTFOUND)
		return status;
	atomic_store(&f->run->changed, true);
	return error_set(err, GRADCOMP_ERR_STATE, "the source changed while it was staged: names came or went in %s",
	                 gradcomp_printable(*e->path ? e->path : f->run->source, name, sizeof name));
}

gradcomp_status stage_unchanged(stage_run *run, stage_manifest *m, source *from, gradcomp_error *err)
{
	struct fill f = {.run = run, .m = m};
	return stage_pool(run, m->n, from, -1, look_again, &f, err);
}
