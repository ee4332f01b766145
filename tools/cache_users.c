/* gradcomp cache --all-users: root looks at the names only. What is in a user's area is
 * touched by a child that has become that user for good. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "tools/drop_privs.h"
#include "tools/cmd_cache.h"
#include "tools/commands.h"

#define OPEN_DIR (O_RDONLY | O_DIRECTORY | O_CLOEXEC)

/* s that a user's area may take at most: he may have mounted something there
 * that never answers. */
#define AREA_LIMIT 3600

/* Waits for the child, which its user can stop, and which has that user's rights only. */
static int end_of_child(pid_t pid, uid_t uid)
{
	const struct timespec pause = {.tv_nsec = 20000000};
	double begin = clock_now(); /* which a clock that is set does not change */
	int status = 0;
	pid_t got;
	while ((got = waitpid(pid, &status, WNOHANG | WUNTRACED)) == 0 || (got < 0 && errno == EINTR)) {
		if (clock_now() - begin > AREA_LIMIT)
			break;
		nanosleep(&pause, NULL);
	}
	if (got == pid && !WIFSTOPPED(status))
		return WIFEXITED(status) ? WEXITSTATUS(status) : 1;
	fprintf(stderr, "gradcomp: the child that works as uid %u %s; it is killed, and the next area is next\n",
	        (unsigned)uid, got == pid ? "was stopped, which that user can do" : "takes more than an hour");
	kill(pid, SIGKILL);
	while (waitpid(pid, &status, 0) < 0 && errno == EINTR)
		;
	return 1;
}

/* The exit status of run() as that user. */
static int as_user(uid_t uid, const cache_request *r, int (*run)(const cache_request *r))
{
	int status;
	fflush(stdout);
	pid_t pid = fork();
	if (pid == 0) {
		if (drop_privs_to_user(uid) < 0) {
			fprintf(stderr, "gradcomp: cannot become uid %u: %s\n", (unsigned)uid, strerror(errno));
			_exit(1);
		}
		status = run(r);
		_exit(fflush(stdout) || ferror(stdout) ? 1 : status);
	}
	if (pid < 0) {
		fprintf(stderr, "gradcomp: cannot start a process: %s\n", strerror(errno));
		return 1;
	}
	return end_of_child(pid, uid);
}

struct users {
	const cache_request *r;
	int (*run)(const cache_request *r);
	uid_t *seen;
	size_t n, capacity;
	int areas, status;
};

static bool first_time(struct users *u, uid_t uid)
{
	for (size_t i = 0; i < u->n; i++)
		if (u->seen[i] == uid)
			return false;
	if (u->n == u->capacity) {
		size_t capacity = u->capacity ? 2 * u->capacity : 32;
		uid_t *more = realloc(u->seen, capacity * sizeof *more);
		if (!more) {
			fputs("gradcomp: no memory to list the users\n", stderr);
			u->status = 1;
			return false;
		}
		u->seen = more;
		u->capacity = capacity;
	}
	u->seen[u->n++] = uid;
	return true;
}

static void visit(struct users *u, uid_t uid, unsigned flags, const char *who)
{
	cache_request r = *u->r;
	r.options.flags |= flags;
	r.who = who;
	if (r.json)
		fputs(u->areas ? "," : "[\n", stdout);
	u->areas++;
	int status = as_user(uid, &r, u->run);
	if (status > u->status)
		u->status = status;
}

/* Visits a directory whose name is `prefix` and its owner's uid. */
static void visit_if_area(struct users *u, int dir, const char *name, const char *prefix)
{
	size_t n = strlen(prefix), digits;
	char who[ACCOUNT_NAME], own[16];
	struct stat st;
	if (strncmp(name, prefix, n))
		return;
	digits = strspn(name + n, "0123456789");
	if (!digits || digits > 10 || name[n + digits] || fstatat(dir, name, &st, AT_SYMLINK_NOFOLLOW) < 0)
		return;
	snprintf(own, sizeof own, "%u", (unsigned)st.st_uid);
	if (!S_ISDIR(st.st_mode) || strcmp(own, name + n)) {
		fprintf(stderr, "gradcomp: %s is not the area of the user it is named after: left alone\n", name);
		return;
	}
	if (!first_time(u, st.st_uid))
		return;
	drop_privs_account(st.st_uid, who);
	visit(u, st.st_uid, 0, who);
}

static void visit_all(struct users *u, const char *path, const char *prefix)
{
	int fd = open(path, OPEN_DIR);
	DIR *d = fd < 0 ? NULL : fdopendir(fd);
	if (!d) {
		if (fd >= 0)
			close(fd);
		if (errno != ENOENT) {
			fprintf(stderr, "gradcomp: cannot list %s: %s\n", path, strerror(errno));
			u->status = 1;
		}
		return;
	}
	for (struct dirent *de; (de = readdir(d));)
		visit_if_area(u, fd, de->d_name, prefix);
	closedir(d);
}

static int cache_dir_of(const cache_request *r, char dir[4096])
{
	if (r->options.cache_dir)
		snprintf(dir, 4096, "%s", r->options.cache_dir);
	else if (drop_privs_setting(SET_STAGE_CACHE_DIR, dir, 4096))
		return 1;
	for (size_t n = strlen(dir); n > 1 && dir[n - 1] == '/';)
		dir[--n] = 0;
	return 0;
}

/* Whose CACHE/shared is; -1 when there is none. */
static int shared_owner(const char *dir, uid_t *owner)
{
	char path[4096 + 16];
	struct stat st;
	snprintf(path, sizeof path, "%s/shared", dir);
	if (lstat(path, &st) < 0 || !S_ISDIR(st.st_mode))
		return -1;
	*owner = st.st_uid;
	return 0;
}

int cache_as_owner(const cache_request *r, int (*run)(const cache_request *r))
{
	char dir[4096];
	uid_t owner;
	if (cache_dir_of(r, dir))
		return 1;
	return shared_owner(dir, &owner) < 0 ? run(r) : as_user(owner, r, run);
}

int cache_each_user(const cache_request *r, int (*run)(const cache_request *r))
{
	struct users u = {.r = r, .run = run};
	char dir[4096], above[4096];
	uid_t owner;
	if (geteuid() != 0) {
		fputs("gradcomp: --all-users is for root\n", stderr);
		return 1;
	}
	if (cache_dir_of(r, dir))
		return 1;
	visit_all(&u, dir, "");
	/* Areas of users beside a cache that root has not made. */
	char *slash = strrchr(memcpy(above, dir, sizeof above), '/');
	if (slash && slash[1]) {
		char prefix[300];
		snprintf(prefix, sizeof prefix, "%.280s-", slash + 1);
		slash[slash == above] = 0;
		visit_all(&u, above, prefix);
	}
	if (shared_owner(dir, &owner) == 0)
		visit(&u, owner, GRADCOMP_CACHE_SHARED, "shared by all");
	if (r->json)
		fputs(u.areas ? "]\n" : "[]\n", stdout);
	free(u.seen);
	return u.status;
}
