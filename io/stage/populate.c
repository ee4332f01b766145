/* Making a copy on the nodes that have none: space, the files of an interrupted copy, the
 * transfer, and publishing when all nodes have everything. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "io/cache/resume_log.h"
#include "base/text.h"
#include "io/transfer/chunks.h"
#include "io/cache/cache.h"
#include "io/stage/stage_internal.h"

/* A directory KEY.tmp being filled. */
struct partial {
	int temp, data;        /* temp is the caller's */
	unsigned char *wanted; /* bits by entry: files that are not there yet */
	uint64_t resumed;      /* bytes of those that are */
};

struct populate {
	stage_run *run;
	stage_manifest *m;
	atomic_uint_fast64_t resumed;
};

/* Adds up what is still to be written of the entries that are not sealed. */
static void bytes_needed(const stage_manifest *m, uint64_t block, uint64_t *bytes, uint64_t *inodes)
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

gradcomp_status stage_check_space(stage_run *run, const stage_manifest *m, int area, gradcomp_error *err)
{
	char need[32], left[32];
	uint64_t bytes, inodes;
	struct statvfs fs;
	if (fstatvfs(area, &fs) < 0 || !fs.f_frsize)
		return text_cannot(err, "ask for the free space of", run->where);
	bytes_needed(m, fs.f_frsize, &bytes, &inodes);
	if (bytes > (uint64_t)fs.f_bavail * fs.f_frsize)
		return error_set(err, GRADCOMP_ERR_IO, "no space: needs %s, %s free on %s",
		                 gradcomp_size_text(bytes, need),
		                 gradcomp_size_text((uint64_t)fs.f_bavail * fs.f_frsize, left), run->where);
	if (fs.f_files && inodes > fs.f_favail)
		return error_set(err, GRADCOMP_ERR_IO, "no space: needs %llu inodes, %llu free on %s",
		                 (unsigned long long)inodes, (unsigned long long)fs.f_favail, run->where);
	return GRADCOMP_OK;
}

/* A directory that can be written to: a new one, or the one that an interrupted copy has.
 * fchmodat() would follow a symbolic link. */
static int make_dir(int parent, const char *name)
{
	struct stat st;
	if ((mkdirat(parent, name, 0700) < 0 && errno != EEXIST) || fstatat(parent, name, &st, AT_SYMLINK_NOFOLLOW) < 0)
		return -1;
	if (!S_ISDIR(st.st_mode)) {
		errno = ENOTDIR;
		return -1;
	}
	return fchmodat(parent, name, 0700, 0);
}

static gradcomp_status make_dirs(struct populate *f, dirwalk *to, gradcomp_error *err)
{
	for (size_t i = 0; i < f->m->n; i++) {
		const stage_entry *e = &f->m->entries[i];
		const char *base;
		if (e->type != STAGE_DIR || !*e->path)
			continue;
		/* Writable while it is filled; its own mode comes last. */
		int dir = dirwalk_parent(to, e->path, &base);
		if (dir < 0 || make_dir(dir, base) < 0)
			return cache_write_failed(f->run, e->path, err);
		gradcomp_status st = stage_run_tick(f->run, err);
		if (st)
			return st;
	}
	return GRADCOMP_OK;
}

/* A file that a producer finished before it died, by its resume log: it is checked. */
static gradcomp_status check_file(void *ctx, stage_worker *w, size_t i, gradcomp_error *err)
{
	struct populate *f = ctx;
	stage_entry *e = &f->m->entries[i];
	(void)err;
	if (e->type != STAGE_FILE || !e->sealed)
		return GRADCOMP_OK;
	e->sealed = cache_check_file(f->run, w, e) == 1;
	if (e->sealed) {
		atomic_fetch_add(&f->resumed, e->size);
		atomic_fetch_add(&f->run->files, 1);
	}
	return GRADCOMP_OK;
}

static gradcomp_status make_links(struct populate *f, dirwalk *to, dirwalk *old, gradcomp_error *err)
{
	for (size_t i = 0; i < f->m->n; i++) {
		const stage_entry *e = &f->m->entries[i];
		const char *base, *first;
		if (e->type != STAGE_SYMLINK && e->type != STAGE_HARDLINK)
			continue;
		int dir = dirwalk_parent(to, e->path, &base), from = -1;
		if (dir < 0 || (unlinkat(dir, base, 0) < 0 && errno != ENOENT))
			return cache_write_failed(f->run, e->path, err);
		if (e->type == STAGE_SYMLINK) {
			if (symlinkat(e->target, dir, base) < 0)
				return cache_write_failed(f->run, e->path, err);
		} else {
			from = dirwalk_parent(old, e->target, &first);
			if (from < 0 || linkat(from, first, dir, base, 0) < 0)
				return cache_write_failed(f->run, e->path, err);
			atomic_fetch_add(&f->run->files, 1);
		}
		gradcomp_status st = stage_run_tick(f->run, err);
		if (st)
			return st;
	}
	return GRADCOMP_OK;
}

/* Sets modes from the leaves up, since a directory that cannot be written any more can still be entered. */
static gradcomp_status set_dir_modes(struct populate *f, dirwalk *to, int temp, gradcomp_error *err)
{
	for (size_t i = f->m->n; i-- > 0;) {
		const stage_entry *e = &f->m->entries[i];
		const char *base = "data";
		if (e->type != STAGE_DIR)
			continue;
		int dir = *e->path ? dirwalk_parent(to, e->path, &base) : temp;
		if (dir < 0 || fchmodat(dir, base, e->mode, 0) < 0)
			return cache_write_failed(f->run, e->path, err);
	}
	return GRADCOMP_OK;
}

static gradcomp_status open_data(stage_run *run, int temp, int *data, gradcomp_error *err)
{
	if (make_dir(temp, "data") < 0 ||
	    (*data = openat(temp, "data", O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC)) < 0)
		return cache_write_failed(run, "data", err);
	return GRADCOMP_OK;
}

/* Makes data/ and its directories, and checks the files that a producer finished before it died.
 * To be freed whatever is returned. */
static gradcomp_status partial_begin(stage_run *run, stage_manifest *m, int temp, struct partial *out,
                                     gradcomp_error *err)
{
	struct populate f = {.run = run, .m = m};
	dirwalk to;
	*out = (struct partial){.temp = temp, .data = -1};
	gradcomp_status st = open_data(run, temp, &out->data, err);
	if (!st && !(out->wanted = calloc(1, m->n / 8 + 1)))
		st = error_set(err, GRADCOMP_ERR_NOMEM, "out of memory with a list of %zu files", m->n);
	if (st)
		return st;
	stage_run_phase(run, GRADCOMP_STAGE_COPY, m->files, m->bytes);
	dirwalk_begin(&to, out->data);
	st = make_dirs(&f, &to, err);
	dirwalk_end(&to);
	if (!st)
		st = stage_run_each(run, m->n, NULL, out->data, check_file, &f, err);
	for (size_t i = 0; i < m->n; i++)
		if (m->entries[i].type == STAGE_FILE && !m->entries[i].sealed)
			entry_bit_set(out->wanted, i);
	out->resumed = atomic_load(&f.resumed);
	atomic_store(&run->bytes, out->resumed); /* without what was read and found wrong */
	return st;
}

/* When all files are there: links, and the modes of directories. */
static gradcomp_status partial_end(stage_run *run, stage_manifest *m, const struct partial *partial,
                                   gradcomp_error *err)
{
	struct populate f = {.run = run, .m = m};
	dirwalk to, old;
	dirwalk_begin(&to, partial->data);
	dirwalk_begin(&old, partial->data);
	gradcomp_status st = make_links(&f, &to, &old, err);
	if (!st)
		st = set_dir_modes(&f, &to, partial->temp, err);
	dirwalk_end(&to);
	dirwalk_end(&old);
	return st;
}

static void partial_free(struct partial *partial)
{
	if (partial->data >= 0)
		close(partial->data);
	free(partial->wanted);
	*partial = (struct partial){.data = -1};
}

static gradcomp_status look_again(void *ctx, stage_worker *w, size_t i, gradcomp_error *err)
{
	const struct populate *f = ctx;
	const stage_entry *e = &f->m->entries[i];
	char name[TEXT_NAME_MAX];
	source_stat sb;
	if (e->type != STAGE_DIR)
		return GRADCOMP_OK;
	gradcomp_status st = source_lookup(w->from, e->path, &sb, err);
	if (st == GRADCOMP_OK && S_ISDIR(sb.mode) && sb.mtime_ns == e->mtime_ns)
		return GRADCOMP_OK;
	if (st && st != GRADCOMP_ERR_NOTFOUND)
		return st;
	atomic_store(&f->run->changed, true);
	return error_set(err, GRADCOMP_ERR_STATE, "the source changed while it was staged: names came or went in %s",
	                 gradcomp_printable(*e->path ? e->path : f->run->source, name, sizeof name));
}

/* Checks that the source's directories are still as listed; a file is checked when it is copied. */
static gradcomp_status source_unchanged(stage_run *run, stage_manifest *m, source *from, gradcomp_error *err)
{
	struct populate f = {.run = run, .m = m};
	return stage_run_each(run, m->n, from, -1, look_again, &f, err);
}

#define OPEN_DIR (O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC)

struct populate_state {
	staging *s;
	bool making; /* this node makes a copy */
	int temp;
	struct partial partial;
	unsigned char *needed;
	source *copy; /* this node's, for the others */
	bool ended;   /* before its end: another node has failed */
	bool published;
};

static gradcomp_status ensure_space(staging *s, gradcomp_error *err)
{
	uint64_t bytes, inodes;
	struct statvfs fs;
	if (fstatvfs(s->area, &fs) < 0 || !fs.f_frsize)
		return text_cannot(err, "ask for the free space of", s->run->where);
	bytes_needed(&s->m, fs.f_frsize, &bytes, &inodes);
	return cache_ensure_space(s->run, s->area, s->key, bytes, inodes, err);
}

/* Opens the folder of the copy to be made. One that others could enter is not filled again: they may have its
 * directories open, and a file has the modes of the source until all are there. */
static int open_temp(int area, const char *name)
{
	struct stat st;
	bool entered = fstatat(area, name, &st, AT_SYMLINK_NOFOLLOW) == 0 && S_ISDIR(st.st_mode) && st.st_mode & 077;
	if ((entered && dirwalk_remove(area, name) < 0) || (mkdirat(area, name, 0700) < 0 && errno != EEXIST))
		return -1;
	return openat(area, name, OPEN_DIR);
}

/* Resumes what a producer that died has left. */
static gradcomp_status begin(struct populate_state *p, gradcomp_error *err)
{
	staging *s = p->s;
	char name[STAGE_KEY_BYTES + 8];
	gradcomp_status st;
	for (size_t i = 0; i < s->m.n; i++)
		s->m.entries[i].sealed = false; /* checksums of another node's copy */
	cache_sweep(s->area, s->key);
	snprintf(name, sizeof name, "%s.tmp", s->key);
	s->run->bytes_total = s->m.bytes;
	if ((p->temp = open_temp(s->area, name)) < 0)
		return cache_write_failed(s->run, name, err);
	resume_log_read(&s->m, p->temp);
	if (!(st = ensure_space(s, err)))
		st = partial_begin(s->run, &s->m, p->temp, &p->partial, err);
	s->resumed = p->partial.resumed;
	return st;
}

/* Which files are to be transferred. */
static gradcomp_status agree_on_files(struct populate_state *p, gradcomp_error *err)
{
	staging *s = p->s;
	size_t n = s->m.n / 8 + 1;
	gradcomp_status st = GRADCOMP_OK;
	if (!(p->needed = calloc(1, n)))
		st = error_set(err, GRADCOMP_ERR_NOMEM, "out of memory with a list of %zu files", s->m.n);
	else if (p->making)
		st = begin(p, err);
	if ((st = stage_group_agree(s->group, st, err)) || !p->needed)
		return st;
	if (p->partial.wanted)
		memcpy(p->needed, p->partial.wanted, n);
	return s->run->options->mode == GRADCOMP_STAGE_SHARD ? GRADCOMP_OK
	                                                     : stage_group_or(s->group, p->needed, n, err);
}

static gradcomp_status open_copy(struct populate_state *p, gradcomp_error *err)
{
	char path[4096 + STAGE_KEY_BYTES + 8];
	snprintf(path, sizeof path, "%s/%s/data", p->s->run->where, p->s->key);
	return source_open(p->s->run->config, path, stage_run_wait(p->s->run), &p->copy, err);
}

/* Nodes with a copy send it to the others; if no node has one, all read the source. */
static gradcomp_status copy(struct populate_state *p, const unsigned char *holders, gradcomp_error *err)
{
	static const transfer_peers alone = {.nnodes = 1};
	staging *s = p->s;
	bool shard = s->run->options->mode == GRADCOMP_STAGE_SHARD, some = false;
	size_t me = (size_t)s->group->peers.node;
	transfer_counts counts = {0};
	transfer *x = NULL;
	gradcomp_status st = shard ? GRADCOMP_OK : stage_group_links(s->group, err);
	for (size_t i = 0; !shard && i < (size_t)s->group->peers.nnodes; i++)
		some = some || entry_bit(holders, i);
	transfer_params params = {.run = s->run,
	                          .m = &s->m,
	                          .peers = shard ? &alone : &s->group->peers,
	                          .server = !some,
	                          .owners = some ? holders : NULL,
	                          .needed = p->needed,
	                          .wanted = p->making ? p->partial.wanted : NULL,
	                          .temp = p->temp,
	                          .data = p->partial.data};
	if (!st && some && entry_bit(holders, me) && !(st = open_copy(p, err)))
		params.from = p->copy;
	else if (!st && !some && (p->making || !shard) && !(st = stage_open(s, err)))
		params.from = s->from;
	if (!st && !p->making)
		stage_run_phase(s->run, GRADCOMP_STAGE_COPY, s->m.files, s->m.bytes);
	if (!st && (p->making || !shard))
		st = transfer_begin(&params, &x, err);
	st = stage_group_agree(s->group, st, err);
	if (!x)
		return st;
	if (st) {
		transfer_end(x, false, &counts, NULL);
		return st;
	}
	st = transfer_end(x, true, &counts, err);
	s->read += counts.read;
	s->received += counts.received;
	p->ended = counts.ended;
	return st;
}

/* Everything that makes it a copy except the rename. */
static gradcomp_status complete(struct populate_state *p, const unsigned char *holders, gradcomp_error *err)
{
	staging *s = p->s;
	gradcomp_status st = copy(p, holders, err);
	if (!st && !p->ended && p->making)
		st = partial_end(s->run, &s->m, &p->partial, err);
	/* It is enough that one node checks the source. */
	if (!st && !p->ended && s->from && !s->group->peers.node)
		st = source_unchanged(s->run, &s->m, s->from, err);
	if (!st && !p->ended && p->making && s->run->options->flags & GRADCOMP_STAGE_VERIFY)
		st = cache_verify(s->run, &s->m, p->temp, err);
	if ((st = stage_group_agree(s->group, st, err)) || !p->ended)
		return st;
	return error_set(err, GRADCOMP_ERR_INTERNAL, "a transfer ended and no node has reported why");
}

/* Writes the list of what was left out, beside the data. */
static gradcomp_status write_left_out(const staging *s, int temp, gradcomp_error *err)
{
	const char *text = s->left_out_text;
	size_t n = text ? strlen(text) : 0;
	if ((unlinkat(temp, "left-out", 0) < 0 && errno != ENOENT))
		return cache_write_failed(s->run, "left-out", err);
	if (!text)
		return GRADCOMP_OK;
	int fd = openat(temp, "left-out", O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0644);
	bool written = fd >= 0 && write(fd, text, n) == (ssize_t)n;
	if ((fd >= 0 && close(fd) < 0) || !written)
		return cache_write_failed(s->run, "left-out", err);
	return GRADCOMP_OK;
}

static gradcomp_status publish(struct populate_state *p, gradcomp_error *err)
{
	staging *s = p->s;
	stage_run_phase(s->run, GRADCOMP_STAGE_SYNC, s->m.files, s->m.bytes);
	gradcomp_status st = stage_run_tick(s->run, err);
	if (!st)
		st = write_left_out(s, p->temp, err);
	if (!st && s->run->options->flags & GRADCOMP_STAGE_SHARED)
		st = cache_open_to_all(s->run, s->area, s->key, p->temp, &s->m, err);
	if (!st && !(st = cache_publish(s->run, &s->m, s->area, s->key, p->temp, err))) {
		p->published = true;
		s->stale[0] = 0;
	}
	return st;
}

/* A copy that a death or another node's failure interrupted is resumed by the next job. If this
 * node's disk failed or its user stopped it, the copy would only take space. */
static void abandon(struct populate_state *p, gradcomp_status status)
{
	staging *s = p->s;
	char name[STAGE_KEY_BYTES + 8];
	if (s->group->peers.nnodes > 1 && status != GRADCOMP_ERR_STATE && !atomic_load(&s->run->unwritable))
		return;
	snprintf(name, sizeof name, "%s.tmp", s->key);
	if (dirwalk_remove(s->area, name) < 0)
		stage_run_notice(s->run, "%s/%s could not be removed", s->run->where, name);
}

gradcomp_status stage_populate(staging *s, staging_state state, const unsigned char *holders, gradcomp_error *err)
{
	struct populate_state p = {.s = s, .making = state == STAGING_LOCKED, .temp = -1, .partial = {.data = -1}};
	gradcomp_status st = GRADCOMP_OK;
	if (s->run->options->mode != GRADCOMP_STAGE_SHARD)
		st = stage_group_manifest(s->group, &s->m, err);
	if (!st && strcmp(s->m.key, s->key))
		st = error_set(err, GRADCOMP_ERR_INTERNAL, "the list of %s has another key than was agreed", s->source);
	if (!(st = stage_group_agree(s->group, st, err)) && !(st = agree_on_files(&p, err)) &&
	    !(st = complete(&p, holders, err)) && p.making)
		st = publish(&p, err);
	partial_free(&p.partial);
	source_close(p.copy);
	free(p.needed);
	if (p.temp >= 0)
		close(p.temp);
	if (st && p.temp >= 0 && !p.published)
		abandon(&p, st);
	return st;
}
