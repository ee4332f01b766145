/* Giving up root for good. */
#include "become.h"

#include <errno.h>
#include <grp.h>
#include <pwd.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "commands.h"

#define NOGROUP 65534

int become_user(uid_t uid)
{
	const struct passwd *pw = getpwuid(uid);
	gid_t gid = pw ? pw->pw_gid : NOGROUP;

	if (setgroups(1, &gid) < 0 || setresgid(gid, gid, gid) < 0 || setresuid(uid, uid, uid) < 0)
		return -1;
	if (uid && setuid(0) == 0) {
		errno = EPERM;
		return -1;
	}
	return 0;
}

struct wanted {
	const char *name;
	char *out;
	size_t capacity;
	int fits;
};

static void find(void *ctx, const char *name, const char *value, const char *origin, const char *help)
{
	struct wanted *w = ctx;

	(void)origin;
	(void)help;
	if (!strcmp(name, w->name))
		w->fits = snprintf(w->out, w->capacity, "%s", value) < (int)w->capacity;
}

int value_of_setting(const char *name, char *out, size_t capacity)
{
	struct wanted w = {name, out, capacity, 0};
	gradcomp_error err;

	if (gradcomp_setting_each(find, &w, &err))
		return failed(&err);
	if (!w.fits)
		fprintf(stderr, "gradcomp: the setting %s is too long\n", name);
	return w.fits ? 0 : 1;
}

int become_shared_user(void)
{
	char name[256];
	const struct passwd *pw;

	if (geteuid() != 0)
		return 0;
	if (value_of_setting("stage.shared_user", name, sizeof name))
		return 1;
	pw = getpwnam(name);
	if (!pw)
		fprintf(stderr, "gradcomp: stage.shared_user is '%s'; there is no such account\n", name);
	else if (pw->pw_uid && become_user(pw->pw_uid) < 0)
		fprintf(stderr, "gradcomp: cannot become %s: %s\n", name, strerror(errno));
	else
		return 0;
	return 1;
}
