/* gradcomp_stage(): from a source to a published copy. */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/text.h"
#include "io/cache/cache.h"
#include "config/config.h"
#include "job/job.h"
#include "io/stage/stage_internal.h"
#include "transport/wire/wire.h"

#define ATTEMPTS 3
#define FLAGS \
	(GRADCOMP_STAGE_VERIFY | GRADCOMP_STAGE_DRY_RUN | GRADCOMP_STAGE_CONTENT | GRADCOMP_STAGE_SHARED | \
	 GRADCOMP_STAGE_FOLLOW | GRADCOMP_STAGE_REWRITE | GRADCOMP_STAGE_SKIP_UNREADABLE)
#define EXCLUDE_MAX 4095u

/* The functions below tell all nodes what node 0 finds. */

/* Bytes only: the same on all machines. */
struct finding {
	unsigned char options[SHA256_BYTES];
	char key[STAGE_KEY_BYTES], source[4096], file[256];
	unsigned char mounted, files[8], bytes[8], left_out[8];
};

/* All nodes must have the same options. */
static void digest_options(const gradcomp_stage_options *o, unsigned char digest[SHA256_BYTES])
{
	unsigned char numbers[8];
	sha256 hash;
	put32(numbers, o->flags);
	put32(numbers + 4, (uint32_t)o->mode);
	sha256_init(&hash);
	sha256_update(&hash, numbers, sizeof numbers);
	sha256_update(&hash, o->source, strlen(o->source) + 1);
	if (o->exclude)
		sha256_update(&hash, o->exclude, strlen(o->exclude));
	sha256_final(&hash, digest);
}

/* A copy of the source inside the source would have no end. */
static gradcomp_status check_apart(stage_run *run, const char *source, gradcomp_error *err)
{
	char name[TEXT_NAME_MAX], real[PATH_MAX];
	size_t n = strlen(source);
	if (!realpath(run->where, real))
		return text_cannot(err, "find", run->where);
	if (strncmp(real, source, n) || (real[n] && real[n] != '/' && n > 1))
		return GRADCOMP_OK;
	return error_set(err, GRADCOMP_ERR_INVALID,
	                 "the cache %s is inside %s; stage something smaller or set stage.cache_dir", run->where,
	                 gradcomp_printable(source, name, sizeof name));
}

static gradcomp_status open_cache_area(staging *s, gradcomp_error *err)
{
	bool dry = s->run->options->flags & GRADCOMP_STAGE_DRY_RUN;
	gradcomp_status st = cache_open_area(s->run, !dry, &s->area, err);
	return dry && st == GRADCOMP_ERR_NOTFOUND ? GRADCOMP_OK : st;
}

static gradcomp_status list_source(staging *s, gradcomp_error *err)
{
	const stage_run *run = s->run;
	char size[32], limit[32], name[TEXT_NAME_MAX];
	gradcomp_status st = stage_open(s, err);
	if (st)
		return st;
	if (!(s->m.source = strdup(source_name(s->from))))
		return error_set(err, GRADCOMP_ERR_NOMEM, "out of memory");
	s->run->source = s->m.source;
	if (run->options->flags & GRADCOMP_STAGE_SHARED && !cache_is_shared(run->config, s->m.source))
		return error_set(err, GRADCOMP_ERR_INVALID, "%s is not a source that stage.shared declares",
		                 gradcomp_printable(s->m.source, name, sizeof name));
	if (s->area >= 0 && source_is_mounted(s->from) && (st = check_apart(s->run, s->m.source, err)))
		return st;
	if ((st = stage_list(s->run, &s->m, s->from, err)))
		return st;
	if (run->max_bytes && s->m.bytes > run->max_bytes)
		return error_set(err, GRADCOMP_ERR_RANGE, "the dataset has %s; stage.max_bytes allows %s",
		                 gradcomp_size_text(s->m.bytes, size), gradcomp_size_text(run->max_bytes, limit));
	return GRADCOMP_OK;
}

static gradcomp_status pack_finding(const staging *s, struct finding *f, gradcomp_error *err)
{
	const char *file = source_is_file(s->from);
	memcpy(f->key, s->m.key, sizeof f->key);
	f->mounted = source_is_mounted(s->from);
	put64(f->files, s->m.files);
	put64(f->bytes, s->m.bytes);
	put64(f->left_out, s->m.nleft_out);
	if (snprintf(f->source, sizeof f->source, "%s", s->m.source) < (int)sizeof f->source &&
	    snprintf(f->file, sizeof f->file, "%s", file ? file : "") < (int)sizeof f->file)
		return GRADCOMP_OK;
	return error_set(err, GRADCOMP_ERR_UNSUPPORTED, "the name of the source is too long");
}

/* Node 0 lists the source, and broadcasts what it is. */
static gradcomp_status find_source(staging *s, gradcomp_error *err)
{
	struct finding f = {.mounted = 0};
	unsigned char mine[SHA256_BYTES];
	gradcomp_status st = GRADCOMP_OK;
	digest_options(s->run->options, mine);
	memcpy(f.options, mine, sizeof mine);
	if (s->run->options->mode != GRADCOMP_STAGE_LINK)
		st = open_cache_area(s, err);
	if (!st && !s->group->peers.node && !(st = list_source(s, err)))
		st = pack_finding(s, &f, err);
	if ((st = stage_group_agree(s->group, st, err)) || (st = stage_group_bcast(s->group, &f, sizeof f, err)))
		return st;
	if (memcmp(f.options, mine, sizeof mine))
		st = error_set(err, GRADCOMP_ERR_MISMATCH,
		               "this node stages another source, or in another way, than node 0");
	f.key[sizeof f.key - 1] = f.source[sizeof f.source - 1] = f.file[sizeof f.file - 1] = 0;
	memcpy(s->key, f.key, sizeof s->key);
	memcpy(s->source, f.source, sizeof s->source);
	memcpy(s->file, f.file, sizeof s->file);
	s->mounted = f.mounted;
	s->files = get64(f.files);
	s->bytes = get64(f.bytes);
	s->left_out = get64(f.left_out);
	s->run->source = s->source;
	if (s->left_out && !(s->left_out_text = calloc(1, STAGE_LEFT_OUT_BYTES)))
		st = error_set(err, GRADCOMP_ERR_NOMEM, "out of memory");
	if (!st && s->area >= 0 && s->mounted && s->group->peers.node)
		st = check_apart(s->run, s->source, err);
	if ((st = stage_group_agree(s->group, st, err)) || !s->left_out_text)
		return st;
	if (s->m.left_out)
		memcpy(s->left_out_text, s->m.left_out, STAGE_LEFT_OUT_BYTES);
	st = stage_group_bcast(s->group, s->left_out_text, STAGE_LEFT_OUT_BYTES, err);
	s->left_out_text[STAGE_LEFT_OUT_BYTES - 1] = 0;
	return st;
}

/* Looks up the free space of the area, or of the directory where it would be. */
static gradcomp_status look_only(stage_run *run, staging *s, gradcomp_error *err)
{
	char damage[sizeof err->text];
	if (s->area < 0) {
		char *dir = strdup(run->where);
		for (char *slash; dir && s->area < 0 && (slash = strrchr(dir, '/')); *slash = 0)
			s->area = open(slash == dir ? "/" : dir, O_PATH | O_DIRECTORY | O_CLOEXEC);
		free(dir);
		return stage_check_space(run, &s->m, s->area, err);
	}
	int found =
		cache_published(run, &s->m, s->area, s->key, run->options->flags & GRADCOMP_STAGE_VERIFY, damage, err);
	if (found < 0)
		return (gradcomp_status)found;
	s->cached = found;
	if (*damage)
		stage_run_notice(run, "the cached copy is damaged (%s)", damage);
	return found ? GRADCOMP_OK : stage_check_space(run, &s->m, s->area, err);
}

/* Nothing is copied: there must be a path, and this node must be able to open it. */
static gradcomp_status link_source(staging *s, gradcomp_error *err)
{
	source_reader *r = NULL;
	source_stat sb;
	gradcomp_status st = GRADCOMP_OK;
	if (!s->mounted)
		st = error_set(err, GRADCOMP_ERR_UNSUPPORTED, "%s is not mounted: mode link has no path to give",
		               s->source);
	else if (!(st = stage_open(s, err)) && !(st = source_reader_open(s->from, stage_run_wait(s->run), &r, err)))
		st = source_lookup(r, s->file, &sb, err);
	source_reader_close(r);
	return stage_group_agree(s->group, st, err);
}

/* Replaces the listing by this node's part of the dataset. */
static gradcomp_status take_shard(staging *s, gradcomp_error *err)
{
	gradcomp_status st = stage_group_manifest(s->group, &s->m, err);
	if (!st)
		st = stage_shard(&s->m, s->group->peers.node, s->group->peers.nnodes, err);
	memcpy(s->key, s->m.key, sizeof s->key);
	s->files = s->m.files;
	s->bytes = s->m.bytes;
	return stage_group_agree(s->group, st, err);
}

static gradcomp_status copy_source(staging *s, gradcomp_error *err)
{
	stage_run *run = s->run;
	gradcomp_status st = GRADCOMP_OK;
	if (run->options->mode == GRADCOMP_STAGE_SHARD && (st = take_shard(s, err)))
		return st;
	if (!(run->options->flags & GRADCOMP_STAGE_DRY_RUN))
		return stage_complete(s, err);
	if (run->options->mode != GRADCOMP_STAGE_SHARD && (st = stage_group_manifest(s->group, &s->m, err)))
		return st;
	return stage_group_agree(s->group, look_only(run, s, err), err);
}

static gradcomp_status fill_result(const staging *s, gradcomp_stage_result *r, gradcomp_error *err)
{
	bool link = s->run->options->mode == GRADCOMP_STAGE_LINK;
	int n = link ? snprintf(r->path, sizeof r->path, "%s", s->source)
	             : snprintf(r->path, sizeof r->path, "%s/%s/data%s%s", s->run->where, s->key, *s->file ? "/" : "",
	                        s->file);
	r->cached = s->cached;
	r->files = s->files;
	r->bytes = s->bytes;
	r->left_out = s->left_out;
	r->resumed = s->resumed;
	r->read = s->read;
	r->received = s->received;
	r->node = (uint32_t)s->group->peers.node;
	r->nnodes = (uint32_t)s->group->peers.nnodes;
	memcpy(r->key, s->key, sizeof r->key);
	memcpy(r->source, s->source, sizeof r->source);
	return n < (int)sizeof r->path
	               ? GRADCOMP_OK
	               : error_set(err, GRADCOMP_ERR_INVALID, "the path of stage.cache_dir is too long");
}

static gradcomp_status stage_once(stage_run *run, stage_group *group, gradcomp_stage_result *result,
                                  gradcomp_error *err)
{
	staging s = {.run = run, .group = group, .area = -1};
	atomic_store(&run->unwritable, false);
	stage_run_phase(run, GRADCOMP_STAGE_LIST, 0, 0);
	gradcomp_status st = find_source(&s, err);
	if (!st)
		st = run->options->mode == GRADCOMP_STAGE_LINK ? link_source(&s, err) : copy_source(&s, err);
	if (!st)
		st = fill_result(&s, result, err);
	run->reads = NULL;
	source_close(s.from);
	if (s.area >= 0)
		close(s.area);
	manifest_clear(&s.m);
	free(s.left_out_text);
	run->source = NULL;
	return st;
}

static gradcomp_status take_options(const gradcomp_stage_options *given, gradcomp_stage_options *o, gradcomp_error *err)
{
	*o = (gradcomp_stage_options){0};
	memcpy(o, given, given->struct_size < sizeof *o ? given->struct_size : sizeof *o);
	if (!o->source || !*o->source)
		return error_set(err, GRADCOMP_ERR_INVALID, "there is no source to stage");
	if (o->flags & ~FLAGS)
		return error_set(err, GRADCOMP_ERR_INVALID, "stage flags are 0x%x; 0x%x are known", o->flags, FLAGS);
	if (o->flags & GRADCOMP_STAGE_FOLLOW && o->flags & (GRADCOMP_STAGE_REWRITE | GRADCOMP_STAGE_SHARED))
		return error_set(
			err, GRADCOMP_ERR_INVALID,
			o->flags & GRADCOMP_STAGE_SHARED
				? "links=follow is not for a copy that all users share: it would show them what lies outside "
				  "of the source and its account may read"
				: "links can be followed or rewritten, not both");
	if (o->exclude && strlen(o->exclude) > EXCLUDE_MAX)
		return error_set(err, GRADCOMP_ERR_INVALID, "exclude has %zu bytes; it may have %u", strlen(o->exclude),
		                 EXCLUDE_MAX);
	if ((unsigned)o->mode > GRADCOMP_STAGE_LINK)
		return error_set(err, GRADCOMP_ERR_INVALID, "stage mode is %d; 0 (full) to 2 (link) are known",
		                 (int)o->mode);
	if (o->workers > 64)
		return error_set(err, GRADCOMP_ERR_INVALID, "workers is %u; it can be 1 to 64", o->workers);
	return GRADCOMP_OK;
}

/* A caller may ask for less than what is locked, but not for more or for another place. */
static gradcomp_status check_locks(const gradcomp_stage_options *o, const config *c, gradcomp_error *err)
{
	const char *lock = config_lock_of(c, SET_STAGE_MAX_BYTES);
	uint64_t most = (uint64_t)config_int(c, SET_STAGE_MAX_BYTES);
	if (lock && most && o->max_bytes > most)
		return error_set(err, GRADCOMP_ERR_INVALID,
		                 "max_bytes is %llu; stage.max_bytes is locked by %s, where it is '%s'",
		                 (unsigned long long)o->max_bytes, lock, config_str(c, SET_STAGE_MAX_BYTES));
	lock = config_lock_of(c, SET_STAGE_CACHE_DIR);
	if (lock && o->cache_dir && strcmp(o->cache_dir, config_str(c, SET_STAGE_CACHE_DIR)) != 0)
		return error_set(err, GRADCOMP_ERR_INVALID,
		                 "cache_dir is %s; stage.cache_dir is locked by %s, where it is '%s'", o->cache_dir,
		                 lock, config_str(c, SET_STAGE_CACHE_DIR));
	return GRADCOMP_OK;
}

gradcomp_status gradcomp_stage(const gradcomp_stage_options *options, gradcomp_stage_result *result,
                               gradcomp_error *err)
{
	double begin = clock_now();
	gradcomp_stage_options o;
	gradcomp_stage_result r = {.struct_size = sizeof r};
	config *c = NULL;
	stage_run *run = NULL;
	stage_group group;
	gradcomp_error error = {0};
	const char *source = NULL;
	char name[TEXT_NAME_MAX];
	gradcomp_status st = take_options(options, &o, &error);
	if (st || (st = config_load(NULL, &c, &error)) || (st = check_locks(&o, c, &error)))
		goto done;
	if (!(run = calloc(1, sizeof *run))) {
		st = error_set(&error, GRADCOMP_ERR_NOMEM, "out of memory");
		goto done;
	}
	run->options = &o;
	run->config = c;
	run->cache_dir = o.cache_dir ? o.cache_dir : config_str(c, SET_STAGE_CACHE_DIR);
	run->max_bytes = o.max_bytes ? o.max_bytes : (uint64_t)config_int(c, SET_STAGE_MAX_BYTES);
	run->workers = o.workers ? o.workers : STAGE_WORKERS;
	stage_run_phase(run, GRADCOMP_STAGE_LIST, 0, 0);
	st = stage_group_init(&group, run, o.group, &error);
	for (int i = 1; !st && group.acting; i++) {
		atomic_store(&run->changed, false);
		st = stage_once(run, &group, &r, &error);
		if (!st || !atomic_load(&run->changed) || i == ATTEMPTS)
			break;
		stage_run_notice(run, "%s; starting again", error.text);
		st = GRADCOMP_OK;
	}
	st = stage_group_result(&group, &r, st, &error);
	if (!st && o.group)
		st = group_commit(o.group, st, &error);
	source = st ? o.source : NULL;
	stage_group_free(&group);
	r.seconds = clock_now() - begin;
	r.struct_size = result->struct_size;
	memcpy(result, &r, result->struct_size < sizeof r ? result->struct_size : sizeof r);
done:
	free(run);
	config_free(c);
	/* A name below the source means little to who has several. */
	if (source && !strstr(error.text, source))
		return error_set(err, st, "%s: %s", gradcomp_printable(source, name, sizeof name), error.text);
	if (st && err)
		*err = error;
	return st;
}
