#!/bin/sh
# gradcomp stage gives up what it has no use for before it copies: what runs in it then, here a
# library that was loaded into it, starts no program, traces nobody and stays who it is.
# shellcheck source=tests/support/tap.sh disable=SC1091,SC2154
. "$GRADCOMP_SRC/tests/support/tap.sh"
grep -q '^HAVE_SECCOMP = yes' "$GRADCOMP_BUILD/config.mk" || skip_all 'built without libseccomp'
grep -q '^Seccomp:' /proc/self/status || skip_all 'this kernel has no seccomp'
mkdir "$tmp/src" "$tmp/cache"
seq 100000 >"$tmp/src/numbers"
: >"$tmp/conf"
export GRADCOMP_CONF="$tmp/conf" GRADCOMP_STAGE_CACHE_DIR="$tmp/cache"

# It acts when the copy is about to be published, the first time that something is renamed.
cat >"$tmp/act.c" <<'END'
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/ptrace.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

static void tell(FILE *f, const char *what, int failed)
{
	fprintf(f, "%s %s\n", what, !failed ? "done" : errno == EPERM ? "refused" : "failed otherwise");
}

static void act(void)
{
	FILE *f = fopen(getenv("ACT"), "w");
	char *const argv[] = {"true", NULL};
	int status = 1;

	if (!f)
		_exit(9);
	pid_t pid = fork();
	if (!pid) {
		execv("/bin/true", argv);
		_exit(errno == EPERM ? 77 : 78);
	}
	waitpid(pid, &status, 0);
	fprintf(f, "execve %s\n", status == 77 << 8 ? "refused" : "done or failed otherwise");
	tell(f, "ptrace", ptrace(PTRACE_TRACEME, 0, NULL, NULL) < 0);
	tell(f, "setuid", setuid(getuid()) < 0);
	tell(f, "unshare", unshare(CLONE_FS) < 0);
	tell(f, "socket", socket(AF_INET, SOCK_STREAM, 0) < 0);
	fclose(f);
}

int renameat(int from, const char *a, int to, const char *b)
{
	static int acted;
	int (*real)(int, const char *, int, const char *) = dlsym(RTLD_NEXT, "renameat");

	if (!acted++)
		act();
	return real(from, a, to, b);
}
int rename(const char *a, const char *b)
{
	return renameat(AT_FDCWD, a, AT_FDCWD, b);
}
END
check 'a library that acts is built' cc -shared -fPIC -o "$tmp/act.so" "$tmp/act.c" -ldl
check 'a copy is staged with it inside' env LD_PRELOAD="${LD_PRELOAD:+$LD_PRELOAD:}$tmp/act.so" ACT="$tmp/acts" "$GRADCOMP_BUILD/bin/gradcomp" stage "$tmp/src"
is 'which could do nothing but what copies need' "$(cat "$tmp/acts")" 'execve refused
ptrace refused
setuid refused
unshare refused
socket done'
done_testing
