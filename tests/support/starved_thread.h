/* A thread that gets no processor for four seconds where it has to wait for a connection: by its clock they pass,
 * and the other end does its part meanwhile. Of the program that includes this, and of the library that it is
 * linked with. */
#ifndef TESTS_SUPPORT_STARVED_THREAD_H
#define TESTS_SUPPORT_STARVED_THREAD_H

#include <errno.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

/* How often in recv() on each connection, beside once in connect(); 0: never. */
_Thread_local int starving;
_Thread_local int starves_left;
_Thread_local long starved_seconds;

int clock_gettime(clockid_t id, struct timespec *ts)
{
	int rc = (int)syscall(SYS_clock_gettime, id, ts);
	ts->tv_sec += starved_seconds;
	return rc;
}

void starve(int fd, short events)
{
	struct pollfd p = {fd, events, 0};
	int code = errno;
	starved_seconds += 4;
	(void)poll(&p, 1, 10000);
	errno = code;
}

int connect(int fd, const struct sockaddr *sa, socklen_t bytes)
{
	int rc = (int)syscall(SYS_connect, fd, sa, bytes);
	starves_left = starving;
	if (rc && errno == EINPROGRESS && starving)
		starve(fd, POLLOUT);
	return rc;
}

ssize_t recv(int fd, void *buf, size_t bytes, int flags)
{
	ssize_t n = syscall(SYS_recvfrom, fd, buf, bytes, flags, NULL, NULL);
	if (n < 0 && errno == EAGAIN && starving && starves_left) {
		starves_left--;
		starve(fd, POLLIN);
	}
	return n;
}

#endif
