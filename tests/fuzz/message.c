/* Messages over tcp, in the clear and in records, of a rank that has the secret
 * and does what it likes: the job fails, or what was posted arrives; not a byte is
 * written beside the posted buffers. Input: a byte of flags, then what the peer sends:
 * two bytes of length (the highest bit is the stream) and so many bytes, which are a
 * record where records are sealed. Flag 8 breaks the third. */
#include "tests/fuzz/harness.h"

#include "conformance/guard.h"
#include "transport/link/link.h"
#include "operators/operator_tables.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { POSTED = 4 };

static long taken, refused;
static const log_sink quiet = {(gradcomp_log_level)-1, 0};
static const size_t sizes[POSTED] = {40, 0, 5000, 128};

static transport *make(void)
{
	transport_options o = {.rank = 0,
	                       .nranks = 1,
	                       .timeout = 10,
	                       .wait_timeout = 10,
	                       .streams = 1,
	                       .chunk = 65536,
	                       .allow = "shm,tcp",
	                       .log = &quiet,
	                       .operators = operators_cpu()};
	transport *t;
	if (transport_listen(&o, &t, NULL))
		abort();
	t->nranks = 2;
	return t;
}

static void feed(peer_link *l, const int fd[], int streams, int flags, const uint8_t *data, size_t size,
                 record_crypto **theirs)
{
	static unsigned char rec[8192 + RECORD_OVERHEAD];
	for (int turn = 0; size > 2; turn++) {
		size_t n = (data[0] | (size_t)data[1] << 8) % 8192;
		int i = (data[1] >> 7) % streams;

		data += 2;
		size -= 2;
		n = n < size ? n : size;
		n = n ? n : 1;
		memcpy(rec + RECORD_HEAD, data, n);
		data += n;
		size -= n;
		if (l->h.frames)
			n = record_crypto_seal(theirs[i], rec, n);
		if (flags & 8 && l->h.frames && turn == 2)
			rec[RECORD_HEAD] ^= 0x10;
		if (send(fd[i], l->h.frames ? rec : rec + RECORD_HEAD, n, MSG_DONTWAIT | MSG_NOSIGNAL) < 0)
			return;
		if (flags & 16)
			l->ops->progress(l);
		if (transport_failed(l->c->t))
			return;
	}
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static transport *t;
	static guarded buf[POSTED];
	const unsigned char secret[TRANSPORT_SECRET_BYTES] = {9};
	request rq[POSTED];
	channel c = {0};
	peer_link l = {0};
	record_crypto *theirs[2] = {NULL, NULL};
	int pair[2][2], fd[2], flags, streams, done = 0;
	if (size < 1 || size > 16000)
		return 0;
	if (!t) {
		t = make();
		for (int i = 0; i < POSTED; i++)
			buf[i] = guard("a buffer", 5000, 64);
	}
	flags = *data++;
	size--;
	streams = 1 + (flags & 1);
	atomic_store(&t->failure.set, 0);
	c.t = t;
	l.c = &c;
	l.world = 1;
	l.use = link_use_of(t, HELLO_TCP);
	l.passed = -1;
	l.h = (hello){.from = 1,
	              .nranks = 2,
	              .streams = (uint8_t)streams,
	              .chunk = CHUNK_MIN,
	              .kind = HELLO_TCP,
	              .frames =
	                      (uint8_t)(flags & 2 && record_crypto_available() ? flags & 4 ? CIPHER_CHACHA : CIPHER_MAC
	                                                                       : CIPHER_NONE)};
	for (int i = 0; i < STREAMS_MAX; i++)
		l.fd[i] = -1;
	for (int i = 0; i < streams; i++) {
		if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, pair[i]))
			abort();
		l.fd[i] = pair[i][0];
		fd[i] = pair[i][1];
		l.h.stream = (uint8_t)i;
		if (l.h.frames) {
			l.crypto[i] = record_crypto_new(secret, &l.h, 0);
			theirs[i] = record_crypto_new(secret, &l.h, 1);
		}
	}
	if (l.use->kind->open(&l) != LINK_OPENED)
		abort();
	l.state = PEER_OPEN;
	for (int i = 0; i < POSTED; i++) {
		rq[i] = (request){.bytes = sizes[i],
		                  .buf = (unsigned char *)buf[i].data + buf[i].bytes - sizes[i],
		                  .reduce = i == 3,
		                  .dtype = GRADCOMP_F32,
		                  .op = GRADCOMP_SUM};
		memset(rq[i].buf, 0, sizes[i]);
		link_post(&l, &rq[i]);
	}
	feed(&l, fd, streams, flags, data, size, theirs);
	for (int i = 0; i < streams; i++)
		shutdown(fd[i], SHUT_WR);
	for (int i = 0; i < 100 && !transport_failed(t) && l.active && l.ops->progress(&l); i++)
		;
	for (int i = 0; i < POSTED; i++)
		done += rq[i].done;
	if (transport_failed(t) || link_leaves(&l))
		refused++;
	else
		taken += done;
	l.ops->close(&l, 0);
	for (int i = 0; i < streams; i++) {
		close(pair[i][0]);
		close(pair[i][1]);
		record_crypto_free(l.crypto[i]);
		record_crypto_free(theirs[i]);
	}
	return 0;
}

#ifndef LIBFUZZER
int main(void)
{
	return wire_main("message", 20000, &taken, &refused);
}
#endif
