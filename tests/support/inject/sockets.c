/* The wrapped reads, writes and waits, connects and accepts. */
#define _GNU_SOURCE
#include "tests/support/inject/inject_internal.h"

#include <errno.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/uio.h>

/* A read or a write of `bytes` on a socket: 0, or -1 with errno. */
static int spoilt(int fd, size_t bytes)
{
	if (!inject_active())
		return 0;
	inject_late();
	if (inject_reset()) {
		shutdown(fd, SHUT_RDWR);
		errno = ECONNRESET;
		return -1;
	}
	/* One byte is a wake-up: it has room while the peer sleeps. */
	if (bytes > 1 && inject_hit(EAGAIN_P)) {
		errno = EAGAIN;
		return -1;
	}
	if (bytes > 1 && inject_hit(EINTR_P)) {
		errno = EINTR;
		return -1;
	}
	return 0;
}

static size_t cut(size_t bytes)
{
	return bytes > 1 && inject_hit(SHORT) ? 1 + inject_draw(SHORT) % (bytes - 1) : bytes;
}

static size_t vector_bytes(const struct iovec *iov, size_t n)
{
	size_t bytes = 0;
	for (size_t i = 0; i < n; i++)
		bytes += iov[i].iov_len;
	return bytes;
}

#define IOV_MAX_HERE 8
/* A copy of the vector that ends where the call is cut short; returns its length. */
static int cut_vector(const struct iovec *from, size_t n, struct iovec to[IOV_MAX_HERE])
{
	size_t left = cut(vector_bytes(from, n));
	int k = 0;
	for (; (size_t)k < n && k < IOV_MAX_HERE && (left || !k); k++) {
		to[k] = from[k];
		if (to[k].iov_len > left)
			to[k].iov_len = left;
		left -= to[k].iov_len;
	}
	return k;
}

ssize_t __real_send(int fd, const void *buf, size_t bytes, int flags);
ssize_t __wrap_send(int fd, const void *buf, size_t bytes, int flags)
{
	return spoilt(fd, bytes) ? -1 : __real_send(fd, buf, cut(bytes), flags);
}

ssize_t __real_recv(int fd, void *buf, size_t bytes, int flags);
ssize_t __wrap_recv(int fd, void *buf, size_t bytes, int flags)
{
	return spoilt(fd, bytes) ? -1 : __real_recv(fd, buf, flags & MSG_PEEK ? bytes : cut(bytes), flags);
}

ssize_t __real_sendmsg(int fd, const struct msghdr *m, int flags);
ssize_t __wrap_sendmsg(int fd, const struct msghdr *m, int flags)
{
	struct iovec iov[IOV_MAX_HERE];
	struct msghdr part = *m;
	if (spoilt(fd, vector_bytes(m->msg_iov, m->msg_iovlen)))
		return -1;
	part.msg_iov = iov;
	part.msg_iovlen = (size_t)cut_vector(m->msg_iov, m->msg_iovlen, iov);
	return __real_sendmsg(fd, &part, flags);
}

ssize_t __real_recvmsg(int fd, struct msghdr *m, int flags);
ssize_t __wrap_recvmsg(int fd, struct msghdr *m, int flags)
{
	struct iovec iov[IOV_MAX_HERE], *whole = m->msg_iov;
	size_t n = m->msg_iovlen;
	ssize_t got;
	if (spoilt(fd, vector_bytes(whole, n)))
		return -1;
	if (!n)
		return __real_recvmsg(fd, m, flags);
	m->msg_iov = iov;
	m->msg_iovlen = (size_t)cut_vector(whole, n, iov);
	got = __real_recvmsg(fd, m, flags);
	m->msg_iov = whole;
	m->msg_iovlen = n;
	return got;
}

ssize_t __real_readv(int fd, const struct iovec *iov, int n);
ssize_t __wrap_readv(int fd, const struct iovec *iov, int n)
{
	struct iovec part[IOV_MAX_HERE];
	if (spoilt(fd, vector_bytes(iov, (size_t)n)))
		return -1;
	n = cut_vector(iov, (size_t)n, part);
	return __real_readv(fd, part, n);
}

/* Whole or not at all, as the kernel does it with one piece. */
ssize_t __real_process_vm_readv(pid_t pid, const struct iovec *to, unsigned long n, const struct iovec *from,
                                unsigned long m, unsigned long flags);
ssize_t __wrap_process_vm_readv(pid_t pid, const struct iovec *to, unsigned long n, const struct iovec *from,
                                unsigned long m, unsigned long flags)
{
	inject_late();
	if (inject_reset()) {
		errno = EFAULT;
		return -1;
	}
	return __real_process_vm_readv(pid, to, n, from, m, flags);
}

int __real_poll(struct pollfd *p, nfds_t n, int ms);
int __wrap_poll(struct pollfd *p, nfds_t n, int ms)
{
	inject_late();
	if (inject_hit(EINTR_P)) {
		errno = EINTR;
		return -1;
	}
	return __real_poll(p, n, ms);
}

int __wrap___poll_chk(struct pollfd *p, nfds_t n, int ms, size_t room);
int __wrap___poll_chk(struct pollfd *p, nfds_t n, int ms, size_t room)
{
	return n * sizeof *p > room ? (abort(), -1) : __wrap_poll(p, n, ms);
}

/* A connect that is interrupted goes on by itself. */
int __real_connect(int fd, const struct sockaddr *sa, socklen_t bytes);
int __wrap_connect(int fd, const struct sockaddr *sa, socklen_t bytes)
{
	int rc;
	inject_late();
	rc = __real_connect(fd, sa, bytes);
	if ((!rc || errno == EINPROGRESS) && inject_hit(EINTR_P)) {
		errno = EINTR;
		return -1;
	}
	return rc;
}

int __real_accept4(int fd, struct sockaddr *sa, socklen_t *bytes, int flags);
int __wrap_accept4(int fd, struct sockaddr *sa, socklen_t *bytes, int flags)
{
	if (inject_hit(EAGAIN_P)) {
		errno = EAGAIN;
		return -1;
	}
	if (inject_refused()) {
		errno = EMFILE;
		return -1;
	}
	return __real_accept4(fd, sa, bytes, flags);
}
