/* A folder of the test's own below /tmp, gone when the test ends, also when it is
 * interrupted. Children that fork leave it alone. */
#ifndef TESTS_SUPPORT_TMPDIR_H
#define TESTS_SUPPORT_TMPDIR_H

#include <ftw.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static char tmpdir[64];
static pid_t tmpdir_owner;

static int tmpdir_entry(const char *path, const struct stat *st, int type, struct FTW *where)
{
	(void)st, (void)type, (void)where;
	return remove(path);
}

static void tmpdir_remove(void)
{
	if (getpid() == tmpdir_owner)
		nftw(tmpdir, tmpdir_entry, 16, FTW_DEPTH | FTW_PHYS);
}

/* Nothing of the test runs any more: what is not safe in a handler is here. */
static void tmpdir_interrupted(int sig)
{
	tmpdir_remove();
	_exit(128 + sig);
}

static void tmpdir_make(const char *name)
{
	static const int signals[] = {SIGINT, SIGTERM, SIGHUP, SIGBUS, SIGSEGV, SIGABRT};
	snprintf(tmpdir, sizeof tmpdir, "/tmp/gradcomp-%s-XXXXXX", name);
	if (!mkdtemp(tmpdir)) {
		printf("Bail out! no folder to work in\n");
		exit(1);
	}
	tmpdir_owner = getpid();
	atexit(tmpdir_remove);
	for (size_t i = 0; i < sizeof signals / sizeof signals[0]; i++)
		signal(signals[i], tmpdir_interrupted);
}

#endif
