#define _GNU_SOURCE
#include "base/fd_pass.h"

#include <stdint.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

typedef union control {
	char buf[CMSG_SPACE(sizeof(int))];
	struct cmsghdr align;
} control;

ssize_t fd_pass(int socket, const void *buf, size_t bytes, int fd)
{
	control own = {{0}};
	struct iovec iov = {(void *)(uintptr_t)buf, bytes};
	struct msghdr m = {.msg_iov = &iov, .msg_iovlen = 1, .msg_control = own.buf, .msg_controllen = sizeof own.buf};
	struct cmsghdr *c = CMSG_FIRSTHDR(&m);
	c->cmsg_level = SOL_SOCKET;
	c->cmsg_type = SCM_RIGHTS;
	c->cmsg_len = CMSG_LEN(sizeof fd);
	memcpy(CMSG_DATA(c), &fd, sizeof fd);
	return sendmsg(socket, &m, MSG_NOSIGNAL | MSG_DONTWAIT);
}

ssize_t fd_take(int socket, void *buf, size_t bytes, int *fd)
{
	control own;
	struct iovec iov = {buf, bytes};
	struct msghdr m = {.msg_iov = &iov, .msg_iovlen = 1, .msg_control = own.buf, .msg_controllen = sizeof own.buf};
	ssize_t n = recvmsg(socket, &m, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
	const struct cmsghdr *c = n >= 0 ? CMSG_FIRSTHDR(&m) : NULL;
	*fd = n >= 0 && m.msg_flags & MSG_CTRUNC ? FD_LOST : FD_NONE;
	/* By alignment there may be more than one. */
	for (size_t at = 0;
	     c && c->cmsg_level == SOL_SOCKET && c->cmsg_type == SCM_RIGHTS && c->cmsg_len >= CMSG_LEN(at + sizeof *fd);
	     at += sizeof *fd) {
		if (*fd >= 0)
			close(*fd);
		memcpy(fd, CMSG_DATA(c) + at, sizeof *fd);
	}
	return n;
}
