/* A child whose every system call that changes a folder is seen before it is made,
 * by ptrace(2): those of all its threads and of libc too. One of them can be the one
 * at which it is killed, or which fails. */
#ifndef TESTS_SUPPORT_SYSCALL_TRACE_H
#define TESTS_SUPPORT_SYSCALL_TRACE_H

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/user.h>
#include <sys/wait.h>
#include <unistd.h>

#if defined __x86_64__
#define STEPS_CAN_FAIL 1
#else
#define STEPS_CAN_FAIL 0
#endif

typedef struct step {
	const char *call;
	char path[400];  /* the path that it changes, as the kernel has it */
	char other[400]; /* the new name, for a rename or link */
	int flags;       /* a rename's */
} step;

typedef struct steps {
	const char *below;                     /* the folder that counts, absolute */
	int fatal;                             /* number of the call that is not made; 0: all are */
	int failure;                           /* its errno; 0: the child is killed there */
	int n;                                 /* calls seen */
	step last;                             /* at the end: the one that was not made */
	void (*saw)(void *ctx, const step *s); /* may be NULL */
	void *ctx;
} steps;

/* Which argument says what; -1: none. A descriptor whose file is not below the folder, a
 * socket or a pipe, does not count. */
struct step_call {
	long number;
	const char *name;
	signed char fd, path, fd2, path2, flags;
};

static const struct step_call step_calls[] = {
#ifdef SYS_mkdir
	{SYS_open, "open", -1, 0, -1, -1, 1},
	{SYS_mkdir, "mkdir", -1, 0, -1, -1, -1},
	{SYS_unlink, "unlink", -1, 0, -1, -1, -1},
	{SYS_rmdir, "rmdir", -1, 0, -1, -1, -1},
	{SYS_rename, "rename", -1, 0, -1, 1, -1},
	{SYS_link, "link", -1, 0, -1, 1, -1},
	{SYS_symlink, "symlink", -1, 1, -1, -1, -1},
	{SYS_chmod, "chmod", -1, 0, -1, -1, -1},
#endif
	{SYS_openat, "open", 0, 1, -1, -1, 2},
	{SYS_mkdirat, "mkdir", 0, 1, -1, -1, -1},
	{SYS_unlinkat, "unlink", 0, 1, -1, -1, -1},
#ifdef SYS_renameat
	{SYS_renameat, "rename", 0, 1, 2, 3, -1},
#endif
	{SYS_renameat2, "rename", 0, 1, 2, 3, 4},
	{SYS_linkat, "link", 0, 1, 2, 3, -1},
	{SYS_symlinkat, "symlink", 1, 2, -1, -1, -1},
	{SYS_fchmodat, "chmod", 0, 1, -1, -1, -1},
	{SYS_utimensat, "times", 0, 1, -1, -1, -1},
	{SYS_fchmod, "chmod", 0, -1, -1, -1, -1},
	{SYS_fchown, "chown", 0, -1, -1, -1, -1},
	{SYS_write, "write", 0, -1, -1, -1, -1},
	{SYS_pwrite64, "write", 0, -1, -1, -1, -1},
	{SYS_writev, "write", 0, -1, -1, -1, -1},
	{SYS_pwritev, "write", 0, -1, -1, -1, -1},
	{SYS_pwritev2, "write", 0, -1, -1, -1, -1},
	{SYS_sendfile, "write", 0, -1, -1, -1, -1},
	{SYS_copy_file_range, "write", 2, -1, -1, -1, -1},
	{SYS_ftruncate, "truncate", 0, -1, -1, -1, -1},
	{SYS_fallocate, "allocate", 0, -1, -1, -1, -1},
	{SYS_fsync, "fsync", 0, -1, -1, -1, -1},
	{SYS_fdatasync, "fsync", 0, -1, -1, -1, -1},
	{SYS_syncfs, "syncfs", 0, -1, -1, -1, -1},
	{SYS_flock, "lock", 0, -1, -1, -1, -1},
	/* It cannot be seen what is in its queue: it counts whatever it is. */
	{SYS_io_uring_enter, "io_uring", -1, -1, -1, -1, -1},
};

static void step_text(pid_t pid, unsigned long at, char out[400])
{
	struct iovec here = {out, 399};
	/* A name may end just before memory that is not there: page by page. */
	size_t done = 0;
	while (done < 399) {
		size_t page = 4096 - (at + done) % 4096, want = 399 - done < page ? 399 - done : page;
		struct iovec there = {(void *)(at + done), want};
		here = (struct iovec){out + done, want};
		ssize_t n = process_vm_readv(pid, &here, 1, &there, 1, 0);
		if (n <= 0)
			break;
		done += (size_t)n;
		if (memchr(out, 0, done))
			return;
	}
	out[done] = 0;
}

/* The path of what a descriptor, a name, or a name below a descriptor stands for. */
static void step_path(pid_t pid, int fd, bool has_fd, unsigned long name, bool has_name, char out[400])
{
	char link[64], text[400] = "";
	ssize_t n;
	if (has_name && name)
		step_text(pid, name, text);
	if (!has_fd || fd == AT_FDCWD)
		snprintf(link, sizeof link, "/proc/%d/cwd", (int)pid);
	else
		snprintf(link, sizeof link, "/proc/%d/fd/%d", (int)pid, fd);
	n = text[0] == '/' ? 0 : readlink(link, out, 399);
	out[n > 0 ? n : 0] = 0;
	size_t used = strlen(out);
	if (*text)
		snprintf(out + used, 400 - used, "%s%s", text[0] == '/' ? "" : "/", text);
}

static bool step_below(const steps *t, const char *path)
{
	size_t n = strlen(t->below);
	return !strncmp(path, t->below, n) && (!path[n] || path[n] == '/');
}

/* Returns true when the call that pid is about to make changes the folder. */
static bool step_read(const steps *t, pid_t pid, const struct __ptrace_syscall_info *info, step *s)
{
	const struct step_call *c = step_calls, *end = c + sizeof step_calls / sizeof *c;
	const __uint64_t *a = info->entry.args;
	while (c < end && (unsigned long)c->number != info->entry.nr)
		c++;
	if (c == end)
		return false;
	*s = (step){.call = c->name};
	if (c->fd < 0 && c->path < 0)
		return true;
	step_path(pid, c->fd < 0 ? 0 : (int)a[c->fd], c->fd >= 0, c->path < 0 ? 0 : a[c->path], c->path >= 0, s->path);
	if (c->path2 >= 0)
		step_path(pid, c->fd2 < 0 ? 0 : (int)a[c->fd2], c->fd2 >= 0, a[c->path2], true, s->other);
	if (c->flags >= 0)
		s->flags = (int)a[c->flags];
	if (!strcmp(c->name, "open") && !(s->flags & (O_CREAT | O_TRUNC)))
		return false;
	return step_below(t, s->path) || step_below(t, s->other);
}

/* Makes the call that pid is about to make one that is not there; its result is put in
 * when it returns. */
static void step_spoil(pid_t pid, bool returns, int failure)
{
#if STEPS_CAN_FAIL
	struct user_regs_struct r;
	if (ptrace(PTRACE_GETREGS, pid, 0, &r) < 0)
		return;
	if (returns)
		r.rax = (unsigned long long)-(long long)failure;
	else
		r.orig_rax = (unsigned long long)-1;
	ptrace(PTRACE_SETREGS, pid, 0, &r);
#else
	(void)pid, (void)returns, (void)failure;
#endif
}

static const long steps_options =
	PTRACE_O_TRACESYSGOOD | PTRACE_O_TRACECLONE | PTRACE_O_TRACEFORK | PTRACE_O_TRACEVFORK;

/* Until the process that was seized ends: its status, as of waitpid(). */
static int steps_follow(steps *t, pid_t child)
{
	int status;
	pid_t spoilt = 0, pid;
	t->n = 0;
	while ((pid = waitpid(-1, &status, __WALL)) > 0) {
		struct __ptrace_syscall_info info = {0};
		step s;
		if (!WIFSTOPPED(status)) {
			if (pid == child)
				return status;
			continue;
		}
		int sig = WSTOPSIG(status), event = status >> 16;
		if (sig == (SIGTRAP | 0x80) && ptrace(PTRACE_GET_SYSCALL_INFO, pid, sizeof info, &info) > 0) {
			if (info.op == PTRACE_SYSCALL_INFO_ENTRY && step_read(t, pid, &info, &s)) {
				if (t->saw)
					t->saw(t->ctx, &s);
				if (++t->n == t->fatal) {
					t->last = s;
					if (t->failure)
						step_spoil(spoilt = pid, false, 0);
					else
						kill(child, SIGKILL); /* the call is not made any more */
				}
			} else if (info.op == PTRACE_SYSCALL_INFO_EXIT && pid == spoilt) {
				step_spoil(pid, true, t->failure);
				spoilt = 0;
			}
		}
		ptrace(PTRACE_SYSCALL, pid, 0, sig == (SIGTRAP | 0x80) || event ? 0 : sig);
	}
	return -1;
}

/* Runs body(arg) in a child, which ends with what it returns. The status of waitpid(), or
 * -1 when this process may not trace. */
__attribute__((unused)) static int steps_run(steps *t, int (*body)(void *arg), void *arg)
{
	int go[2];
	pid_t child;
	char c = 0;
	fflush(NULL);
	if (pipe(go) < 0 || (child = fork()) < 0)
		return -1;
	if (!child) {
		close(go[1]);
		_exit(read(go[0], &c, 1) == 1 ? body(arg) : 127);
	}
	close(go[0]);
	bool traced = ptrace(PTRACE_SEIZE, child, 0, steps_options | PTRACE_O_EXITKILL) == 0 &&
	              ptrace(PTRACE_INTERRUPT, child, 0, 0) == 0 && write(go[1], &c, 1) == 1;
	close(go[1]);
	if (!traced) {
		kill(child, SIGKILL);
		waitpid(child, NULL, 0);
		return -1;
	}
	return steps_follow(t, child);
}

/* From now on the calling thread and those it starts are watched, by a child of this
 * process which ends with it. False when it may not. */
__attribute__((unused)) static bool steps_watch(steps *t)
{
	int go[2];
	char c = 0;
	pid_t parent = getpid(), watcher;
	fflush(NULL);
	if (pipe(go) < 0 || (watcher = fork()) < 0)
		return false;
	if (!watcher) {
		close(go[0]);
		if (ptrace(PTRACE_SEIZE, parent, 0, steps_options) == 0 &&
		    ptrace(PTRACE_INTERRUPT, parent, 0, 0) == 0 && write(go[1], &c, 1) == 1) {
			close(go[1]);
			steps_follow(t, parent);
		}
		_exit(0);
	}
	close(go[1]);
	bool watched = read(go[0], &c, 1) == 1;
	close(go[0]);
	return watched;
}

#endif
