/* Giving up root for good. */
#include "tools/drop_privs.h"

#include <errno.h>
#include <grp.h>
#include <pwd.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "tools/commands.h"

#define NOGROUP 65534
#define ACCOUNT_BYTES 16384

void drop_privs_account(uid_t uid, char out[ACCOUNT_NAME])
{
	struct passwd pw, *found = NULL;
	char buf[ACCOUNT_BYTES];
	if (getpwuid_r(uid, &pw, buf, sizeof buf, &found) || !found)
		snprintf(out, ACCOUNT_NAME, "%u", (unsigned)uid);
	else
		snprintf(out, ACCOUNT_NAME, "%s", pw.pw_name);
}

static int become(uid_t uid, gid_t gid)
{
	if (setresgid(gid, gid, gid) < 0 || setresuid(uid, uid, uid) < 0)
		return -1;
	if (uid && setuid(0) == 0) {
		errno = EPERM;
		return -1;
	}
	return 0;
}

int drop_privs_to_user(uid_t uid)
{
	struct passwd pw, *found = NULL;
	char buf[ACCOUNT_BYTES];
	gid_t gid = getpwuid_r(uid, &pw, buf, sizeof buf, &found) || !found ? NOGROUP : pw.pw_gid;
	return setgroups(1, &gid) < 0 ? -1 : become(uid, gid);
}

int drop_privs_setting(setting_id id, char *out, size_t capacity)
{
	gradcomp_error err;
	config *c;
	if (config_load(NULL, &c, &err))
		return command_failed(&err);
	bool fits = snprintf(out, capacity, "%s", config_str(c, id)) < (int)capacity;
	config_free(c);
	if (!fits)
		fprintf(stderr, "gradcomp: the setting %s is too long\n", settings_table[id].row.name);
	return fits ? 0 : 1;
}

int drop_privs_to_shared_user(void)
{
	struct passwd pw, *found = NULL;
	char name[256], buf[ACCOUNT_BYTES];
	if (geteuid() != 0)
		return 0;
	if (drop_privs_setting(SET_STAGE_SHARED_USER, name, sizeof name))
		return 1;
	if (getpwnam_r(name, &pw, buf, sizeof buf, &found) || !found)
		fprintf(stderr, "gradcomp: stage.shared_user is '%s'; there is no such account\n", name);
	else if (pw.pw_uid && (initgroups(name, pw.pw_gid) < 0 || become(pw.pw_uid, pw.pw_gid) < 0))
		fprintf(stderr, "gradcomp: cannot become %s: %s\n", name, strerror(errno));
	else
		return 0;
	return 1;
}
