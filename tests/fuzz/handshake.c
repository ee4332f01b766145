/* The accepting side of the handshake: whatever arrives is dropped, or it is a HELLO
 * within its limits whose sender has the secret. Input: a byte of flags, a byte that
 * says where the bytes are cut in two, a HELLO, and then a proof. With flag 1 the
 * proof is the right one: what a rank of the job can say. */
#include "tests/fuzz/harness.h"

#include "transport/link/link.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

static long taken, refused;
static const log_sink quiet = {(gradcomp_log_level)-1, 0};

static transport *make(void)
{
	transport_options o = {.rank = 0,
	                       .nranks = 1,
	                       .timeout = 10,
	                       .wait_timeout = 10,
	                       .streams = 1,
	                       .chunk = 65536,
	                       .allow = "shm,tcp",
	                       .log = &quiet};
	transport *t;
	if (transport_listen(&o, &t, NULL))
		abort();
	t->rank = 2;
	t->nranks = 9;
	for (int i = 0; i < TREE_NEIGHBOURS; i++)
		t->tree.near[i].rank = i ? 4 + i : 0;
	return t;
}

static void empty(transport *t)
{
	for (int i = 0; i < TREE_NEIGHBOURS; i++)
		tree_drop(&t->tree.near[i]);
	while (t->backlog.first) {
		backlog_conn *p = backlog_pull(&t->backlog, &t->backlog.first);

		if ((p->h.from < p->h.to) != (p->h.kind == HELLO_CALL) || p->h.from == p->h.to || p->h.to != 2 ||
		    p->h.from >= 9 || p->h.stream >= p->h.streams || p->h.streams > STREAMS_MAX ||
		    p->h.chunk < CHUNK_MIN || p->h.chunk > CHUNK_MAX)
			abort();
		close(p->fd);
		if (p->passed >= 0)
			close(p->passed);
		free(p);
	}
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static transport *t;
	unsigned char text[HELLO_BYTES + PROOF_BYTES] = {0}, challenge[CHALLENGE_BYTES];
	int fd[2], flags, cut, in;
	size_t have;
	pending_conn s;
	if (size < 2)
		return 0;
	if (!t)
		t = make();
	flags = data[0];
	cut = data[1] % HELLO_BYTES;
	have = size - 2 < sizeof text ? size - 2 : sizeof text;
	memcpy(text, data + 2, have);
	if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fd))
		return 0;
	t->o.frames = (frames_mode)(record_crypto_available() ? flags >> 2 & 3 : 0);
	if (t->o.frames > FRAMES_ENCRYPT)
		t->o.frames = FRAMES_NONE;
	memset(&s, 0, sizeof s);
	s.fd = fd[1];
	s.passed = -1;
	s.local = flags >> 1 & 1;
	if (have < HELLO_BYTES) {
		if (write(fd[0], text, have) < 0)
			abort();
		shutdown(fd[0], SHUT_WR);
		for (int i = 0; i < 3 && s.fd >= 0; i++)
			listener_pending_serve(&t->sockets.listener, &s);
	} else {
		if (cut && write(fd[0], text, (size_t)cut) != cut)
			abort();
		if (cut)
			listener_pending_serve(&t->sockets.listener, &s);
		if (write(fd[0], text + cut, (size_t)(HELLO_BYTES - cut)) != HELLO_BYTES - cut)
			abort();
		listener_pending_serve(&t->sockets.listener, &s);
		if (s.fd >= 0 && recv(fd[0], challenge, sizeof challenge, MSG_DONTWAIT) != (ssize_t)sizeof challenge)
			abort();
		if (s.fd >= 0) {
			union {
				char room[CMSG_SPACE(sizeof(int))];
				struct cmsghdr align;
			} control = {{0}};
			struct iovec iov = {text + HELLO_BYTES, PROOF_BYTES};
			struct msghdr m = {.msg_iov = &iov, .msg_iovlen = 1};
			int memory = flags & 16 ? memfd_create("fuzz", MFD_CLOEXEC) : -1;

			if (flags & 1)
				handshake_mac(t->secret, ROLE_CONNECT, text, challenge, text + HELLO_BYTES);
			if (memory >= 0) {
				struct cmsghdr *c;

				m.msg_control = control.room;
				m.msg_controllen = sizeof control.room;
				c = CMSG_FIRSTHDR(&m);
				c->cmsg_level = SOL_SOCKET;
				c->cmsg_type = SCM_RIGHTS;
				c->cmsg_len = CMSG_LEN(sizeof(int));
				memcpy(CMSG_DATA(c), &memory, sizeof(int));
			}
			if (sendmsg(fd[0], &m, 0) != PROOF_BYTES)
				abort();
			if (memory >= 0)
				close(memory);
			listener_pending_serve(&t->sockets.listener, &s);
		}
	}
	in = t->backlog.n;
	for (int i = 0; i < TREE_NEIGHBOURS; i++)
		in += t->tree.near[i].fd >= 0;
	/* Nobody gets in without the secret. */
	if (in && !(flags & 1))
		abort();
	if (in)
		taken++;
	else
		refused++;
	listener_pending_free(&s);
	close(fd[0]);
	empty(t);
	return 0;
}

#ifndef LIBFUZZER
int main(void)
{
	return wire_main("handshake", 30000, &taken, &refused);
}
#endif
