/* The shared area: root stages into it, other users use what is there, and nobody can
 * make them use anything else. As root, in processes that become other users. */
#include <grp.h>
#include <pwd.h>
#include <sys/file.h>

#include "tests/support/cache_fixture.h"
#include "io/cache/manage.h"
#include "tests/support/pace.h"

#define USER 61234
#define OTHER 61235

static char from[128];

static gradcomp_status stage_as(uint32_t flags, int64_t pid)
{
	gradcomp_stage_options o = {.struct_size = sizeof o, .flags = flags, .source = from, .hold_pid = pid};
	memset(&got, 0, sizeof got);
	memset(&why, 0, sizeof why);
	got.struct_size = sizeof got;
	return gradcomp_stage(&o, &got, &why);
}

/* Returns what a user gets: 's' the shared copy, 'o' his own, '!' nothing. */
static int what_user_gets(uid_t uid, int64_t pid)
{
	pid_t child = fork();
	must(child, "fork");
	if (child == 0) {
		if (setgroups(0, NULL) || setresgid(uid, uid, uid) || setresuid(uid, uid, uid))
			_exit('?');
		if (stage_as(0, pid)) {
			printf("# %s\n", why.text);
			fflush(stdout);
			_exit('!');
		}
		if (strcmp(copied("a"), "one\n") || strcmp(copied("d/b"), "two\n"))
			_exit('x');
		_exit(strstr(got.path, "/shared/") ? 's' : 'o');
	}
	int status;
	must(waitpid(child, &status, 0), "waitpid");
	return WIFEXITED(status) ? WEXITSTATUS(status) : '?';
}

static void forget_users(void)
{
	must(system("rm -rf cache/61*") ? -1 : 0, "users");
}

static void declare(const char *user)
{
	char text[400];
	snprintf(text, sizeof text, "[stage]\nshared = /nothing\nshared = %s/\nshared_user = %s\n", from, user);
	put("conf", text);
	must(chmod("conf", 0644), "conf");
}

static void staging(void)
{
	declare("root");
	is_int(what_user_gets(USER, 0), 'o', "before it is staged a user has a copy of his own");
	forget_users();
	is_int(stage_as(GRADCOMP_STAGE_SHARED, 0), 0, "root stages into the shared area");
	like(got.path, "/cache/shared/", "it is there");
	struct stat st = copied_stat("d/b");
	is_int(st.st_mode & 07777, 0644, "a file that only its owner could read can be read by all");
	st = copied_stat("a");
	is_int(st.st_mode & 07777, 0755, "one that all could write is its owner's to write");
	st = copied_stat("d");
	is_int(st.st_mode & 07777, 0755, "and so is a directory");
	st = copied_stat("");
	is_int(st.st_mode & 07777, 0755, "the topmost one too");
	/* A process that died just before the copy got its name has left it so. Somebody has opened a directory of
	 * it. */
	int held = open(got.path, O_RDONLY | O_DIRECTORY);
	must(system("for k in cache/shared/*.lease; do mv ${k%.lease} ${k%.lease}.tmp; done") ? -1 : 0, "mv");
	is_int(stage_as(GRADCOMP_STAGE_SHARED, 0), 0, "root stages it again");
	st = copied_stat("a");
	is_int(st.st_mode & 07777, 0755, "which is whole");
	ok(faccessat(held, "a", F_OK, 0) < 0,
	   "who has a directory open of what all could enter has nothing of the new copy");
	close(held);
	is_int(what_user_gets(USER, 0), 's', "now a user gets it");
	is_int(what_user_gets(OTHER, 0), 's', "and another");
	is_int(what_user_gets(0, 0), 's', "and root himself");

	snprintf(from, sizeof from, "%s/src2", bench_dir);
	is_int(stage_as(GRADCOMP_STAGE_SHARED, 0), GRADCOMP_ERR_INVALID, "what is not declared");
	like(why.text, "stage.shared", "is not staged there");
	is_int(what_user_gets(USER, 0), 'o', "and is everybody's own");
	snprintf(from, sizeof from, "%s/src", bench_dir);
	pid_t child = fork();
	if (child == 0) {
		must(setresuid(USER, USER, USER), "uid");
		_exit(stage_as(GRADCOMP_STAGE_SHARED, 0) == GRADCOMP_ERR_INSECURE ? 0 : 1);
	}
	int status;
	waitpid(child, &status, 0);
	is_int(status, 0, "a user cannot stage into it");
}

static pid_t sleeper_of(uid_t uid)
{
	int ready[2];
	char none;
	must(pipe(ready), "pipe");
	pid_t pid = fork();
	must(pid, "fork");
	if (pid == 0) {
		must(setresgid(uid, uid, uid) || setresuid(uid, uid, uid) ? -1 : 0, "uid");
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		close(ready[0]), close(ready[1]);
		for (;;)
			pause();
	}
	close(ready[1]);
	must(read(ready[0], &none, 1) == 0 ? 0 : -1, "read");
	close(ready[0]);
	return pid;
}

/* Writes what a user writes into KEY.lease by hand. */
static void forge(uid_t uid, const char *name, const char *claim)
{
	char text[300], path[300];
	snprintf(path, sizeof path, "cache/shared/%s.lease/%s", got.key, name);
	snprintf(text, sizeof text, "gradcomp-lease 1\n%s\nholder job 1.0\n", claim);
	put(path, text);
	must(chmod(path, 0644) || chown(path, uid, uid) ? -1 : 0, path);
}

/* A process of the user's that holds the locks it can get at until it is killed. */
static pid_t hold_locks(uid_t uid, int how, bool *written)
{
	char dir[300], gate[300], told[2] = {0};
	int ready[2];
	snprintf(dir, sizeof dir, "cache/shared/%s.lease", got.key);
	snprintf(gate, sizeof gate, "cache/shared/%s.gate", got.key);
	must(pipe(ready), "pipe");
	pid_t pid = fork();
	must(pid, "fork");
	if (pid == 0) {
		struct flock l = {.l_type = (short)how, .l_whence = SEEK_SET};
		must(setresgid(uid, uid, uid) || setresuid(uid, uid, uid) ? -1 : 0, "uid");
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		const int fds[] = {open(dir, O_RDONLY | O_DIRECTORY), open(gate, O_RDONLY), open(gate, O_RDWR)};
		flock(fds[0], LOCK_EX);
		told[0] = fds[2] >= 0;
		told[1] = fcntl(fds[1], F_OFD_SETLK, &l) == 0;
		flock(fds[1], LOCK_EX);
		must(write(ready[1], told, 2) == 2 ? 0 : -1, "write");
		for (;;)
			pause();
	}
	must(read(ready[0], told, 2) == 2 ? 0 : -1, "read");
	close(ready[0]), close(ready[1]);
	*written = told[0] || (how == F_WRLCK && told[1]);
	return pid;
}

static void hostile(void)
{
	static const gradcomp_cache_options shared = {.struct_size = sizeof shared, .flags = GRADCOMP_CACHE_SHARED};
	char boot[CACHE_BOOT_BYTES], claim[200];
	const uint64_t start = cache_process_start(getpid()), space = cache_pid_space();
	bool written;
	cache_boot(boot);
	for (int i = 0; i < 5; i++) {
		pid_t other = sleeper_of(OTHER);
		is_int(stage_as(GRADCOMP_STAGE_SHARED, 0), 0, "staged");
		if (i == 0)
			snprintf(claim, sizeof claim, "pin");
		else if (i == 1)
			snprintf(claim, sizeof claim, "job 12 boot %s", boot);
		else if (i == 2) /* one of root's */
			snprintf(claim, sizeof claim, "pid %ld start %llu boot %s space %llu", (long)getpid(),
			         (unsigned long long)start, boot, (unsigned long long)space);
		else if (i == 3) /* one of another user's */
			snprintf(claim, sizeof claim, "pid %ld start %llu boot %s space %llu", (long)other,
			         (unsigned long long)cache_process_start(other), boot, (unsigned long long)space);
		else
			snprintf(claim, sizeof claim, "pid 1 start 1 boot %s space 4711", boot);
		forge(USER, i ? "1-1" : "pin", claim);
		is_int(gradcomp_cache_evict(&shared, got.key, NULL, NULL, &why), 0,
		       "'%.12s' by a user who is not here keeps nothing", claim);
		end_process(other);
	}
	is_int(stage_as(GRADCOMP_STAGE_SHARED, 0), 0, "staged");
	forge(USER, "pin", "job 1 boot x");
	is_int(gradcomp_cache_pin(&shared, got.key, &why), 0, "root pins in spite of a file of that name");
	is_int(gradcomp_cache_evict(&shared, got.key, NULL, NULL, &why), GRADCOMP_ERR_STATE, "and the pin holds");
	is_int(gradcomp_cache_unpin(&shared, got.key, &why), 0, "until he unpins");

	pid_t pid = hold_locks(USER, F_WRLCK, &written);
	ok(!written, "a user gets no lock that keeps others out");
	double begin = clock_now();
	is_int(what_user_gets(OTHER, 0), 's', "another gets the copy");
	ok(clock_now() - begin < 5 * pace(), "without waiting");
	end_process(pid);
	is_int(gradcomp_cache_lease_job(&shared, got.key, 12, NULL, &why), 0, "a job has a lease");
	pid = hold_locks(USER, F_RDLCK, &written);
	ok(!written, "with the other kind of lock");
	is_int(gradcomp_cache_gc(&shared, 12, NULL, NULL, &why), 0, "the job's epilog");
	is_int(system("test -z \"$(ls cache/shared/*.lease/job-12 2>/dev/null)\""), 0,
	       "removes it in spite of the lock: nothing else would");
	is_int(what_user_gets(OTHER, 0), 's', "he does neither");
	is_int(gradcomp_cache_evict(&shared, got.key, NULL, NULL, &why), GRADCOMP_ERR_STATE,
	       "it keeps the copy as a lease would");
	end_process(pid);
	is_int(gradcomp_cache_evict(&shared, got.key, NULL, NULL, &why), 0, "until he is gone");
	is_int(system("test -z \"$(ls -A cache/shared)\""), 0, "and nothing is left");
	is_int(stage_as(GRADCOMP_STAGE_SHARED, 0), 0, "staged");
	forget_users();
}

static void leasing(void)
{
	const gradcomp_cache_options shared = {.struct_size = sizeof shared, .flags = GRADCOMP_CACHE_SHARED};
	uint32_t kept;
	pid_t pid = sleeper(), of_user = sleeper_of(USER);
	is_int(stage_as(GRADCOMP_STAGE_SHARED, 0), 0, "the key");
	ok(got.cached, "of what is there");
	is_int(what_user_gets(USER, pid), 's', "a user leases it for a process of root's");
	is_int(gradcomp_cache_evict(&shared, got.key, NULL, NULL, &why), GRADCOMP_ERR_STATE, "root cannot evict it");
	is_int(gradcomp_cache_gc(&shared, 0, NULL, NULL, &why), 0, "nor does gc");
	end_process(pid);
	end_process(of_user);
	is_int(gradcomp_cache_gc(&shared, 0, NULL, NULL, &why), 0, "gc when the process has ended");
	is_int(what_user_gets(OTHER, 0), 's', "leaves the way for the next lease");
	is_int(gradcomp_cache_verify(&shared, NULL, NULL, NULL, &why), 0, "it verifies");
	is_int(gradcomp_cache_clear(&shared, NULL, NULL, &kept, &why), 0, "clear");
	is_int(system("test -z \"$(ls -A cache/shared)\""), 0, "leaves nothing there");
	is_int(what_user_gets(USER, 0), 'o', "and users have their own");
	is_int(stage_as(GRADCOMP_STAGE_SHARED, 0), 0, "staged again");
	is_int(what_user_gets(USER, 0), 's', "they get it again");
	forget_users();
}

/* Each command changes something that a hostile user, or a mistake, could have. */
static void poisoned(void)
{
	static const char *const how[][2] = {
		{"chmod g+w cache/shared", "chmod 755 cache/shared"},
		{"chmod o+w cache/shared", "chmod 755 cache/shared"},
		{"chown 61235 cache/shared", "chown 0 cache/shared"},
		{"chown 61235 cache/shared/*/data/..", "chown 0 cache/shared/*/data/.."},
		{"chmod o+w cache/shared/*/data/..", "chmod 755 cache/shared/*/data/.."},
		{"mv cache/shared away && ln -s ../away cache/shared", "rm cache/shared && mv away cache/shared"},
		{"chown 61235 conf", "chown 0 conf"},
	};
	char conf[200];
	for (size_t i = 0; i < sizeof how / sizeof how[0]; i++) {
		must(system(how[i][0]) ? -1 : 0, how[i][0]);
		int gets = what_user_gets(USER, 0);
		ok(gets == 'o' || gets == '!', "%s: it is not used", how[i][0]);
		must(system(how[i][1]) ? -1 : 0, how[i][1]);
		forget_users();
	}
	is_int(what_user_gets(USER, 0), 's', "as it was: it is used");
	must(system("d=$(echo cache/shared/*/data) && chmod u+w $d/a && echo evil >$d/a") ? -1 : 0, "damage");
	is_int(what_user_gets(USER, 0), 'o', "a damaged one is not");
	is_int(stage_as(GRADCOMP_STAGE_SHARED, 0), 0, "until it is staged again");
	is_int(what_user_gets(USER, 0), 's', "then it is used");
	snprintf(conf, sizeof conf, "%s", getenv("GRADCOMP_CONF"));
	setenv("GRADCOMP_CONF", "conf", 1);
	is_int(what_user_gets(USER, 0), 's', "a file by its relative name");
	must(chown("conf", USER, USER), "chown");
	is_int(what_user_gets(USER, 0), 'o', "counts no more than by its whole one");
	must(chown("conf", 0, 0), "chown");
	setenv("GRADCOMP_CONF", conf, 1);
	forget_users();
	setenv("GRADCOMP_STAGE_SHARED", "/", 1);
	is_int(stage_as(0, 0), GRADCOMP_ERR_INVALID, "nobody declares anything shared in his environment");
	unsetenv("GRADCOMP_STAGE_SHARED");
	declare("nobody.of.this.name");
	is_int(stage_as(GRADCOMP_STAGE_SHARED, 0), GRADCOMP_ERR_NOTFOUND, "an account that does not exist");
	is_int(what_user_gets(USER, 0), 'o', "makes nothing shared");
	forget_users();
}

int main(void)
{
	if (geteuid() != 0) {
		skip("needs root", "the shared area");
		return done_testing();
	}
	bench_begin_in("/var/tmp");
	must(chmod(bench_dir, 0755), "chmod");
	must(chmod("cache", 01777), "chmod");
	must(system("mkdir -p src/d src2/d && echo one >src/a && echo two >src/d/b && cp -r src/. src2 && "
	            "chmod 600 src/d/b && chmod 777 src/a src/d && chmod 2775 src")
	             ? -1
	             : 0,
	     "source");
	snprintf(from, sizeof from, "%s/src", bench_dir);
	/* Readable for the user who stages it himself; the copy's modes are those of root's listing. */
	must(system("chown -R 61234 src src2") ? -1 : 0, "chown");
	staging();
	leasing();
	hostile();
	poisoned();
	return done_testing();
}
