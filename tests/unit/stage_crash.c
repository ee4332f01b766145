/* Death and failure at every step of making a copy: each call that changes a file
 * system is, in its turn, the one at which the process is killed, or which fails.
 * Whatever happens, a published copy is whole and the next run succeeds. */
#include <signal.h>
#include <sys/file.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include "stage.h"

/* ---- the library's calls come here first ------------------------------------ */

static atomic_int calls; /* made so far */
static int fatal;        /* the number of the one that matters; 0: none */
static int failure;      /* its errno; 0: it kills */

/* -1 when this call fails. */
static int step(void)
{
	if (atomic_fetch_add(&calls, 1) + 1 != fatal)
		return 0;
	if (!failure)
		raise(SIGKILL);
	errno = failure;
	return -1;
}

#define CALL(name, ...) (step() < 0 ? -1 : (int)syscall(SYS_##name, __VA_ARGS__))

int mkdirat(int fd, const char *path, mode_t mode)
{
	return CALL(mkdirat, fd, path, mode);
}

int renameat2(int from, const char *a, int to, const char *b, unsigned flags)
{
	return CALL(renameat2, from, a, to, b, flags);
}

int unlinkat(int fd, const char *path, int flags)
{
	return CALL(unlinkat, fd, path, flags);
}

int linkat(int from, const char *a, int to, const char *b, int flags)
{
	return CALL(linkat, from, a, to, b, flags);
}

int symlinkat(const char *target, int fd, const char *path)
{
	return CALL(symlinkat, target, fd, path);
}

int syncfs(int fd)
{
	return CALL(syncfs, fd);
}

int fsync(int fd)
{
	return CALL(fsync, fd);
}

int fchmod(int fd, mode_t mode)
{
	return CALL(fchmod, fd, mode);
}

int ftruncate(int fd, off_t length)
{
	return CALL(ftruncate, fd, length);
}

int flock(int fd, int how)
{
	return CALL(flock, fd, how);
}

ssize_t pwrite(int fd, const void *data, size_t n, off_t at)
{
	return step() < 0 ? -1 : syscall(SYS_pwrite64, fd, data, n, at);
}

/* ---- the walk ----------------------------------------------------------------- */

static int whole(void)
{
	return stage_with(GRADCOMP_STAGE_VERIFY | GRADCOMP_STAGE_DRY_RUN, NULL, NULL) == 0 && got.cached;
}

static void clear_cache(void)
{
	must(system("rm -rf cache/*") ? -1 : 0, "cache");
}

/* There is an older copy in some of the walks: damaged, so that it is replaced. */
static void prepare(bool with_damage)
{
	char command[8192];
	clear_cache();
	if (!with_damage)
		return;
	fatal = 0;
	must(stage(), "first copy");
	snprintf(command, sizeof command, "echo damage >'%s/a'", got.path);
	must(system(command) ? -1 : 0, command);
}

/* Runs staging in a child whose nth call is fatal. The status of waitpid(). */
static int run_until(int nth, int with_errno)
{
	int status = -1;
	pid_t pid = fork();
	if (pid == 0) {
		atomic_store(&calls, 0);
		fatal = nth;
		failure = with_errno;
		gradcomp_status s = stage();
		_exit(s ? 1 : atomic_load(&calls) < nth ? 2 : 0);
	}
	must(pid < 0 ? -1 : waitpid(pid, &status, 0), "child");
	return status;
}

static void kill_everywhere(bool with_damage)
{
	int n = 1, wrong = 0, published = 0;
	for (;; n++) {
		prepare(with_damage);
		int status = run_until(n, 0);
		if (WIFEXITED(status))
			break;
		bool was = whole();
		published += was;
		if (stage() || got.cached != was || strcmp(copied("a"), "one\n") || !whole() ||
		    in_cache(".tmp") > was || in_cache(".lock") > was) {
			printf("# wrong after death at call %d: %s\n", n, why.text);
			wrong++;
		}
	}
	ok(n > 20 && published > 1 && published < n / 2, "killed at each of %d calls, %d times after publishing",
	   n - 1, published);
	is_int(wrong, 0, "the next run has a whole copy, %s",
	       with_damage ? "in place of a damaged one" : "from nothing");
}

static void fail_everywhere(int with_errno)
{
	int n = 1, wrong = 0, failed = 0;
	for (;; n++) {
		prepare(false);
		int status = run_until(n, with_errno);
		if (!WIFEXITED(status) || WEXITSTATUS(status) == 2)
			break;
		failed += WEXITSTATUS(status) == 1;
		if (in_cache(".tmp") > 0) {
			printf("# %s at call %d: half a copy stays\n", strerror(with_errno), n);
			wrong++;
		}
		if (stage() || strcmp(copied("a"), "one\n") || !whole()) {
			printf("# wrong after %s at call %d: %s\n", strerror(with_errno), n, why.text);
			wrong++;
		}
	}
	ok(failed > 15, "%s at each of %d calls, %d of them fatal", strerror(with_errno), n - 1, failed);
	is_int(wrong, 0, "nothing half stays and the next run has a whole copy");
}

int main(void)
{
	bench_begin_in("/dev/shm");
	must(system("mkdir -p src/d/e && echo one >src/a && echo two >src/d/b && ln src/a src/d/c && ln -s ../a "
	            "src/d/l")
	             ? -1
	             : 0,
	     "source");
	kill_everywhere(false);
	kill_everywhere(true);
	fail_everywhere(ENOSPC);
	fail_everywhere(EIO);
	return done_testing();
}
