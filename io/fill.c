/* Filling data/ of a temporary directory from the manifest. */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "exchange/pieces.h"
#include "staging.h"

struct fill {
	stage_run *run;
	stage_manifest *m;
	atomic_uint_fast64_t resumed;
};

void stage_needs(const stage_manifest *m, uint64_t block, uint64_t *bytes, uint64_t *inodes)
{
	*bytes = *inodes = 0;
	for (size_t i = 0; i < m->n; i++) {
		const stage_entry *e = &m->entries[i];
		uint64_t size = e->type == STAGE_DIR ? block : e->stored < e->size ? e->stored : e->size;
		if (e->sealed)
			continue;
		*bytes += (size + block - 1) / block * block;
		*inodes += e->type != STAGE_HARDLINK;
	}
}

gradcomp_status stage_room(stage_run *run, const stage_manifest *m, int area, gradcomp_error *err)
{
	char need[32], left[32];
	uint64_t bytes, inodes;
	struct statvfs fs;
	if (fstatvfs(area, &fs) < 0 || !fs.f_frsize)
		return stage_fail(err, "ask for the free space of", run->where);
	stage_needs(m, fs.f_frsize, &bytes, &inodes);
	if (bytes > (uint64_t)fs.f_bavail * fs.f_frsize)
		return error_set(err, GRADCOMP_ERR_IO, "no space: needs %s, %s free on %s", gradcomp_size_text(bytes, need),
		                 gradcomp_size_text((uint64_t)fs.f_bavail * fs.f_frsize, left), run->where);
	if (fs.f_files && inodes > fs.f_favail)
		return error_set(err, GRADCOMP_ERR_IO, "no space: needs %llu inodes, %llu free on %s",
		                 (unsigned long long)inodes, (unsigned long long)fs.f_favail, run->where);
	return GRADCOMP_OK;
}

/* A directory that can be written to: a new one, or the one that an interrupted copy has.
 * fchmodat() would follow a link in its place. */
static int make_dir(int parent, const char *name)
{
	struct stat st;
	if ((mkdirat(parent, name, 0700) < 0 && errno != EEXIST) ||
	    fstatat(parent, name, &st, AT_SYMLINK_NOFOLLOW) < 0)
		return -1;
	if (!S_ISDIR(st.st_mode)) {
		errno = ENOTDIR;
		return -1;
	}
	return fchmodat(parent, name, 0700, 0);
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
		if (dir < 0 || make_dir(dir, base) < 0)
			return stage_write_failed(f->run, e->path, err);
		gradcomp_status status = stage_run_tick(f->run, err);
		if (status)
			return status;
	}
	return GRADCOMP_OK;
}

/* A file that a dead producer finished: its journal is a claim. */
static gradcomp_status check_file(void *ctx, stage_worker *w, size_t i, gradcomp_error *err)
{
	struct fill *f = ctx;
	stage_entry *e = &f->m->entries[i];
	(void)err;
	if (e->type != STAGE_FILE || !e->sealed)
		return GRADCOMP_OK;
	e->sealed = stage_check(f->run, w, e) == 1;
	if (e->sealed) {
		atomic_fetch_add(&f->resumed, e->size);
		atomic_fetch_add(&f->run->files, 1);
	}
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

static gradcomp_status open_data(stage_run *run, int temp, int *data, gradcomp_error *err)
{
	if (make_dir(temp, "data") < 0 ||
	    (*data = openat(temp, "data", O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC)) < 0)
		return stage_write_failed(run, "data", err);
	return GRADCOMP_OK;
}

gradcomp_status stage_fill_begin(stage_run *run, stage_manifest *m, int temp, stage_filling *out,
                                 gradcomp_error *err)
{
	struct fill f = {.run = run, .m = m};
	stage_walk to;
	*out = (stage_filling){.temp = temp, .data = -1};
	gradcomp_status status = open_data(run, temp, &out->data, err);
	if (!status && !(out->wanted = calloc(1, m->n / 8 + 1)))
		status = error_set(err, GRADCOMP_ERR_NOMEM, "out of memory with a list of %zu files", m->n);
	if (status)
		return status;
	stage_run_phase(run, GRADCOMP_STAGE_COPY, m->files, m->bytes);
	stage_walk_begin(&to, out->data);
	status = make_dirs(&f, &to, err);
	stage_walk_end(&to);
	if (!status)
		status = stage_pool(run, m->n, NULL, out->data, check_file, &f, err);
	for (size_t i = 0; i < m->n; i++)
		if (m->entries[i].type == STAGE_FILE && !m->entries[i].sealed)
			piece_set(out->wanted, i);
	out->resumed = atomic_load(&f.resumed);
	atomic_store(&run->bytes, out->resumed); /* without what was read and found wrong */
	return status;
}

gradcomp_status stage_fill_end(stage_run *run, stage_manifest *m, const stage_filling *filling, gradcomp_error *err)
{
	struct fill f = {.run = run, .m = m};
	stage_walk to, old;
	stage_walk_begin(&to, filling->data);
	stage_walk_begin(&old, filling->data);
	gradcomp_status status = make_links(&f, &to, &old, err);
	if (!status)
		status = set_dir_modes(&f, &to, filling->temp, err);
	stage_walk_end(&to);
	stage_walk_end(&old);
	return status;
}

void stage_fill_free(stage_filling *filling)
{
	if (filling->data >= 0)
		close(filling->data);
	free(filling->wanted);
	*filling = (stage_filling){.data = -1};
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
