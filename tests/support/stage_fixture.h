/* A folder with a source tree and a cache, for the tests of staging. All paths
 * are relative to the folder, which is the working directory. */
#ifndef TESTS_SUPPORT_STAGE_FIXTURE_H
#define TESTS_SUPPORT_STAGE_FIXTURE_H

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/dirwalk.h"
#include "gradcomp/stage.h"
#include "tests/support/tap.h"

static char bench_dir[64];
static gradcomp_stage_result got;
static gradcomp_error why;

static void bench_remove(void)
{
	if (chdir("/") == 0)
		dirwalk_remove(AT_FDCWD, bench_dir);
}

/* Writes a file; the test stops where its own set-up fails. */
static void put(const char *path, const char *text)
{
	int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0644);
	size_t n = strlen(text);
	if (fd < 0 || write(fd, text, n) != (ssize_t)n || close(fd) < 0) {
		printf("Bail out! cannot write %s: %s\n", path, strerror(errno));
		exit(1);
	}
}

/* Ends the test when there is no folder to work in. */
static void bench_begin_in(const char *top)
{
	char cache[128];
	snprintf(bench_dir, sizeof bench_dir, "%s/gradcomp-stage.XXXXXX", top);
	if (!mkdtemp(bench_dir) || chdir(bench_dir) < 0 || mkdir("src", 0755) < 0 || mkdir("cache", 0755) < 0) {
		printf("Bail out! no folder to work in: %s\n", strerror(errno));
		exit(1);
	}
	atexit(bench_remove);
	snprintf(cache, sizeof cache, "%s/cache", bench_dir);
	setenv("GRADCOMP_STAGE_CACHE_DIR", cache, 1);
	snprintf(cache, sizeof cache, "%s/conf", bench_dir);
	setenv("GRADCOMP_CONF", cache, 1);
	put("conf", "");
}

__attribute__((unused)) static void bench_begin(void)
{
	bench_begin_in("/var/tmp");
}

__attribute__((unused)) static void must(int result, const char *what)
{
	if (result < 0) {
		printf("Bail out! %s: %s\n", what, strerror(errno));
		exit(1);
	}
}

typedef int (*bench_progress)(void *ctx, const gradcomp_stage_progress *p);

static gradcomp_status stage_with(uint32_t flags, bench_progress progress, void *ctx)
{
	gradcomp_stage_options o = {
		.struct_size = sizeof o, .flags = flags, .source = "src", .progress = progress, .ctx = ctx};
	memset(&got, 0, sizeof got);
	memset(&why, 0, sizeof why);
	got.struct_size = sizeof got;
	return gradcomp_stage(&o, &got, &why);
}

__attribute__((unused)) static gradcomp_status stage(void)
{
	return stage_with(0, NULL, NULL);
}

/* The text of a file below the published copy; "" when there is none. */
__attribute__((unused)) static const char *copied(const char *name)
{
	static char text[256];
	char path[8192];
	snprintf(path, sizeof path, "%s/%s", got.path, name);
	int fd = open(path, O_RDONLY);
	ssize_t n = fd < 0 ? 0 : read(fd, text, sizeof text - 1);
	text[n > 0 ? n : 0] = 0;
	if (fd >= 0)
		close(fd);
	return text;
}

__attribute__((unused)) static struct stat copied_stat(const char *name)
{
	char path[8192];
	struct stat st = {0};
	snprintf(path, sizeof path, "%s/%s", got.path, name);
	if (lstat(path, &st) < 0)
		st.st_mode = 0;
	return st;
}

/* Names in the user's area of a cache (or of several, by a pattern) that end in `suffix`. */
__attribute__((unused)) static int in_caches(const char *caches, const char *suffix)
{
	char command[256];
	int n = -1;
	snprintf(command, sizeof command, "ls -A %s/%u 2>/dev/null | grep -c '%s$'", caches, geteuid(), suffix);
	FILE *f = popen(command, "r");
	if (f && fscanf(f, "%d", &n) != 1)
		n = -1;
	if (f)
		pclose(f);
	return n;
}

__attribute__((unused)) static int in_cache(const char *suffix)
{
	return in_caches("cache", suffix);
}

#endif
