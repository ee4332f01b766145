/* Published copies: checking for one, and publishing one. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/text.h"
#include "io/manifest/manifest.h"
#include "io/cache/cache.h"

#define OPEN_DIR (O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC)
#define DAMAGE_BYTES sizeof((gradcomp_error *)0)->text

struct check {
	stage_run *run;
	stage_manifest *m;
};

/* Returns true when sizes and times are as they were when the copy was published. A file that was written to since
 * is newer than the manifest, which was written last. */
static bool looks_right(dirwalk *w, const stage_entry *e, int64_t published)
{
	const char *base;
	struct stat st;
	int dir = dirwalk_parent(w, e->path, &base);
	if (dir < 0 || (*e->path ? fstatat(dir, base, &st, AT_SYMLINK_NOFOLLOW) : fstat(dir, &st)) < 0)
		return false;
	if (e->type == STAGE_DIR)
		return S_ISDIR(st.st_mode);
	if (e->type == STAGE_SYMLINK)
		return S_ISLNK(st.st_mode);
	if (!S_ISREG(st.st_mode) || e->type == STAGE_HARDLINK)
		return S_ISREG(st.st_mode);
	return (uint64_t)st.st_size == e->size &&
	       (st.st_mtim.tv_sec == e->mtime_ns / 1000000000 || st.st_mtim.tv_sec <= published);
}

static gradcomp_status check_file(void *ctx, stage_worker *w, size_t i, gradcomp_error *err)
{
	struct check *c = ctx;
	const stage_entry *e = &c->m->entries[i];
	char name[TEXT_NAME_MAX];
	if (e->type != STAGE_FILE)
		return GRADCOMP_OK;
	int right = cache_check_file(c->run, w, e);
	atomic_fetch_add(&c->run->files, 1);
	if (right == 1)
		return GRADCOMP_OK;
	return error_set(err, right < 0 && errno == ECANCELED ? GRADCOMP_ERR_STATE : GRADCOMP_ERR_MISMATCH,
	                 right < 0 ? "%s cannot be read" : "%s does not have its checksum",
	                 gradcomp_printable(e->path, name, sizeof name));
}

gradcomp_status cache_verify(stage_run *run, stage_manifest *m, int dir, gradcomp_error *err)
{
	struct check c = {run, m};
	int data = openat(dir, "data", OPEN_DIR);
	if (data < 0)
		return text_cannot(err, "open the copy of", m->source);
	stage_run_phase(run, GRADCOMP_STAGE_CHECK, m->files, m->bytes);
	gradcomp_status st = stage_run_each(run, m->n, NULL, data, check_file, &c, err);
	close(data);
	return st;
}

/* The checksums for a listing, or where there is none the list that is the key's. */
static bool read_manifest(stage_manifest *m, int dir, const char *key, const char **why)
{
	if (m->n)
		return manifest_read(m, dir, "manifest", why);
	if (!manifest_load(m, dir, "manifest", why))
		return false;
	if (!strcmp(m->key, key))
		return true;
	manifest_clear(m);
	*why = "its manifest is that of another copy";
	return false;
}

/* The quick look: *damage stays empty when all is well. */
static void look(stage_manifest *m, int dir, const char *key, char damage[DAMAGE_BYTES])
{
	char name[TEXT_NAME_MAX];
	const char *why;
	struct stat st;
	dirwalk w;
	if (!read_manifest(m, dir, key, &why)) {
		snprintf(damage, DAMAGE_BYTES, "%s", why);
		return;
	}
	int data = openat(dir, "data", OPEN_DIR);
	if (data < 0 || fstatat(dir, "manifest", &st, AT_SYMLINK_NOFOLLOW) < 0) {
		snprintf(damage, DAMAGE_BYTES, "its data cannot be opened");
		if (data >= 0)
			close(data);
		return;
	}
	dirwalk_begin(&w, data);
	for (size_t i = 0; !*damage && i < m->n; i++)
		if (!looks_right(&w, &m->entries[i], st.st_mtim.tv_sec))
			snprintf(damage, DAMAGE_BYTES, "%s is missing or was altered",
			         gradcomp_printable(m->entries[i].path, name, sizeof name));
	dirwalk_end(&w);
	close(data);
}

int cache_published(stage_run *run, stage_manifest *m, int area, const char *key, bool deep, char damage[DAMAGE_BYTES],
                    gradcomp_error *err)
{
	damage[0] = 0;
	int dir = openat(area, key, OPEN_DIR);
	if (dir < 0 && errno == ENOENT)
		return 0;
	if (dir < 0)
		snprintf(damage, DAMAGE_BYTES, "it cannot be opened");
	else
		look(m, dir, key, damage);
	gradcomp_status st = GRADCOMP_OK;
	if (!*damage && deep) {
		gradcomp_error why;
		st = cache_verify(run, m, dir, &why);
		if (st == GRADCOMP_ERR_MISMATCH) {
			memcpy(damage, why.text, DAMAGE_BYTES);
			st = GRADCOMP_OK;
		} else if (st && err)
			*err = why;
	}
	if (dir >= 0)
		close(dir);
	if (*damage) /* its checksums say nothing about a copy to come */
		for (size_t i = 0; i < m->n; i++)
			m->entries[i].sealed = false;
	return st ? st : !*damage;
}

void cache_touch(int area, const char *key)
{
	int dir = openat(area, key, OPEN_DIR);
	int fd = dir < 0 ? -1 : openat(dir, "used", O_WRONLY | O_CREAT | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC, 0600);
	if (fd >= 0) {
		futimens(fd, NULL);
		close(fd);
	}
	if (dir >= 0)
		close(dir);
}

/* Puts it in the place of a damaged copy, whose rest a failure leaves to cache_sweep(). At every moment there is
 * one, where the filesystem can exchange names. */
static int replace(int area, const char *name, const char *key)
{
	char gone[STAGE_KEY_BYTES + 16];
	if (renameat2(area, name, area, key, RENAME_EXCHANGE) == 0) {
		(void)!dirwalk_remove(area, name);
		return 0;
	}
	if ((errno != EINVAL && errno != ENOSYS) || cache_rename_away(area, key, key, gone) < 0 ||
	    cache_rename_new(area, name, key) < 0)
		return -1;
	(void)!dirwalk_remove(area, gone);
	return 0;
}

/* The order: the data and its directories, the manifest, the temporary
 * directory's own names, the new name, the directory that has it. A machine
 * that dies at any point comes back with no copy or a whole one. */
gradcomp_status cache_publish(stage_run *run, const stage_manifest *m, int area, const char *key, int temp,
                              gradcomp_error *err)
{
	char name[STAGE_KEY_BYTES + 8];
	snprintf(name, sizeof name, "%s.tmp", key);
	if (syncfs(temp) < 0 || manifest_write(m, temp, "manifest") < 0 || fsync(temp) < 0)
		return cache_write_failed(run, "the manifest", err);
	if (cache_rename_new(area, name, key) < 0 && (errno != EEXIST || replace(area, name, key) < 0))
		return cache_write_failed(run, key, err);
	if (fsync(area) < 0)
		return cache_write_failed(run, key, err);
	unlinkat(temp, "journal", 0);
	return GRADCOMP_OK;
}
