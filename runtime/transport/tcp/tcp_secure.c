/* Links over TCP whose bytes go in records (record_crypto.h). Their content is what
 * tcp.c sends: headers and chunks. A record holds bytes of one chunk: the header and the
 * first of them, or what follows. */
#define _GNU_SOURCE
#include "transport/tcp/striping.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>

/* Bytes of a chunk in a record: whole elements of every type. */
#define SECURE_PAYLOAD (RECORD_MAX - 64)
_Static_assert(HEAD_BYTES + SECURE_PAYLOAD <= RECORD_CONTENT_MAX, "a header and a payload fit");

typedef struct secure_stream {
	_Alignas(64) unsigned char staging[RECORD_MAX]; /* opened, of a receive that reduces */
	unsigned char out[RECORD_MAX], in[2 * RECORD_MAX];
	size_t sent, sending; /* bytes of the record in out[]; 0: there is none */
	size_t content;       /* bytes of a chunk in it */
	size_t from, to;      /* received and not opened yet, in in[] */
} secure_stream;

/* Makes the next record at the cursor. The caller's bytes are copied, but the send is not done before the record is
 * sent. */
static void secure_fill(const tcp *t, const cursor *c, secure_stream *s, record_crypto *crypto)
{
	unsigned char *p = s->out + RECORD_HEAD;
	size_t bytes, at = tcp_chunk(t, c, &bytes), skip = c->chunk ? 0 : HEAD_BYTES, done, n;
	s->content = 0;
	if (c->off < skip) {
		tcp_head(p, MESSAGE_MAGIC, c->r->seq, c->r->bytes);
		s->content = skip;
	}
	done = c->off + s->content - skip;
	n = bytes - done < SECURE_PAYLOAD ? bytes - done : SECURE_PAYLOAD;
	if (n)
		memcpy(p + s->content, c->r->buf + at + done, n);
	s->content += n;
	s->sent = 0;
	s->sending = record_crypto_seal(crypto, s->out, s->content);
}

static int secure_push(peer_link *l, tcp *t, unsigned i)
{
	secure_stream *s = t->s[i].secure;
	cursor *c = &t->s[i].out;
	size_t moved = 0;
	while (c->r && moved < TURN_BYTES) {
		request *r = c->r;
		size_t bytes;
		ssize_t n;

		if (!s->sending)
			secure_fill(t, c, s, l->crypto[i]);
		n = send(l->fd[i], s->out + s->sent, s->sending - s->sent, MSG_NOSIGNAL | MSG_DONTWAIT);
		if (n < 0) {
			if (errno == EINTR)
				continue;
			if (errno != EAGAIN)
				link_eof(l);
			else
				l->bulk = true;
			break;
		}
		moved += (size_t)n;
		s->sent += (size_t)n;
		if (s->sent < s->sending)
			continue;
		s->sending = 0;
		c->off += s->content;
		r->left -= s->content;
		tcp_chunk(t, c, &bytes);
		if (c->off < (c->chunk ? 0 : HEAD_BYTES) + bytes)
			continue;
		tcp_advance(t, c, i);
		if (!r->left)
			link_done(r);
	}
	return moved > 0;
}

/* Reads what fits: 1, 0 when there was nothing, -1 at the end. */
static int secure_read(secure_stream *s, int fd)
{
	ssize_t n;
	if (s->from) {
		memmove(s->in, s->in + s->from, s->to - s->from);
		s->to -= s->from;
		s->from = 0;
	}
	do
		n = recv(fd, s->in + s->to, sizeof s->in - s->to, MSG_DONTWAIT);
	while (n < 0 && errno == EINTR);
	if (n < 0 && errno == EAGAIN)
		return 0;
	if (n <= 0)
		return -1;
	s->to += (size_t)n;
	return 1;
}

static int secure_tampered(peer_link *l)
{
	link_fail(l, GRADCOMP_ERR_AUTH, "what rank %d on %s sent to rank %d was " RECORD_TAMPERED, l->world,
	          transport_host(l->c->t, l->world), l->c->t->rank);
	return -1;
}

/* Length of the first received record's content, 0 when it is not whole yet; -1
 * with the job failed when it is not valid. */
static long secure_whole(peer_link *l, const secure_stream *s)
{
	const unsigned char *rec = s->in + s->from;
	size_t have = s->to - s->from, n;
	if (have < RECORD_HEAD)
		return 0;
	n = record_crypto_length(rec);
	if (!n)
		return secure_tampered(l);
	return have < n + RECORD_OVERHEAD ? 0 : (long)n;
}

/* Opens a record with n bytes of content at the cursor. 0, or -1 when there is
 * nothing more to read. */
static int secure_take(peer_link *l, tcp *t, unsigned i, size_t n)
{
	secure_stream *s = t->s[i].secure;
	cursor *c = &t->s[i].in;
	request *r = c->r;
	unsigned char *rec = s->in + s->from, *in = rec + RECORD_HEAD, *to;
	size_t bytes, at = tcp_chunk(t, c, &bytes), head = c->chunk || c->off ? 0 : HEAD_BYTES, done;
	done = c->off + head - (c->chunk ? 0 : HEAD_BYTES);
	/* Bytes that follow no header go straight to their destination. */
	to = head ? in : r->reduce ? s->staging : r->buf + at + done;
	if (n < head || (!head && n > bytes - done) || record_crypto_open(l->crypto[i], rec, n, to))
		return secure_tampered(l);
	if (head && tcp_accept(l, r, in))
		return -1;
	n -= head;
	if (n > bytes - done || (r->reduce && n % gradcomp_dtype_bytes(r->dtype)))
		return secure_tampered(l);
	if (head && n)
		memcpy(r->reduce ? s->staging : r->buf + at, in + head, n);
	if (r->reduce && n)
		link_reduce(l, r, at + done, s->staging, n);
	s->from += head + n + RECORD_OVERHEAD;
	c->off += head + n;
	r->left -= head + n;
	if (done + n == bytes) {
		tcp_advance(t, c, i);
		if (!r->left)
			link_done(r);
	} else {
		l->bulk = r->left > BULK_BYTES;
	}
	return 0;
}

static int secure_pull(peer_link *l, tcp *t, unsigned i)
{
	secure_stream *s = t->s[i].secure;
	cursor *c = &t->s[i].in;
	size_t moved = 0;
	/* The posted buffers have been given back then. */
	if (channel_failed(l->c))
		return 0;
	while (c->r && moved < TURN_BYTES && (c->r->checked || (!c->chunk && !c->off))) {
		long n = secure_whole(l, s);

		if (n > 0 && !secure_take(l, t, i, (size_t)n)) {
			moved += (size_t)n;
		} else if (n) {
			break;
		} else {
			int got = secure_read(s, l->fd[i]);

			if (got < 0)
				link_eof(l);
			if (got <= 0)
				break;
			moved++;
		}
	}
	return moved > 0;
}

static int secure_progress(peer_link *l)
{
	return tcp_turn(l, secure_push, secure_pull);
}

/* A peer that closes while this side only sends: did it say goodbye? */
static void secure_wake(peer_link *l, const struct pollfd *p, int n)
{
	tcp *t = l->impl;
	for (int k = 0; k < n; k++) {
		if (p[k].events & POLLIN || !(p[k].revents & (POLLRDHUP | POLLERR | POLLHUP)))
			continue;
		for (int i = 0; i < t->n; i++) {
			unsigned char head[HEAD_BYTES];
			secure_stream *s = t->s[i].secure;

			if (l->fd[i] != p[k].fd)
				continue;
			while (s->to - s->from < HEAD_BYTES + RECORD_OVERHEAD && secure_read(s, l->fd[i]) > 0)
				;
			if (s->to - s->from >= HEAD_BYTES + RECORD_OVERHEAD &&
			    record_crypto_length(s->in + s->from) == HEAD_BYTES &&
			    !record_crypto_peek(l->crypto[i], s->in + s->from, HEAD_BYTES, head) &&
			    get32(head) == GOODBYE_MAGIC)
				link_goodbye(l);
		}
		link_eof(l);
	}
}

static void secure_close(peer_link *l, int goodbye)
{
	tcp *t = l->impl;
	for (int i = 0; i < t->n; i++) {
		secure_stream *s = t->s[i].secure;

		/* After a send that was cut short, a goodbye would be taken for payload. */
		if (s && goodbye && !l->send.head) {
			tcp_head(s->out + RECORD_HEAD, GOODBYE_MAGIC, l->send.seq, 0);
			send(l->fd[i], s->out, record_crypto_seal(l->crypto[i], s->out, HEAD_BYTES),
			     MSG_NOSIGNAL | MSG_DONTWAIT);
		}
		free(s);
	}
	free(t);
}

static const link_ops secure_ops = {.posted = tcp_posted,
                                    .progress = secure_progress,
                                    .sleep = tcp_sleep,
                                    .wake = secure_wake,
                                    .revoke = tcp_revoke,
                                    .close = secure_close};

int tcp_secure_open(peer_link *l)
{
	tcp *t = tcp_new(l);
	if (!t)
		return -1;
	for (int i = 0; i < t->n; i++) {
		secure_stream *s = aligned_alloc(_Alignof(secure_stream), sizeof *s);

		if (!s || !l->crypto[i]) {
			free(s);
			secure_close(l, 0);
			link_fail_local(l, GRADCOMP_ERR_NOMEM, "no memory for a link to rank %d", l->world);
			return -1;
		}
		s->sent = s->sending = s->from = s->to = 0;
		t->s[i].secure = s;
	}
	l->ops = &secure_ops;
	return 0;
}
