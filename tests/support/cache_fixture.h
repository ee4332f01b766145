/* An area with copies made by hand, for the tests of the cache. The working directory is
 * the folder of stage.h, the area is cache/UID. */
#ifndef TESTS_SUPPORT_CACHE_FIXTURE_H
#define TESTS_SUPPORT_CACHE_FIXTURE_H

#include <signal.h>
#include <stdarg.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>

#include "base/clock.h"
#include "io/cache/cache.h"
#include "tests/support/stage_fixture.h"

static int area_fd = -1;
static char area_path[4096];

__attribute__((unused)) static void area_begin(void)
{
	char dir[128];
	snprintf(dir, sizeof dir, "%s/cache", bench_dir);
	must(chmod("cache", 01777), "chmod");
	must(cache_user_area(dir, true, &area_fd, area_path, &why) ? -1 : 0, why.text);
}

/* A key of one digit: "333...3". */
__attribute__((unused)) static const char *key_of(int digit)
{
	static char keys[16][STAGE_KEY_BYTES];
	memset(keys[digit], "0123456789abcdef"[digit], STAGE_KEY_BYTES - 1);
	return keys[digit];
}

static const char *in_area(const char *fmt, ...) GRADCOMP_PRINTF(1, 2);
static const char *in_area(const char *fmt, ...)
{
	static char path[8][4096 + 400];
	static int turn;
	char *out = path[turn++ % 8];
	int n = snprintf(out, sizeof path[0], "%s/", area_path);
	va_list ap;
	va_start(ap, fmt);
	vsnprintf(out + n, sizeof path[0] - (size_t)n, fmt, ap);
	va_end(ap);
	return out;
}

__attribute__((unused)) static bool is_there(const char *name)
{
	struct stat st;
	return fstatat(area_fd, name, &st, AT_SYMLINK_NOFOLLOW) == 0;
}

/* area/NAME/data/file of `kib` KiB, used `ago` seconds ago. */
__attribute__((unused)) static void put_copy(const char *name, size_t kib, long ago)
{
	static const char block[1024] = "x";
	struct timespec t[2] = {{.tv_sec = time(NULL) - ago}, {.tv_sec = time(NULL) - ago}};
	must(mkdir(in_area("%s", name), 0700), name);
	must(mkdir(in_area("%s/data", name), 0700), name);
	int fd = open(in_area("%s/data/file", name), O_WRONLY | O_CREAT | O_EXCL, 0600);
	for (size_t i = 0; i < kib; i++)
		must(write(fd, block, sizeof block) == sizeof block ? 0 : -1, "write");
	must(close(fd), "close");
	put(in_area("%s/used", name), "");
	put(in_area("%s/journal", name), "");
	must(utimensat(AT_FDCWD, in_area("%s/used", name), t, 0), "utimensat");
	must(utimensat(AT_FDCWD, in_area("%s/journal", name), t, 0), "utimensat");
}

__attribute__((unused)) static void empty_area(void)
{
	char command[4200];
	snprintf(command, sizeof command, "cd %s && rm -rf -- * .[!.]*", area_path);
	must(system(command) ? -1 : 0, command);
}

/* A process that sleeps until it is killed, or the test ends. */
__attribute__((unused)) static pid_t sleeper(void)
{
	pid_t pid = fork();
	if (pid == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		for (;;)
			pause();
	}
	must(pid, "fork");
	return pid;
}

__attribute__((unused)) static void end_process(pid_t pid)
{
	must(kill(pid, SIGKILL), "kill");
	must(waitpid(pid, NULL, 0), "waitpid");
}

#endif
