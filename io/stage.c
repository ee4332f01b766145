/* gradcomp_stage(): from a source to a published copy. */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "cache/cache.h"
#include "config.h"
#include "exchange/exchange.h"
#include "staging.h"

#define OPEN_DIR (O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC)
#define ATTEMPTS 3
#define FLAGS (GRADCOMP_STAGE_VERIFY | GRADCOMP_STAGE_DRY_RUN)

/* ---- one source, one listing ---------------------------------------------- */

struct staging {
	stage_run *run;
	stage_manifest m;
	source *from;
	int area;
	bool cached;
	uint64_t resumed;
};

static gradcomp_status open_source(stage_run *run, struct staging *s, gradcomp_error *err)
{
	gradcomp_status status =
		source_open(run->config, run->options->source, stage_run_wait(run), &s->from, err);
	if (status)
		return status;
	run->source = source_name(s->from);
	if (!(s->m.source = strdup(run->source)))
		return error_set(err, GRADCOMP_ERR_NOMEM, "out of memory");
	return GRADCOMP_OK;
}

/* A copy of the source inside the source would have no end. */
static gradcomp_status check_apart(stage_run *run, const char *source, gradcomp_error *err)
{
	char name[STAGE_NAME_MAX], real[PATH_MAX];
	size_t n = strlen(source);
	if (!realpath(run->where, real))
		return stage_fail(err, "find", run->where);
	if (strncmp(real, source, n) || (real[n] && real[n] != '/' && n > 1))
		return GRADCOMP_OK;
	return error_set(err, GRADCOMP_ERR_INVALID,
	                 "the cache %s is inside %s; stage something smaller or set stage.cache_dir", run->where,
	                 gradcomp_printable(source, name, sizeof name));
}

static bool exists(int area, const char *key)
{
	struct stat st;
	return fstatat(area, key, &st, AT_SYMLINK_NOFOLLOW) == 0;
}

/* Until the lock is ours (*lock >= 0) or, when there was no copy, somebody has
 * published one. */
static gradcomp_status wait_turn(stage_run *run, int area, const char *key, bool damaged, int *lock,
                                 gradcomp_error *err)
{
	gradcomp_status status = GRADCOMP_OK;
	int watch = -1;
	for (bool waiting = false; !status; waiting = true) {
		int got = stage_lock_try(area, key, lock, &run->pid);
		if (got < 0)
			status = stage_write_failed(run, "the lock", err);
		if (got || (!damaged && exists(area, key)))
			break;
		if (!waiting) {
			stage_run_phase(run, GRADCOMP_STAGE_WAIT, 0, 0);
			watch = stage_lock_watch(area);
			continue;
		}
		/* A holder that dies is noticed within half a second. */
		for (int i = 0; i < 5 && !(status = stage_run_tick(run, err)); i++)
			if (stage_lock_sleep(watch, 100))
				break;
	}
	if (watch >= 0)
		close(watch);
	return status;
}

static gradcomp_status make_room(stage_run *run, struct staging *s, gradcomp_error *err)
{
	uint64_t bytes, inodes;
	struct statvfs fs;
	if (fstatvfs(s->area, &fs) < 0 || !fs.f_frsize)
		return stage_fail(err, "ask for the free space of", run->where);
	stage_needs(&s->m, fs.f_frsize, &bytes, &inodes);
	return cache_make_room(run, s->area, s->m.key, bytes, inodes, err);
}

static gradcomp_status fill(stage_run *run, struct staging *s, int temp, gradcomp_error *err)
{
	const exchange_ring ring = {.nnodes = 1};
	exchange_counts counts;
	stage_filling f;
	exchange *x;
	gradcomp_status status = stage_fill_begin(run, &s->m, temp, &f, err);
	exchange_plan plan = {.run = run, .m = &s->m, .ring = &ring, .from = s->from, .server = true, .needed = f.wanted,
	                      .wanted = f.wanted, .temp = temp, .data = f.data};
	if (!status && !(status = exchange_begin(&plan, &x, err)))
		status = exchange_end(x, true, &counts, err);
	if (!status)
		status = stage_fill_end(run, &s->m, &f, err);
	s->resumed = f.resumed;
	stage_fill_free(&f);
	return status;
}

/* With the lock held: what a dead producer left is gone on with. */
static gradcomp_status produce(stage_run *run, struct staging *s, gradcomp_error *err)
{
	char name[STAGE_KEY_BYTES + 8];
	gradcomp_status status;
	int temp = -1;
	stage_sweep(s->area, s->m.key);
	snprintf(name, sizeof name, "%s.tmp", s->m.key);
	run->bytes_total = s->m.bytes;
	if ((mkdirat(s->area, name, 0700) < 0 && errno != EEXIST) || (temp = openat(s->area, name, OPEN_DIR)) < 0)
		return stage_write_failed(run, name, err);
	stage_journal_read(&s->m, temp);
	if ((status = make_room(run, s, err)) || (status = fill(run, s, temp, err)) ||
	    (status = stage_unchanged(run, &s->m, s->from, err)))
		goto fail;
	if ((run->options->flags & GRADCOMP_STAGE_VERIFY) && (status = stage_verify(run, &s->m, temp, err)))
		goto fail;
	stage_run_phase(run, GRADCOMP_STAGE_SYNC, s->m.files, s->m.bytes);
	if ((status = stage_run_tick(run, err)) || (status = stage_publish(run, &s->m, s->area, temp, err)))
		goto fail;
	close(temp);
	return GRADCOMP_OK;
fail:
	close(temp);
	if (stage_remove(s->area, name) < 0)
		stage_run_notice(run, "%s/%s could not be removed", run->where, name);
	return status;
}

static gradcomp_status find_or_produce(stage_run *run, struct staging *s, gradcomp_error *err)
{
	bool deep = run->options->flags & GRADCOMP_STAGE_VERIFY;
	char damage[sizeof err->text];
	int lock = -1;
	for (;;) {
		int found = stage_published(run, &s->m, s->area, deep, damage, err);
		if (found < 0) {
			if (lock >= 0)
				stage_lock_release(s->area, s->m.key, lock);
			return (gradcomp_status)found;
		}
		if (found || lock >= 0) {
			s->cached = found;
			break;
		}
		gradcomp_status status = wait_turn(run, s->area, s->m.key, *damage, &lock, err);
		if (status)
			return status;
	}
	gradcomp_status status = GRADCOMP_OK;
	if (!s->cached) {
		if (*damage)
			stage_run_notice(run, "the cached copy is damaged (%s): copying again", damage);
		status = produce(run, s, err);
	}
	if (!status)
		stage_touch(s->area, s->m.key);
	if (lock >= 0)
		stage_lock_release(s->area, s->m.key, lock);
	return status;
}

/* Free space is asked of the area, or of the place where it would be. */
static gradcomp_status look_only(stage_run *run, struct staging *s, gradcomp_error *err)
{
	char damage[sizeof err->text];
	if (s->area < 0) {
		char *dir = strdup(run->where);
		for (char *slash; dir && s->area < 0 && (slash = strrchr(dir, '/')); *slash = 0)
			s->area = open(slash == dir ? "/" : dir, O_PATH | O_DIRECTORY | O_CLOEXEC);
		free(dir);
		return stage_room(run, &s->m, s->area, err);
	}
	int found = stage_published(run, &s->m, s->area, run->options->flags & GRADCOMP_STAGE_VERIFY, damage, err);
	if (found < 0)
		return (gradcomp_status)found;
	s->cached = found;
	if (*damage)
		stage_run_notice(run, "the cached copy is damaged (%s)", damage);
	return found ? GRADCOMP_OK : stage_room(run, &s->m, s->area, err);
}

static gradcomp_status stage_once(stage_run *run, gradcomp_stage_result *result, gradcomp_error *err)
{
	struct staging s = {.run = run, .area = -1};
	bool dry = run->options->flags & GRADCOMP_STAGE_DRY_RUN;
	char size[32], limit[32];
	gradcomp_status status;
	if ((status = open_source(run, &s, err)))
		goto done;
	status = stage_area_open(run->cache_dir, !dry, &s.area, run->where, err);
	if (status && !(dry && status == GRADCOMP_ERR_NOTFOUND))
		goto done;
	if ((!status && source_is_mounted(s.from) && (status = check_apart(run, s.m.source, err))) ||
	    (status = stage_scan(run, &s.m, s.from, err)))
		goto done;
	if (run->max_bytes && s.m.bytes > run->max_bytes) {
		status = error_set(err, GRADCOMP_ERR_RANGE, "the dataset has %s; stage.max_bytes allows %s",
		                   gradcomp_size_text(s.m.bytes, size), gradcomp_size_text(run->max_bytes, limit));
		goto done;
	}
	status = dry ? look_only(run, &s, err) : find_or_produce(run, &s, err);
	result->cached = s.cached;
	result->files = s.m.files;
	result->bytes = s.m.bytes;
	result->resumed = s.resumed;
	memcpy(result->key, s.m.key, sizeof result->key);
	snprintf(result->source, sizeof result->source, "%s", s.m.source);
	const char *file = source_is_file(s.from);
	if (snprintf(result->path, sizeof result->path, "%s/%s/data%s%s", run->where, s.m.key, file ? "/" : "",
	             file ? file : "") >= (int)sizeof result->path)
		status = error_set(err, GRADCOMP_ERR_INVALID, "the path of stage.cache_dir is too long");
done:
	source_close(s.from);
	if (s.area >= 0)
		close(s.area);
	stage_manifest_clear(&s.m);
	run->source = NULL;
	return status;
}

/* ---- options ---------------------------------------------------------------- */

static gradcomp_status take_options(const gradcomp_stage_options *given, gradcomp_stage_options *o,
                                    gradcomp_error *err)
{
	*o = (gradcomp_stage_options){0};
	memcpy(o, given, given->struct_size < sizeof *o ? given->struct_size : sizeof *o);
	if (!o->source || !*o->source)
		return error_set(err, GRADCOMP_ERR_INVALID, "there is no source to stage");
	if (o->flags & ~FLAGS)
		return error_set(err, GRADCOMP_ERR_INVALID, "stage flags are 0x%x; 0x%x are known", o->flags,
		                 FLAGS);
	if (o->workers > 64)
		return error_set(err, GRADCOMP_ERR_INVALID, "workers is %u; it can be 1 to 64", o->workers);
	return GRADCOMP_OK;
}

gradcomp_status gradcomp_stage(const gradcomp_stage_options *options, gradcomp_stage_result *result,
                               gradcomp_error *err)
{
	double begin = stage_clock();
	gradcomp_stage_options o;
	gradcomp_stage_result r = {.struct_size = sizeof r};
	config *c = NULL;
	stage_run *run = NULL;
	gradcomp_error error = {0};
	gradcomp_status status = take_options(options, &o, &error);
	if (status || (status = config_load(NULL, &c, &error)))
		goto done;
	if (!(run = calloc(1, sizeof *run))) {
		status = error_set(&error, GRADCOMP_ERR_NOMEM, "out of memory");
		goto done;
	}
	run->options = &o;
	run->config = c;
	run->cache_dir = o.cache_dir ? o.cache_dir : config_str(c, "stage.cache_dir");
	run->max_bytes = o.max_bytes ? o.max_bytes : (uint64_t)config_int(c, "stage.max_bytes");
	run->workers = o.workers ? o.workers : (uint32_t)config_int(c, "stage.workers");
	for (int i = 1;; i++) {
		atomic_store(&run->changed, false);
		status = stage_once(run, &r, &error);
		if (!status || !atomic_load(&run->changed) || i == ATTEMPTS)
			break;
		stage_run_notice(run, "%s; starting again", error.text);
	}
	r.seconds = stage_clock() - begin;
	r.struct_size = result->struct_size;
	memcpy(result, &r, result->struct_size < sizeof r ? result->struct_size : sizeof r);
done:
	free(run);
	config_free(c);
	if (status && err)
		*err = error;
	return status;
}
