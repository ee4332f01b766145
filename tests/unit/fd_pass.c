/* Descriptors through a socket: one arrives and works, of several one is left open, and one that finds no room
 * is told of. */
#define _GNU_SOURCE
#include "tests/support/tap.h"

#include "base/fd_pass.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#define MOST 4

static int open_here(void)
{
	DIR *dir = opendir("/proc/self/fd");
	int n = 0;
	while (dir && readdir(dir))
		n++;
	if (dir)
		closedir(dir);
	return n;
}

/* Sends what no function of ours sends. */
static void send_several(int socket, const int *fds, size_t n)
{
	union {
		char buf[CMSG_SPACE(MOST * sizeof(int))];
		struct cmsghdr align;
	} own = {{0}};
	struct iovec iov = {"ab", 2};
	struct msghdr m = {.msg_iov = &iov,
	                   .msg_iovlen = 1,
	                   .msg_control = own.buf,
	                   .msg_controllen = CMSG_SPACE(n * sizeof(int))};
	struct cmsghdr *c = CMSG_FIRSTHDR(&m);

	*c = (struct cmsghdr){.cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS, .cmsg_len = CMSG_LEN(n * sizeof(int))};
	memcpy(CMSG_DATA(c), fds, n * sizeof(int));
	is_int((int)sendmsg(socket, &m, 0), 2, "%zu descriptors are sent", n);
}

/* Returns true when the kernel has the limit of no descriptor: valgrind keeps one of its own. `limits` is
 * /proc/self/limits, opened before. */
static bool none_allowed(int limits)
{
	char text[4096] = "";
	const char *line = read(limits, text, sizeof text - 1) > 0 ? strstr(text, "Max open files") : NULL;
	unsigned long most = 1;
	return line && sscanf(line, "Max open files %lu", &most) == 1 && !most;
}

int main(void)
{
	int s[2], p[2], fds[MOST], fd, before;
	char bytes[8], word[5] = "";
	struct rlimit was, now;
	if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, s) || pipe2(p, O_CLOEXEC))
		return 1;
	is_int((int)fd_take(s[1], bytes, sizeof bytes, &fd), -1, "where nothing is");
	ok(errno == EAGAIN && fd == FD_NONE, "that is said at once");
	is_int((int)send(s[0], "xyz", 3, 0), 3, "bytes alone");
	is_int((int)fd_take(s[1], bytes, sizeof bytes, &fd), 3, "arrive");
	is_int(fd, FD_NONE, "without a descriptor");

	is_int((int)fd_pass(s[0], "xyz", 3, p[1]), 3, "a descriptor goes with bytes");
	is_int((int)fd_take(s[1], bytes, 1, &fd), 1, "of which the first");
	ok(fd >= 0 && fcntl(fd, F_GETFD) == FD_CLOEXEC, "brings it, closed on exec");
	ok(write(fd, "word", 4) == 4 && read(p[0], word, 4) == 4 && !strcmp(word, "word"), "and it is the one");
	close(fd);
	is_int((int)fd_take(s[1], bytes, sizeof bytes, &fd), 2, "the others");
	is_int(fd, FD_NONE, "bring none");

	before = open_here();
	for (size_t n = 2; n <= MOST; n++) {
		for (size_t i = 0; i < n; i++)
			fds[i] = p[i % 2];
		send_several(s[0], fds, n);
		is_int((int)fd_take(s[1], bytes, sizeof bytes, &fd), 2, "and arrive");
		ok(fd >= 0 && open_here() == before + 1, "of them one is open");
		close(fd);
	}

	fd_pass(s[0], "x", 1, p[0]);
	int limits = open("/proc/self/limits", O_RDONLY | O_CLOEXEC);
	getrlimit(RLIMIT_NOFILE, &was);
	now = was;
	now.rlim_cur = 0;
	setrlimit(RLIMIT_NOFILE, &now);
	bool limited = none_allowed(limits);
	close(limits);
	is_int((int)fd_take(s[1], bytes, sizeof bytes, &fd), 1,
	       "where this process can have no more, the byte arrives");
	setrlimit(RLIMIT_NOFILE, &was);
	if (limited)
		is_int(fd, FD_LOST, "and that a descriptor is lost is told");
	else
		skip("the kernel has another limit", "and that a descriptor is lost is told");

	close(s[1]);
	is_int((int)fd_pass(s[0], "x", 1, p[0]), -1, "to a socket that is closed nothing goes");
	is_int(errno, EPIPE, "and no signal ends the program");
	return done_testing();
}
