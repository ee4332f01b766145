/* Datasets that the site declares shared: which they are, and the user they belong to. */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pwd.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/text.h"
#include "io/cache/cache.h"
#include "io/source/nfs_url.h"
#include "config/config.h"

/* `origin` is FILE:LINE. The file and all directories above it must be root's; config.c has seen that
 * nobody else can write. */
static gradcomp_status check_origin(const char *name, const char *origin, gradcomp_error *err)
{
	char path[PATH_MAX], real[PATH_MAX];
	const char *colon = strrchr(origin, ':');
	struct stat st;
	snprintf(path, sizeof path, "%.*s", (int)(colon - origin), origin);
	if (!realpath(path, real))
		return text_cannot(err, "find", path);
	for (char *end = real + strlen(real);;) {
		if (lstat(*real ? real : "/", &st) < 0)
			return text_cannot(err, "look at", real);
		if (st.st_uid)
			return error_set(err, GRADCOMP_ERR_INSECURE,
			                 "%s: %s counts in a file of root's only, and %s belongs to uid %u", origin,
			                 name, *real ? real : "/", (unsigned)st.st_uid);
		if (!*real)
			return GRADCOMP_OK;
		while (end > real && *end != '/')
			end--;
		*end = 0;
	}
}

gradcomp_status cache_shared_owner(const struct config *c, uid_t *out, gradcomp_error *err)
{
	static const setting_id ids[] = {SET_STAGE_SHARED, SET_STAGE_SHARED_USER};
	const char *name = config_str(c, SET_STAGE_SHARED_USER), *place;
	struct passwd pw, *found = NULL;
	char buf[16384];
	for (int i = 0; i < 2; i++)
		for (size_t line = 0; (place = config_place(c, ids[i], line)); line++) {
			gradcomp_status st = check_origin(settings_table[ids[i]].row.name, place, err);
			if (st)
				return st;
		}
	*out = 0;
	if (!strcmp(name, "root"))
		return GRADCOMP_OK;
	errno = getpwnam_r(name, &pw, buf, sizeof buf, &found);
	if (!found)
		return errno ? text_cannot(err, "look up the account", name)
		             : error_set(err, GRADCOMP_ERR_NOTFOUND,
		                         "stage.shared_user is '%s'; there is no such account", name);
	*out = pw.pw_uid;
	return GRADCOMP_OK;
}

bool cache_is_shared(const struct config *c, const char *source)
{
	size_t length = strlen(source);
	for (const char *p = config_str(c, SET_STAGE_SHARED); *p;) {
		size_t n = strcspn(p, ","), bare = n;
		while (bare > 1 && p[bare - 1] == '/')
			bare--;
		if (bare == length && !memcmp(p, source, bare))
			return true;
		p += n + (p[n] == ',');
	}
	return false;
}

gradcomp_status cache_open_area(stage_run *run, bool create, int *area, gradcomp_error *err)
{
	char name[TEXT_NAME_MAX];
	uid_t owner;
	if (!(run->options->flags & GRADCOMP_STAGE_SHARED))
		return cache_user_area(run->cache_dir, create, area, run->where, err);
	gradcomp_status st = cache_shared_owner(run->config, &owner, err);
	if (st)
		return st;
	if (geteuid() != owner)
		return error_set(err, GRADCOMP_ERR_INSECURE,
		                 "you are uid %u; only %s (stage.shared_user) stages into the shared area",
		                 (unsigned)geteuid(), config_str(run->config, SET_STAGE_SHARED_USER));
	if (!owner && source_url_is(run->options->source))
		return error_set(err, GRADCOMP_ERR_INSECURE,
		                 "root does not read what a server sends: name another account in stage.shared_user "
		                 "(default: nobody), or mount %s",
		                 gradcomp_printable(run->options->source, name, sizeof name));
	return cache_shared_area(run->cache_dir, owner, create, area, run->where, err);
}

/* KEY.lease, where everybody may put a lease and nobody can remove another's. */
static int make_lease_dir(int area, const char *key)
{
	char name[STAGE_KEY_BYTES + 8];
	struct stat st;
	snprintf(name, sizeof name, "%s.lease", key);
	if (mkdirat(area, name, 0700) < 0 && errno != EEXIST)
		return -1;
	int fd = openat(area, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
	int result = fd < 0 || fstat(fd, &st) < 0 || cache_gate_make(area, key) < 0 || fchmod(fd, 01777) < 0 ? -1 : 0;
	int e = errno;
	if (fd >= 0)
		close(fd);
	errno = e;
	return result;
}

gradcomp_status cache_open_to_all(stage_run *run, int area, const char *key, int temp, const stage_manifest *m,
                                  gradcomp_error *err)
{
	gradcomp_status st = GRADCOMP_OK;
	dirwalk w;
	int data = openat(temp, "data", O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
	if (data < 0 || make_lease_dir(area, key) < 0) {
		st = cache_write_failed(run, key, err);
		if (data >= 0)
			close(data);
		return st;
	}
	dirwalk_begin(&w, data);
	/* From the leaves up: a directory of mode 0500 is entered all the same. */
	for (size_t i = m->n; !st && i-- > 0;) {
		const stage_entry *e = &m->entries[i];
		/* A user who may write at the source may not write what all others use. */
		mode_t mode = (e->mode & ~022u) | (e->type == STAGE_DIR ? 0555 : 0444);
		const char *base;
		if ((e->type != STAGE_DIR && e->type != STAGE_FILE) || mode == e->mode)
			continue;
		int dir = dirwalk_parent(&w, e->path, &base);
		if (dir < 0 || (*e->path ? fchmodat(dir, base, mode, 0) : fchmod(data, mode)) < 0)
			st = cache_write_failed(run, e->path, err);
		else
			st = stage_run_tick(run, err);
	}
	/* Nobody could enter before. */
	if (!st && fchmod(temp, 0755) < 0)
		st = cache_write_failed(run, key, err);
	dirwalk_end(&w);
	close(data);
	return st;
}

/* A copy that only its owner, or root, can have put there and can change. */
static bool trusted(int area, const char *key, uid_t owner)
{
	struct stat st;
	return fstatat(area, key, &st, AT_SYMLINK_NOFOLLOW) == 0 && S_ISDIR(st.st_mode) &&
	       (st.st_uid == 0 || st.st_uid == owner) && !(st.st_mode & 022);
}

bool cache_use_shared(stage_run *run, stage_manifest *m, const char *source, const char *key, int *area)
{
	const gradcomp_stage_options *o = run->options;
	char where[sizeof run->where], damage[508];
	gradcomp_error why = {0};
	struct stat sb;
	uid_t owner;
	int shared = -1;
	/* A copy that may have to be replaced must be the user's own. */
	if (o->flags & (GRADCOMP_STAGE_SHARED | GRADCOMP_STAGE_CONTENT) || !cache_is_shared(run->config, source))
		return false;
	gradcomp_status st = cache_shared_owner(run->config, &owner, &why);
	if (!st)
		st = cache_shared_area(run->cache_dir, owner, false, &shared, where, &why);
	if (st == GRADCOMP_ERR_NOTFOUND ||
	    (!st && fstatat(shared, key, &sb, AT_SYMLINK_NOFOLLOW) < 0 && errno == ENOENT))
		goto no; /* the site has not staged it here */
	*damage = 0;
	if (!st && !trusted(shared, key, owner))
		st = error_set(&why, GRADCOMP_ERR_INSECURE, "others than stage.shared_user could write it");
	if (!st)
		st = cache_lease(shared, key, o->hold_pid ? o->hold_pid : getpid(), o->holder, &why);
	int found = st ? (int)st : cache_published(run, m, shared, key, o->flags & GRADCOMP_STAGE_VERIFY, damage, &why);
	if (found == 1) {
		close(*area);
		*area = shared;
		memcpy(run->where, where, sizeof where);
		return true;
	}
	stage_run_notice(run, "the shared copy is not used: %s", *damage ? damage : why.text);
no:
	if (shared >= 0)
		close(shared);
	return false;
}
