/* Datasets that the site declares shared: whose they are, and which. */
#include <errno.h>
#include <limits.h>
#include <pwd.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cache/cache.h"
#include "config.h"

/* `origin` is FILE:LINE, or a word: then the value is the default. The file and all
 * directories above it must be root's; config.c has seen that nobody else can write. */
static gradcomp_status check_origin(const char *name, const char *origin, gradcomp_error *err)
{
	char path[PATH_MAX], real[PATH_MAX];
	const char *colon = strrchr(origin, ':');
	struct stat st;
	if (origin[0] != '/' || !colon)
		return GRADCOMP_OK;
	snprintf(path, sizeof path, "%.*s", (int)(colon - origin), origin);
	if (!realpath(path, real))
		return stage_fail(err, "find", path);
	for (char *end = real + strlen(real);;) {
		if (lstat(*real ? real : "/", &st) < 0)
			return stage_fail(err, "look at", real);
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
	static const char *const names[] = {"stage.shared", "stage.shared_user"};
	const char *name = config_str(c, "stage.shared_user");
	struct passwd pw, *found = NULL;
	char buf[16384];
	for (int i = 0; i < 2; i++) {
		gradcomp_status status = check_origin(names[i], config_origin(c, names[i]), err);
		if (status)
			return status;
	}
	*out = 0;
	if (!strcmp(name, "root"))
		return GRADCOMP_OK;
	errno = getpwnam_r(name, &pw, buf, sizeof buf, &found);
	if (!found)
		return errno ? stage_fail(err, "look up the account", name)
		             : error_set(err, GRADCOMP_ERR_NOTFOUND, "stage.shared_user is '%s'; there is no such account",
		                         name);
	*out = pw.pw_uid;
	return GRADCOMP_OK;
}

bool cache_is_shared(const struct config *c, const char *source)
{
	size_t length = strlen(source);
	for (const char *p = config_str(c, "stage.shared"); *p;) {
		size_t n = strcspn(p, ","), bare = n;
		while (bare > 1 && p[bare - 1] == '/')
			bare--;
		if (bare == length && !memcmp(p, source, bare))
			return true;
		p += n + (p[n] == ',');
	}
	return false;
}
