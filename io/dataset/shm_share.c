/* The memory that the ranks of a node share: made by the first of them, passed to the
 * others through a local socket, to processes of the same user only.
 * It has no name in any file system, and ends with the last process that maps it. */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "io/dataset/fetch.h"
#include "gradcomp/stage.h"
#include "job/job.h"

#define SHARE_MAGIC 0x6763646174617331u /* "gcdatas1" */
#define PAGE 4096u
#define SEALS (F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL)
#define LOOK_MS 100
#define WINDOW_PART 8 /* of the memory is for values of other nodes */

static uint64_t paged(uint64_t bytes)
{
	return (bytes + PAGE - 1) & ~(uint64_t)(PAGE - 1);
}

static gradcomp_status shm_share_map(gradcomp_dataset *ds, uint64_t bytes, gradcomp_error *err)
{
	char text[32];
	void *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, ds->fd, 0);

	if (at == MAP_FAILED)
		return error_errno(err, GRADCOMP_ERR_NOMEM,
		                   "cannot map %s of shared memory for a dataset (ulimit -v?)",
		                   gradcomp_size_text(bytes, text));
	ds->head = at;
	ds->mapped = bytes;
	return GRADCOMP_OK;
}

static void shm_share_parts(gradcomp_dataset *ds)
{
	shared_head *h = ds->head;

	ds->slots = (slot *)((unsigned char *)h + h->slots);
	ds->area = (rank_area *)((unsigned char *)h + h->areas) + ds->local;
	if (!h->ntickets)
		return;
	ds->fetch = (fetch_area *)((unsigned char *)h + h->fetch) + ds->local;
	ds->tickets = (ticket *)((unsigned char *)h + h->tickets) + (size_t)ds->local * h->ntickets;
}

/* Where the parts begin; the bytes of all. */
static uint64_t shm_share_layout(const gradcomp_dataset *ds, uint64_t memory, shared_head *h)
{
	uint64_t here = (uint64_t)ds->nlocal;

	*h = (shared_head){.magic = SHARE_MAGIC, .nslots = ds->nslots, .memory = memory, .slots = paged(sizeof *h)};
	if (ds->nnodes > 1) {
		h->ntickets = fetch_tickets(ds->o.prefetch);
		h->rx_buffer_bytes = memory / WINDOW_PART / here / PAGE * PAGE;
	}
	h->areas = h->slots + paged(ds->nslots * sizeof(slot));
	h->fetch = h->areas + paged(here * sizeof(rank_area));
	h->tickets = h->fetch + (h->ntickets ? paged(here * sizeof(fetch_area)) : 0);
	h->rx_buffer = h->tickets + paged(here * h->ntickets * sizeof(ticket));
	h->arena = h->rx_buffer + here * h->rx_buffer_bytes;
	h->arena_limit = memory - here * h->rx_buffer_bytes;
	h->bytes = h->arena + paged(h->arena_limit);
	return h->bytes;
}

static gradcomp_status shm_share_memory(gradcomp_dataset *ds, gradcomp_error *err)
{
	shared_head *layout;
	uint64_t memory, bytes;
	gradcomp_status st = mem_limit_dataset(ds, &memory, err);

	if (st)
		return st;
	layout = malloc(sizeof *layout);
	if (!layout)
		return error_set(err, GRADCOMP_ERR_NOMEM, "no memory for a dataset");
	bytes = shm_share_layout(ds, memory, layout);
	ds->fd = memfd_create("gradcomp-dataset", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	if (ds->fd < 0 || ftruncate(ds->fd, (off_t)bytes) || fcntl(ds->fd, F_ADD_SEALS, SEALS))
		st = error_errno(err, GRADCOMP_ERR_NOMEM, "cannot make %llu bytes of shared memory for a dataset",
		                 (unsigned long long)bytes);
	else
		st = shm_share_map(ds, bytes, err);
	if (!st) {
		*ds->head = *layout;
		shm_share_parts(ds);
	}
	free(layout);
	return !st && ds->spill ? spill_open(ds, err) : st;
}

static socklen_t listener_address(const shm_share_name *name, struct sockaddr_un *sa)
{
	size_t n = strnlen(name->text, sizeof name->text);

	*sa = (struct sockaddr_un){.sun_family = AF_UNIX};
	memcpy(sa->sun_path + 1, name->text, n);
	return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + n);
}

gradcomp_status shm_share_create(gradcomp_dataset *ds, shm_share_name *name, int *listener, gradcomp_error *err)
{
	struct sockaddr_un sa;
	uint64_t random[2];
	gradcomp_status st = shm_share_memory(ds, err);

	if (st || ds->nlocal == 1)
		return st;
	if (getrandom(random, sizeof random, 0) != sizeof random)
		return error_errno(err, GRADCOMP_ERR_IO, "no random numbers for a dataset");
	snprintf(name->text, sizeof name->text, "gradcomp-%016llx%016llx", (unsigned long long)random[0],
	         (unsigned long long)random[1]);
	*listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
	if (*listener < 0 || bind(*listener, (struct sockaddr *)&sa, listener_address(name, &sa)) || listen(*listener, ds->nlocal))
		return error_errno(err, GRADCOMP_ERR_IO, "cannot open a socket for the other ranks of the node");
	return GRADCOMP_OK;
}

static bool same_user(int fd)
{
	struct ucred peer;
	socklen_t bytes = sizeof peer;

	return !getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &bytes) && peer.uid == geteuid();
}

static bool pass(int fd, const int *fds, int n)
{
	union {
		struct cmsghdr head;
		char room[CMSG_SPACE(2 * sizeof(int))];
	} control = {0};
	char told = (char)n;
	struct iovec iov = {&told, 1};
	struct msghdr m = {.msg_iov = &iov,
	                   .msg_iovlen = 1,
	                   .msg_control = &control,
	                   .msg_controllen = CMSG_SPACE((size_t)n * sizeof(int))};
	struct cmsghdr *c = CMSG_FIRSTHDR(&m);

	c->cmsg_level = SOL_SOCKET;
	c->cmsg_type = SCM_RIGHTS;
	c->cmsg_len = CMSG_LEN((size_t)n * sizeof(int));
	memcpy(CMSG_DATA(c), fds, (size_t)n * sizeof(int));
	return sendmsg(fd, &m, MSG_NOSIGNAL) == 1;
}

/* Waits for the socket, at most until `end`, as long as the job goes on. */
static gradcomp_status await(gradcomp_dataset *ds, int fd, uint64_t end, gradcomp_error *err)
{
	struct pollfd p = {fd, POLLIN, 0};

	for (;;) {
		gradcomp_status st = transport_failure(ds->group->job->transport, err);

		if (st)
			return st;
		if (poll(&p, 1, LOOK_MS) > 0)
			return GRADCOMP_OK;
		if (clock_ns() > end)
			return error_set(err, GRADCOMP_ERR_TIMEOUT,
			                 "the ranks of a node did not connect to share a dataset's memory within "
			                 "transport.timeout");
	}
}

gradcomp_status shm_share_serve(gradcomp_dataset *ds, int listener, double seconds, gradcomp_error *err)
{
	uint64_t end = clock_ns() + (uint64_t)(seconds * 1e9);
	int fds[2] = {ds->fd, ds->spill_fd};

	for (int given = 1; given < ds->nlocal;) {
		gradcomp_status st = await(ds, listener, end, err);
		int fd;

		if (st)
			return st;
		fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
		if (fd < 0)
			continue;
		given += same_user(fd) && pass(fd, fds, ds->spill_fd < 0 ? 1 : 2);
		close(fd);
	}
	return GRADCOMP_OK;
}

/* 0 when what came are one or two descriptors. */
static int receive(int fd, int fds[2])
{
	union {
		struct cmsghdr head;
		char room[CMSG_SPACE(2 * sizeof(int))];
	} control;
	char n = 0;
	struct iovec iov = {&n, 1};
	struct msghdr m = {
		.msg_iov = &iov, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control};
	struct cmsghdr *c;

	if (recvmsg(fd, &m, MSG_CMSG_CLOEXEC) != 1 || !(c = CMSG_FIRSTHDR(&m)) || c->cmsg_type != SCM_RIGHTS)
		return -1;
	for (size_t i = 0; i < 2 && c->cmsg_len >= CMSG_LEN((i + 1) * sizeof(int)); i++)
		memcpy(&fds[i], CMSG_DATA(c) + i * sizeof(int), sizeof(int));
	return fds[0] < 0 || (n == 2) != (fds[1] >= 0) ? -1 : 0;
}

gradcomp_status shm_share_attach(gradcomp_dataset *ds, const shm_share_name *name, double seconds, gradcomp_error *err)
{
	struct sockaddr_un sa;
	struct stat status;
	int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0), fds[2] = {-1, -1};
	gradcomp_status st;

	if (fd < 0 || connect(fd, (struct sockaddr *)&sa, listener_address(name, &sa))) {
		st = error_errno(err, GRADCOMP_ERR_IO,
		                 "cannot reach the first rank of the node for a dataset's memory");
		goto done;
	}
	st = same_user(fd)
	             ? await(ds, fd, clock_ns() + (uint64_t)(seconds * 1e9), err)
	             : error_set(err, GRADCOMP_ERR_INSECURE, "another user answers for the first rank of the node");
	if (st)
		goto done;
	st = error_set(err, GRADCOMP_ERR_IO, "the first rank of the node gave no sound memory for a dataset");
	if (receive(fd, fds)) {
		if (fds[0] >= 0)
			close(fds[0]);
		goto done;
	}
	ds->fd = fds[0];
	ds->spill_fd = fds[1];
	if (fstat(ds->fd, &status) || (uint64_t)status.st_size < paged(sizeof(shared_head)) ||
	    (fcntl(ds->fd, F_GET_SEALS) & SEALS) != SEALS)
		goto done;
	st = shm_share_map(ds, (uint64_t)status.st_size, err);
	if (!st && (ds->head->magic != SHARE_MAGIC || ds->head->bytes != (uint64_t)status.st_size ||
	            ds->head->nslots != ds->nslots))
		st = error_set(err, GRADCOMP_ERR_MISMATCH, "the ranks of a node do not mean the same dataset");
	if (!st)
		shm_share_parts(ds);
done:
	if (fd >= 0)
		close(fd);
	return st;
}

void shm_share_detach(gradcomp_dataset *ds)
{
	if (ds->head)
		munmap(ds->head, ds->mapped);
	if (ds->fd >= 0)
		close(ds->fd);
	if (ds->spill_fd >= 0)
		close(ds->spill_fd);
}
