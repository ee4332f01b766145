#include "spank/prolog.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <pwd.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "spank/exec_helper.h"
#include "spank/spank_log.h"

#define PLAN_TIMEOUT 20     /* s: for the settings */
#define CLEAN_TIMEOUT 60    /* s */
#ifdef __SANITIZE_ADDRESS__ /* whose shadow takes it all */
#define MEMORY 0
#else
#define MEMORY ((size_t)512 << 20)
#endif
#define NOBODY 65534
#define CONF GRADCOMP_SYSCONFDIR "/gradcomp/gradcomp.conf"
#define DROP_INS GRADCOMP_SYSCONFDIR "/gradcomp/conf.d"

static void log_line(void *ctx, const char *line, bool passing)
{
	(void)ctx;
	if (!passing)
		log_info("%s", line);
}

#define PROLOG "prolog"
#define UNSEEN "unseen"

/* Opens the directory, which is root's. A file ID says that steps of job ID staged as the job's
 * user; ID.shared, that the prolog did, as the account in the file; PROLOG, that slurmd has run a
 * prolog of this plugin since the node booted; UNSEEN, that it has not, and that a job was told.
 * -1 and errno. */
static int records(const arguments *args)
{
	struct stat st;
	int dir;
	bool made = mkdir(args->records, 0755) == 0;
	if (!made && errno != EEXIST)
		return -1;
	dir = open(args->records, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
	if (dir >= 0 && (fstat(dir, &st) < 0 || st.st_uid != 0 || st.st_mode & 022)) {
		close(dir);
		errno = EPERM;
		return -1;
	}
	if (made)
		(void)!fchmod(dir, 0755);
	return dir;
}

static void seen(const arguments *args)
{
	int dir = records(args),
	    fd = dir < 0 ? -1 : openat(dir, PROLOG, O_WRONLY | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0644);
	if (fd >= 0) {
		(void)!fchmod(fd, 0644);
		close(fd);
	}
	if (dir >= 0) {
		unlinkat(dir, UNSEEN, 0);
		close(dir);
	}
}

/* Returns true when slurmd runs no prologs and epilogs of ours, and no job has been told. */
static bool unseen(const arguments *args)
{
	struct stat st;
	int dir = records(args), fd = -1;
	if (dir >= 0 && fstatat(dir, PROLOG, &st, AT_SYMLINK_NOFOLLOW) < 0 && errno == ENOENT)
		fd = openat(dir, UNSEEN, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0644);
	if (fd >= 0)
		close(fd);
	if (dir >= 0)
		close(dir);
	return fd >= 0;
}

static void record(const arguments *args, const char *name, const char *text)
{
	int dir = records(args),
	    fd = dir < 0 ? -1 : openat(dir, name, O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC, 0600);
	if (fd < 0 || (*text && write(fd, text, strlen(text)) < 0))
		log_info("cannot write %s/%s, and the epilog will not clean up: %s", args->records, name,
		         strerror(errno));
	if (fd >= 0)
		close(fd);
	if (dir >= 0)
		close(dir);
}

/* Reads and removes a record; false when there is none. */
static bool take_record(const arguments *args, const char *name, char *text, size_t size)
{
	int dir = records(args), fd = dir < 0 ? -1 : openat(dir, name, O_RDONLY | O_NOFOLLOW | O_CLOEXEC);
	ssize_t n = fd < 0 ? -1 : read(fd, text, size - 1);
	if (n >= 0) {
		text[n] = 0;
		unlinkat(dir, name, 0);
	}
	if (fd >= 0)
		close(fd);
	if (dir >= 0)
		close(dir);
	return n >= 0;
}

bool prolog_note_staging(spank_t sp, const arguments *args)
{
	char name[24];
	uint32_t id;
	if (spank_get_item(sp, S_JOB_ID, &id) != ESPANK_SUCCESS || geteuid() != 0)
		return false;
	snprintf(name, sizeof name, "%u", (unsigned)id);
	record(args, name, "");
	if (!unseen(args))
		return false;
	log_error(PROLOG_UNSEEN);
	return true;
}

/* -1: there is no such account. */
static int account(const char *name, exec_user *u)
{
	/* cppcheck-suppress getpwnamCalled ; a prolog has one thread */
	struct passwd *p = getpwnam(name);
	if (!p)
		return -1;
	u->uid = p->pw_uid;
	u->gid = p->pw_gid;
	u->ngroups = sizeof u->groups / sizeof *u->groups;
	if (getgrouplist(name, p->pw_gid, u->groups, &u->ngroups) < 0)
		u->ngroups = sizeof u->groups / sizeof *u->groups; /* the first of many */
	return 0;
}

static const exec_user nobody = {.uid = NOBODY, .gid = NOBODY, .groups = {NOBODY}, .ngroups = 1};

/* Its exit status; -1 with the reason logged. Staging is killed at the timeout, since what it has
 * copied stays. */
static int helper(const arguments *args, char *const *argv, const exec_user *user, int timeout, bool stages,
                  exec_helper *r)
{
	char conf[PATH_MAX + 32], why[512];
	char *env[] = {"PATH=/usr/local/bin:/usr/bin:/bin", "HOME=/", NULL, NULL};
	if (args->conf[0]) {
		snprintf(conf, sizeof conf, "GRADCOMP_CONF=%s", args->conf);
		env[2] = conf;
	}
	*r = (exec_helper){.argv = argv,
	                   .env = env,
	                   .timeout = timeout,
	                   .kill_at_timeout = stages,
	                   .line = log_line,
	                   .user = user};
	/* A user may have filled his cache with anything, which must not take the node's memory. Staging
	 * has no such limit: its datasets are the site's own. */
	if (!stages) {
		r->cpu = timeout;
		r->memory = MEMORY;
	}
	int status = exec_helper_run(r, why, sizeof why);
	if (status < 0)
		log_info("%s", why);
	return status;
}

/* Returns true when the file in `dir` has a line "prolog...". Nothing but a file is read, and nothing waited for. */
static bool has_prolog_line(int dir, const char *name)
{
	char line[256];
	struct stat st;
	bool found = false;
	int fd = openat(dir, name, O_RDONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
	FILE *f = fd >= 0 && fstat(fd, &st) == 0 && S_ISREG(st.st_mode) ? fdopen(fd, "r") : NULL;
	while (f && !found && fgets(line, sizeof line, f))
		found = !strncmp(line + strspn(line, " \t"), "prolog", 6);
	if (f)
		fclose(f);
	else if (fd >= 0)
		close(fd);
	return found;
}

/* Most sites have no such line, and their jobs should not wait for the command to find that out.
 * `drop_ins`: NULL, or the folder whose files belong to it. */
static bool may_stage(const char *conf, const char *drop_ins)
{
	bool found = has_prolog_line(AT_FDCWD, conf);
	DIR *d = found || !drop_ins ? NULL : opendir(drop_ins);
	for (struct dirent *de; d && !found && (de = readdir(d));) {
		size_t n = strlen(de->d_name);
		found = n > 5 && !strcmp(de->d_name + n - 5, ".conf") && has_prolog_line(dirfd(d), de->d_name);
	}
	if (d)
		closedir(d);
	return found;
}

int prolog_job_begin(spank_t sp, int ac, char **av)
{
	static arguments args;
	static exec_helper r;
	char id_text[24], name[40], drop_privs_account[64];
	exec_user user, planner = nobody;
	uint32_t id;
	int timeout;
	arguments_parse(&args, ac, av);
	if (args.error[0])
		return 0;
	seen(&args);
	if (spank_get_item(sp, S_JOB_ID, &id) != ESPANK_SUCCESS ||
	    !may_stage(args.conf[0] ? args.conf : CONF, args.conf[0] && strcmp(args.conf, CONF) != 0 ? NULL : DROP_INS))
		return 0;
	if (args.plan_user[0] && account(args.plan_user, &planner) < 0) {
		log_info("plugstack.conf: plan_user=%s: there is no such account", args.plan_user);
		return 0;
	}
	char *plan[] = {args.helper, "prolog", "--plan", NULL};
	if (helper(&args, plan, &planner, PLAN_TIMEOUT, false, &r) != 0 ||
	    sscanf(r.output, "%63s %d", drop_privs_account, &timeout) != 2 || timeout < 1)
		return 0;
	if (account(drop_privs_account, &user) < 0) {
		log_info("[stage] shared_user=%s: there is no such account", drop_privs_account);
		return 0;
	}
	snprintf(id_text, sizeof id_text, "%u", (unsigned)id);
	snprintf(name, sizeof name, "%u.shared", (unsigned)id);
	record(&args, name, drop_privs_account);
	char *stage[] = {args.helper, "prolog", "--job", id_text, NULL};
	/* All that has been copied when time is up stays, and the next job's prolog goes on from there. */
	int status = helper(&args, stage, &user, timeout, true, &r);
	if (status > 0)
		log_info("job %s starts without all that is shared (gradcomp prolog ended with status %d)", id_text,
		         status);
	return 0;
}

int prolog_job_end(spank_t sp, int ac, char **av)
{
	static arguments args;
	static exec_helper r;
	char id_text[24], name[40], text[64];
	exec_user user;
	uint32_t id;
	uid_t uid;
	gid_t gid;
	arguments_parse(&args, ac, av);
	if (args.error[0] || spank_get_item(sp, S_JOB_ID, &id) != ESPANK_SUCCESS)
		return 0;
	seen(&args);
	snprintf(id_text, sizeof id_text, "%u", (unsigned)id);
	snprintf(name, sizeof name, "%u.shared", (unsigned)id);
	if (take_record(&args, name, text, sizeof text) && account(text, &user) == 0) {
		char *release[] = {args.helper, "cache", "gc", "--shared", "--job", id_text, NULL};
		char *gc[] = {args.helper, "cache", "gc", "--shared", NULL};
		helper(&args, release, &user, CLEAN_TIMEOUT, false, &r);
		helper(&args, gc, &user, CLEAN_TIMEOUT, false, &r); /* copies that were leased by steps of users */
	}
	if (take_record(&args, id_text, text, sizeof text) && spank_get_item(sp, S_JOB_UID, &uid) == ESPANK_SUCCESS &&
	    spank_get_item(sp, S_JOB_GID, &gid) == ESPANK_SUCCESS) {
		char *gc[] = {args.helper, "cache", "gc", NULL};
		user = (exec_user){.uid = uid, .gid = gid, .groups = {gid}, .ngroups = 1};
		helper(&args, gc, &user, CLEAN_TIMEOUT, false, &r);
	}
	return 0;
}
