/* Links between ranks of one node: short messages go through a ring in shared
 * memory, long ones are read by the receiver straight out of the sender's
 * buffer where the kernel allows it. The local socket they were set up over
 * carries wake-ups, one byte each, and shows when the peer is gone. */
#define _GNU_SOURCE
#include "shm.h"

#include "error.h"
#include "numa.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#define RING_MOST (1u << 20)
#define RING_LEAST (64u << 10)
#define RINGS_BYTES (16u << 20) /* of one rank's outgoing rings, when it talks to all others here */
#define SEALS (F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL)

/* A piece of a collective fits in a ring, so that neither side waits for the other
 * within one; where every rank of a big node talks to all others their rings are
 * not to need more than they have to say. */
uint32_t shm_ring_bytes(const transport *t)
{
	uint32_t ring = RING_MOST;

	while (ring > RING_LEAST && (uint64_t)ring * (unsigned)t->here > RINGS_BYTES)
		ring /= 2;
	return ring;
}

int shm_create(uint32_t ring, gradcomp_error *err)
{
	size_t bytes = RING_PAGE + 2 * (size_t)ring;
	int fd = memfd_create("gradcomp", MFD_CLOEXEC | MFD_ALLOW_SEALING);

	if (fd >= 0 && !ftruncate(fd, (off_t)bytes) && !fcntl(fd, F_ADD_SEALS, SEALS))
		return fd;
	error_errno(err, GRADCOMP_ERR_IO, "cannot make %zu bytes of shared memory", bytes);
	if (fd >= 0)
		close(fd);
	return -1;
}

/* What the peer wrote into shared memory cannot be. */
int shm_corrupt(peer_link *l)
{
	link_fail(l, GRADCOMP_ERR_INTERNAL, "rank %d on %s has corrupted the memory it shares with rank %d", l->world,
	          transport_host(l->c->t, l->world), l->c->t->rank);
	return -1;
}

/* Reading the peer's memory may be forbidden, or its process number may mean
 * somebody else here: whoever shows the cookie at the place told is the peer. */
static void shm_probe(peer_link *l, shm *m)
{
	unsigned char want[16], found[16];
	struct iovec local = {found, sizeof found}, remote = {NULL, sizeof found};
	struct ucred cred;
	socklen_t bytes = sizeof cred;

	if (!atomic_load_explicit(&m->theirs->cookie_set, memory_order_acquire))
		return;
	m->probed = 1;
	memcpy(want, m->theirs->cookie, sizeof want);
	remote.iov_base = (void *)(uintptr_t)m->theirs->cookie_at;
	if (!l->c->t->o.cma || getsockopt(l->fd[0], SOL_SOCKET, SO_PEERCRED, &cred, &bytes) || cred.pid <= 0)
		return;
	m->pid = cred.pid;
	if (process_vm_readv(m->pid, &local, 1, &remote, 1, 0) != sizeof found || memcmp(want, found, sizeof want))
		return;
	m->reading = 1;
	atomic_store_explicit(&m->mine->reads, 1, memory_order_release);
}

static int shm_move(peer_link *l, shm *m)
{
	int moved = l->send.head ? shm_push(l, m) : 0;

	if (l->recv.head)
		moved |= shm_pull(l, m);
	return moved > 0;
}

static int shm_progress(peer_link *l)
{
	shm *m = l->impl;

	if (!m->probed)
		shm_probe(l, m);
	if (shm_move(l, m))
		return 1;
	if (l->goodbye || !atomic_load_explicit(&m->theirs->goodbye, memory_order_acquire))
		return 0;
	/* What it sent before the goodbye is there by now. */
	if (shm_move(l, m))
		return 1;
	l->goodbye = 1;
	link_eof(l);
	return 0;
}

static int shm_sleep(peer_link *l, struct pollfd *p)
{
	shm *m = l->impl;

	atomic_store_explicit(&m->mine->want, (l->recv.head ? WANT_DATA : 0) | (l->send.head ? WANT_ROOM : 0),
	                      memory_order_relaxed);
	atomic_thread_fence(memory_order_seq_cst);
	*p = (struct pollfd){l->fd[0], POLLIN, 0};
	return 1;
}

static void shm_wake(peer_link *l, const struct pollfd *p, int n)
{
	shm *m = l->impl;
	char bytes[64];
	ssize_t got;

	(void)n;
	atomic_store_explicit(&m->mine->want, 0, memory_order_relaxed);
	if (!p->revents)
		return;
	got = recv(l->fd[0], bytes, sizeof bytes, MSG_DONTWAIT);
	if (!got || (got < 0 && errno != EAGAIN && errno != EINTR))
		link_eof(l);
}

static void shm_revoke(peer_link *l)
{
	shm *m = l->impl;

	/* The page is shared with the rank a process was forked off, too. */
	if (l->c->t->forked)
		return;
	atomic_store_explicit(&m->mine->revoked, 1, memory_order_seq_cst);
}

static void shm_close(peer_link *l, int goodbye)
{
	shm *m = l->impl;

	shm_revoke(l);
	if (goodbye)
		atomic_store_explicit(&m->mine->goodbye, 1, memory_order_release);
	munmap(m->page, RING_PAGE + 2 * m->ring);
	free(m->piece);
	free(m);
}

static void shm_posted(peer_link *l, request *r)
{
	shm *m = l->impl;

	if (r->sending && !m->cur)
		m->cur = r;
}

static const link_ops shm_ops = {shm_posted, shm_progress, shm_sleep, shm_wake, shm_revoke, shm_close};

/* The memory that came with the connection is what the peer made, not what it
 * promised: of the right size, and never to become smaller under our hands. */
static int shm_sound(int fd, size_t bytes)
{
	struct stat st;

	return !fstat(fd, &st) && S_ISREG(st.st_mode) && st.st_size == (off_t)bytes &&
	       (fcntl(fd, F_GET_SEALS) & SEALS) == SEALS;
}

int shm_open_link(peer_link *l)
{
	transport *t = l->c->t;
	size_t bytes = RING_PAGE + 2 * (size_t)l->h.part;
	int side = t->rank < l->world; /* 0: this rank connected */
	void *map = MAP_FAILED;
	shm *m;

	if (!shm_sound(l->passed, bytes)) {
		link_fail(l, GRADCOMP_ERR_INTERNAL, "rank %d on %s offers unsound shared memory", l->world,
		          transport_host(t, l->world));
		return -1;
	}
	m = calloc(1, sizeof *m);
	if (m)
		map = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, l->passed, 0);
	if (map == MAP_FAILED) {
		free(m);
		link_lack(l, GRADCOMP_ERR_NOMEM, "cannot map %zu bytes shared with rank %d", bytes, l->world);
		return -1;
	}
	close(l->passed);
	l->passed = -1;
	m->page = map;
	m->ring = l->h.part;
	m->mine = &m->page->side[side];
	m->theirs = &m->page->side[!side];
	m->out = (unsigned char *)map + RING_PAGE + (side ? m->ring : 0);
	m->in = (unsigned char *)map + RING_PAGE + (side ? 0 : m->ring);
	/* Whoever reads waits for memory, whoever writes does not. */
	if (t->numa)
		numa_near(m->in, m->ring);
	memcpy(m->mine->cookie, t->cookie, sizeof t->cookie);
	m->mine->cookie_at = (uintptr_t)t->cookie;
	atomic_store_explicit(&m->mine->cookie_set, 1, memory_order_release);
	l->impl = m;
	l->ops = &shm_ops;
	return 0;
}
