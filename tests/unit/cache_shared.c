/* The shared area: root stages into it, other users use what is there, and nobody can
 * make them use anything else. As root, in processes that become other users. */
#include <grp.h>
#include <pwd.h>

#include "tests/support/cache_fixture.h"
#include "io/cache/manage.h"

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

/* What a user gets: 's' the shared copy, 'o' his own, '!' nothing. */
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
	snprintf(text, sizeof text, "[stage]\nshared = /nothing,%s/\nshared_user = %s\n", from, user);
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

static void leasing(void)
{
	const gradcomp_cache_options shared = {.struct_size = sizeof shared, .flags = GRADCOMP_CACHE_SHARED};
	uint32_t kept;
	pid_t pid = sleeper();
	is_int(stage_as(GRADCOMP_STAGE_SHARED, 0), 0, "the key");
	ok(got.cached, "of what is there");
	is_int(what_user_gets(USER, pid), 's', "a user leases it for a process of root's");
	is_int(gradcomp_cache_evict(&shared, got.key, NULL, NULL, &why), GRADCOMP_ERR_STATE,
	       "root cannot evict it");
	is_int(gradcomp_cache_gc(&shared, 0, NULL, NULL, &why), 0, "nor does gc");
	end_process(pid);
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
	            "chmod 600 src/d/b")
	             ? -1
	             : 0,
	     "source");
	snprintf(from, sizeof from, "%s/src", bench_dir);
	/* Readable for the user who stages it himself; the copy's modes are those of root's listing. */
	must(system("chown -R 61234 src src2") ? -1 : 0, "chown");
	staging();
	leasing();
	poisoned();
	return done_testing();
}
