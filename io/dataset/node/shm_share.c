/* The memory that the ranks of a node share: made by the first of them, passed to the
 * others through a local socket. Who gets it is a process of the same user that has proved
 * to have the job's secret, and who takes it has had the same proved:
 *
 *     first rank    its nonce F                   32 bytes, a message each
 *     other rank    its nonce O, HMAC(K, O F 0)   64
 *     first rank    HMAC(K, F O 1)                32, with the descriptors
 *
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

#include "base/sha256.h"
#include "io/dataset/net/fetch.h"
#include "gradcomp/stage.h"
#include "job/job.h"
#include "security/secret.h"

#define SHARE_MAGIC 0x6763646174617331u /* "gcdatas1" */
#define PAGE 4096u
#define SEALS (F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL)
#define LOOK_MS 100
#define PROOF_NS 10000000000u /* after which who connected and proves nothing is let go */
#define PENDING_MAX 64        /* at a time that have not proved anything yet */
#define NONCE 32
#define WINDOW_PART 8 /* one part in so many of the memory is for values of other nodes */

static uint64_t paged(uint64_t bytes)
{
	return (bytes + PAGE - 1) & ~(uint64_t)(PAGE - 1);
}

/* Where the mapping can have huge pages of the file: at a multiple of one. */
static void *map_aligned(int fd, uint64_t bytes)
{
	uint64_t length = paged(bytes), all = length + HUGE_PAGE;
	unsigned char *space = mmap(NULL, all, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	uint64_t before = -(uintptr_t)space & (HUGE_PAGE - 1);
	void *at;
	if (space == MAP_FAILED)
		return MAP_FAILED;
	at = mmap(space + before, length, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE | MAP_FIXED, fd, 0);
	if (at == MAP_FAILED) {
		int why = errno;

		munmap(space, all);
		errno = why;
		return MAP_FAILED;
	}
	if (before)
		munmap(space, before);
	munmap(space + before + length, HUGE_PAGE - before);
	return at;
}

static gradcomp_status shm_share_map(gradcomp_dataset *ds, uint64_t bytes, gradcomp_error *err)
{
	char text[32];
	void *at = map_aligned(ds->fd, bytes);
	if (at == MAP_FAILED)
		return error_errno(err, GRADCOMP_ERR_NOMEM, "cannot map %s of shared memory for a dataset (ulimit -v?)",
		                   gradcomp_size_text(bytes, text));
	ds->head = at;
	ds->mapped = bytes;
	return GRADCOMP_OK;
}

static void shm_share_parts(gradcomp_dataset *ds)
{
	shared_head *h = ds->head;
	ds->slots = (slot *)((unsigned char *)h + h->slots);
	ds->owners.lost = (atomic_uchar *)h + h->lost;
	ds->area = (rank_area *)((unsigned char *)h + h->areas) + ds->place;
	if (!h->ntickets)
		return;
	ds->fetch = (fetch_area *)((unsigned char *)h + h->fetch) + ds->place;
	ds->tickets = (ticket *)((unsigned char *)h + h->tickets) + (size_t)ds->place * h->ntickets;
}

/* Says where the parts begin. Returns the bytes of all. */
static uint64_t shm_share_layout(const gradcomp_dataset *ds, uint64_t memory, shared_head *h)
{
	uint64_t here = (uint64_t)ds->nlocal;
	*h = (shared_head){.magic = SHARE_MAGIC, .nslots = ds->nslots, .memory = memory, .slots = paged(sizeof *h)};
	if (ds->nnodes > 1) {
		h->ntickets = fetch_tickets(ds->o.prefetch);
		h->rx_buffer_bytes = memory / WINDOW_PART / here / PAGE * PAGE;
	}
	h->lost = h->slots + paged(owners_table(&ds->owners, ds->node) * sizeof(slot));
	h->areas = h->lost + paged((uint64_t)ds->nnodes);
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
	*listener = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (*listener < 0 || bind(*listener, (struct sockaddr *)&sa, listener_address(name, &sa)) ||
	    listen(*listener, ds->nlocal))
		return error_errno(err, GRADCOMP_ERR_IO, "cannot open a socket for the other ranks of the node");
	return GRADCOMP_OK;
}

static bool same_user(int fd)
{
	struct ucred peer;
	socklen_t bytes = sizeof peer;
	return !getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &bytes) && peer.uid == geteuid();
}

/* Makes the proof of the secret for the other one: of both nonces, the own one first, and which side it is. */
static void prove(const gradcomp_dataset *ds, const shm_share_name *name, const unsigned char own[NONCE],
                  const unsigned char other[NONCE], unsigned char side, unsigned char mac[SHA256_BYTES])
{
	unsigned char key[TRANSPORT_SECRET_BYTES], text[2 * NONCE + 1];
	transport_key(ds->group->job->transport, "gradcomp dataset 1", name->text, sizeof name->text, key);
	memcpy(text, own, NONCE);
	memcpy(text + NONCE, other, NONCE);
	text[2 * NONCE] = side;
	sha256_hmac(key, sizeof key, text, sizeof text, mac);
	secret_wipe(key, sizeof key);
}

static bool pass(int fd, const unsigned char mac[SHA256_BYTES], const int *fds, int n)
{
	union {
		struct cmsghdr head;
		char room[CMSG_SPACE(2 * sizeof(int))];
	} control = {0};
	struct iovec iov = {(void *)(uintptr_t)mac, SHA256_BYTES};
	struct msghdr m = {.msg_iov = &iov,
	                   .msg_iovlen = 1,
	                   .msg_control = &control,
	                   .msg_controllen = CMSG_SPACE((size_t)n * sizeof(int))};
	struct cmsghdr *c = CMSG_FIRSTHDR(&m);

	c->cmsg_level = SOL_SOCKET;
	c->cmsg_type = SCM_RIGHTS;
	c->cmsg_len = CMSG_LEN((size_t)n * sizeof(int));
	memcpy(CMSG_DATA(c), fds, (size_t)n * sizeof(int));
	return sendmsg(fd, &m, MSG_NOSIGNAL) == SHA256_BYTES;
}

/* Waits for the sockets a while. Fails when the job has, and after `end`. */
static gradcomp_status look(gradcomp_dataset *ds, struct pollfd *p, unsigned n, uint64_t end, gradcomp_error *err)
{
	gradcomp_status st = transport_failure(ds->group->job->transport, err);
	if (!st && process_clock_ns() > end)
		st = error_set(err, GRADCOMP_ERR_TIMEOUT,
		               "the ranks of a node did not connect to share a dataset's memory within "
		               "transport.timeout");
	if (!st && poll(p, n, LOOK_MS) <= 0)
		for (unsigned i = 0; i < n; i++)
			p[i].revents = 0;
	return st;
}

static gradcomp_status await(gradcomp_dataset *ds, int fd, uint64_t end, gradcomp_error *err)
{
	struct pollfd p = {fd, POLLIN, 0};
	gradcomp_status st = GRADCOMP_OK;
	while (!st && !p.revents)
		st = look(ds, &p, 1, end, err);
	return st;
}

/* A process that has connected and proved nothing yet. */
typedef struct pending {
	int fd;
	uint64_t end;
	unsigned char nonce[NONCE];
} pending;

typedef struct pending_list {
	pending at[PENDING_MAX];
	unsigned n;
} pending_list;

static void pending_close(pending_list *l, unsigned i)
{
	close(l->at[i].fd);
	l->at[i] = l->at[--l->n];
}

static void pending_accept(pending_list *l, int listener)
{
	pending *g = &l->at[l->n];
	g->fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
	if (g->fd < 0)
		return;
	g->end = process_clock_ns() + PROOF_NS;
	l->n++;
	if (!same_user(g->fd) || getrandom(g->nonce, NONCE, 0) != NONCE ||
	    send(g->fd, g->nonce, NONCE, MSG_NOSIGNAL) != NONCE)
		pending_close(l, l->n - 1);
}

/* It has said something: true when that proves the secret, and it has got the memory. */
static bool pending_served(gradcomp_dataset *ds, const shm_share_name *name, const pending *g)
{
	unsigned char said[NONCE + SHA256_BYTES], mac[SHA256_BYTES];
	int fds[2] = {ds->fd, ds->spill_fd};
	if (recv(g->fd, said, sizeof said, MSG_TRUNC) != sizeof said)
		return false;
	prove(ds, name, said, g->nonce, 0, mac);
	if (!secret_equal(said + NONCE, mac, sizeof mac))
		return false;
	prove(ds, name, g->nonce, said, 1, mac);
	return pass(g->fd, mac, fds, ds->spill_fd < 0 ? 1 : 2);
}

gradcomp_status shm_share_serve(gradcomp_dataset *ds, const shm_share_name *name, int listener, double seconds,
                                gradcomp_error *err)
{
	uint64_t end = process_clock_ns() + (uint64_t)(seconds * 1e9);
	pending_list *l = calloc(1, sizeof *l);
	gradcomp_status st = l ? GRADCOMP_OK : error_set(err, GRADCOMP_ERR_NOMEM, "no memory for a dataset");
	int given = 1;
	while (!st && given < ds->nlocal) {
		struct pollfd p[PENDING_MAX + 1] = {{listener, (short)(l->n < PENDING_MAX ? POLLIN : 0), 0}};

		for (unsigned i = 0; i < l->n; i++)
			p[i + 1] = (struct pollfd){l->at[i].fd, POLLIN, 0};
		st = look(ds, p, l->n + 1, end, err);
		for (unsigned i = l->n; !st && i-- > 0;) {
			if (p[i + 1].revents)
				given += pending_served(ds, name, &l->at[i]);
			if (p[i + 1].revents || process_clock_ns() > l->at[i].end)
				pending_close(l, i);
		}
		if (!st && p[0].revents)
			pending_accept(l, listener);
	}
	while (l && l->n)
		pending_close(l, 0);
	free(l);
	return st;
}

/* 0 when what came is the proof with one or two descriptors. */
static int receive(int fd, unsigned char mac[SHA256_BYTES], int fds[2])
{
	union {
		struct cmsghdr head;
		char room[CMSG_SPACE(2 * sizeof(int))];
	} control;
	struct iovec iov = {mac, SHA256_BYTES};
	struct msghdr m = {.msg_iov = &iov, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control};
	struct cmsghdr *c;

	if (recvmsg(fd, &m, MSG_CMSG_CLOEXEC) != SHA256_BYTES || !(c = CMSG_FIRSTHDR(&m)) || c->cmsg_type != SCM_RIGHTS)
		return -1;
	for (size_t i = 0; i < 2 && c->cmsg_len >= CMSG_LEN((i + 1) * sizeof(int)); i++)
		memcpy(&fds[i], CMSG_DATA(c) + i * sizeof(int), sizeof(int));
	return fds[0] < 0 ? -1 : 0;
}

/* Takes what the first rank gives to one who proves the secret, and has proved itself. */
static gradcomp_status take(gradcomp_dataset *ds, const shm_share_name *name, int fd, uint64_t end, int fds[2],
                            gradcomp_error *err)
{
	unsigned char first[NONCE], said[NONCE + SHA256_BYTES], mac[SHA256_BYTES], want[SHA256_BYTES];
	gradcomp_status st = await(ds, fd, end, err);
	if (st)
		return st;
	if (recv(fd, first, sizeof first, MSG_TRUNC) != sizeof first || getrandom(said, NONCE, 0) != NONCE)
		return error_set(err, GRADCOMP_ERR_IO, "the first rank of the node gave no sound memory for a dataset");
	prove(ds, name, said, first, 0, said + NONCE);
	if (send(fd, said, sizeof said, MSG_NOSIGNAL) != sizeof said)
		return error_errno(err, GRADCOMP_ERR_IO,
		                   "cannot reach the first rank of the node for a dataset's memory");
	st = await(ds, fd, end, err);
	if (st)
		return st;
	if (receive(fd, mac, fds))
		return error_set(err, GRADCOMP_ERR_IO, "the first rank of the node gave no sound memory for a dataset");
	prove(ds, name, first, said, 1, want);
	return secret_equal(mac, want, sizeof mac)
	               ? GRADCOMP_OK
	               : error_set(err, GRADCOMP_ERR_INSECURE,
	                           "who gives a dataset's memory does not have the job's secret");
}

gradcomp_status shm_share_attach(gradcomp_dataset *ds, const shm_share_name *name, double seconds, gradcomp_error *err)
{
	struct sockaddr_un sa;
	struct stat status;
	int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0), fds[2] = {-1, -1};
	gradcomp_status st;
	if (fd < 0 || connect(fd, (struct sockaddr *)&sa, listener_address(name, &sa))) {
		st = error_errno(err, GRADCOMP_ERR_IO,
		                 "cannot reach the first rank of the node for a dataset's memory");
		goto done;
	}
	st = same_user(fd)
	             ? take(ds, name, fd, process_clock_ns() + (uint64_t)(seconds * 1e9), fds, err)
	             : error_set(err, GRADCOMP_ERR_INSECURE, "another user answers for the first rank of the node");
	ds->fd = fds[0];
	ds->spill_fd = fds[1];
	if (st)
		goto done;
	st = error_set(err, GRADCOMP_ERR_IO, "the first rank of the node gave no sound memory for a dataset");
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
