#define _GNU_SOURCE
#include "transport/shm/multicast.h"

#include "transport/shm/shm.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

multicast *multicast_create(void)
{
	multicast *s = calloc(1, sizeof *s);

	if (!s)
		return NULL;
	s->mem = MAP_FAILED;
	s->fd = shm_memory(MULTICAST_BYTES);
	if (s->fd >= 0)
		s->mem = mmap(NULL, MULTICAST_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, s->fd, 0);
	if (s->mem != MAP_FAILED)
		return s;
	multicast_free(s);
	return NULL;
}

void multicast_free(multicast *s)
{
	if (!s)
		return;
	if (s->mem != MAP_FAILED)
		munmap(s->mem, MULTICAST_BYTES);
	if (s->fd >= 0)
		close(s->fd);
	free(s);
}

uint64_t multicast_reserve(multicast *s, size_t bytes)
{
	uint64_t first = s->reserved;

	s->reserved += (bytes + MULTICAST_SLOT - 1) / MULTICAST_SLOT;
	return first;
}

typedef union descriptor {
	struct cmsghdr head;
	char space[CMSG_SPACE(sizeof(int))];
} descriptor;

int multicast_pass(const multicast *s, int socket)
{
	char byte = 0;
	descriptor d = {.space = {0}};
	struct iovec v = {&byte, 1};
	struct msghdr m = {.msg_iov = &v, .msg_iovlen = 1, .msg_control = &d, .msg_controllen = sizeof d.space};

	d.head = (struct cmsghdr){.cmsg_len = CMSG_LEN(sizeof(int)), .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS};
	memcpy(CMSG_DATA(&d.head), &s->fd, sizeof(int));
	return sendmsg(socket, &m, MSG_NOSIGNAL | MSG_DONTWAIT) == 1 ? 0 : -1;
}

ssize_t multicast_hear(int socket, int *fd)
{
	char bytes[64];
	descriptor d;
	struct iovec v = {bytes, sizeof bytes};
	struct msghdr m = {.msg_iov = &v, .msg_iovlen = 1, .msg_control = &d, .msg_controllen = sizeof d.space};
	ssize_t got = recvmsg(socket, &m, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
	const struct cmsghdr *c = got > 0 ? CMSG_FIRSTHDR(&m) : NULL;

	*fd = -1;
	if (c && c->cmsg_level == SOL_SOCKET && c->cmsg_type == SCM_RIGHTS && c->cmsg_len == CMSG_LEN(sizeof(int)))
		memcpy(fd, CMSG_DATA(c), sizeof(int));
	if (got <= 0 || !(m.msg_flags & MSG_CTRUNC))
		return got;
	if (*fd >= 0)
		close(*fd);
	*fd = -1;
	errno = EMFILE;
	return -1;
}

const unsigned char *multicast_map(int fd)
{
	void *mem = shm_valid(fd, MULTICAST_BYTES) ? mmap(NULL, MULTICAST_BYTES, PROT_READ, MAP_SHARED | MAP_POPULATE, fd, 0)
	                                     : MAP_FAILED;

	close(fd);
	return mem == MAP_FAILED ? NULL : mem;
}

void multicast_unmap(const unsigned char *mem)
{
	if (mem)
		munmap((void *)(uintptr_t)mem, MULTICAST_BYTES);
}
