/* Links over TCP. A message is a 16-byte header and its payload, over one or more
 * connections; striping.h says which bytes go over which. */
#define _GNU_SOURCE
#include "transport/tcp/striping.h"

#include "transport/tcp/zerocopy.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>
#include <unistd.h>

void tcp_posted(peer_link *l, request *r)
{
	tcp *t = l->impl;
	uint64_t *count = r->sending ? &t->out_chunks : &t->in_chunks;
	r->first = *count;
	r->nchunks = r->bytes ? (r->bytes - 1) / t->chunk_bytes + 1 : 1;
	r->left = r->bytes + HEAD_BYTES;
	r->in_kernel = 0;
	*count += r->nchunks;
	for (unsigned i = 0; i < (unsigned)t->n; i++) {
		cursor *c = r->sending ? &t->s[i].out : &t->s[i].in;

		if (!c->r)
			tcp_seek(t, c, i, r);
	}
}

static int tcp_push(peer_link *l, tcp *t, unsigned i)
{
	cursor *c = &t->s[i].out;
	zerocopy *z = t->s[i].zero;
	size_t moved = 0;
	while (c->r && moved < TURN_BYTES) {
		unsigned char head[HEAD_BYTES];
		struct iovec iov[2];
		struct msghdr m = {.msg_iov = iov};
		size_t bytes, at = tcp_chunk(t, c, &bytes), skip = c->chunk ? 0 : HEAD_BYTES;
		size_t done = c->off > skip ? c->off - skip : 0;
		int zero = zerocopy_flag(z, bytes - done), ahead = zero && c->off < skip;
		request *r = c->r;
		ssize_t n;

		if (c->off < skip) {
			tcp_head(head, MESSAGE_MAGIC, r->seq, r->bytes);
			iov[m.msg_iovlen++] = (struct iovec){head + c->off, skip - c->off};
		}
		/* The header is on this stack, and so cannot be sent without a copy: it goes first. */
		if (!ahead)
			iov[m.msg_iovlen++] = (struct iovec){r->buf + at + done, bytes - done};
		n = sendmsg(l->fd[i], &m, MSG_NOSIGNAL | MSG_DONTWAIT | (ahead ? MSG_MORE : zero));
		if (n < 0) {
			if (errno == EINTR)
				continue;
			if (zero && !ahead && errno == ENOBUFS) {
				/* Over the limit of locked memory or of the socket. */
				z->off = 1;
				continue;
			}
			if (errno != EAGAIN)
				link_eof(l);
			else
				l->bulk = true;
			break;
		}
		moved += (size_t)n;
		c->off += (size_t)n;
		r->left -= (size_t)n;
		if (zero && !ahead)
			zerocopy_sent(z, r);
		if (c->off < skip + bytes)
			continue;
		tcp_advance(t, c, i);
		if (!r->left && !r->in_kernel)
			link_done(r);
	}
	return moved > 0;
}

int tcp_accept(peer_link *l, request *r, const unsigned char head[HEAD_BYTES])
{
	uint32_t magic = get32(head);
	if (magic == GOODBYE_MAGIC) {
		link_goodbye(l);
		link_eof(l);
		return -1;
	}
	if (magic != MESSAGE_MAGIC) {
		link_fail(l, GRADCOMP_ERR_INTERNAL, "rank %d on %s sends what is not a message", l->world,
		          transport_host(l->c->t, l->world));
		return -1;
	}
	if (link_check(l, r, get32(head + 4), get64(head + 8)))
		return -1;
	r->checked = 1;
	return 0;
}

/* `n` payload bytes of the chunk that starts at `at` have arrived; `end` when it
 * is complete. A receive that reduces takes them block by block. */
static void tcp_arrived(peer_link *l, stream *s, size_t at, size_t done, size_t n, int end)
{
	request *r = s->in.r;
	if (!r->reduce)
		return;
	s->filled += n;
	if (!end && s->filled < REDUCE_BLOCK)
		return;
	link_reduce(l, r, at + done + n - s->filled, s->staging, s->filled);
	s->filled = 0;
}

/* Reads header and payload in one call. When the header does not fit what was posted,
 * the job fails and the payload is not used. */
static int tcp_pull(peer_link *l, tcp *t, unsigned i)
{
	stream *s = &t->s[i];
	cursor *c = &s->in;
	size_t moved = 0;
	while (c->r && moved < TURN_BYTES && (c->r->checked || (!c->chunk && c->off < HEAD_BYTES))) {
		request *r = c->r;
		size_t bytes, at = tcp_chunk(t, c, &bytes), skip = c->chunk ? 0 : HEAD_BYTES, done, room, want;
		struct iovec iov[2];
		int k = 0;
		ssize_t n;

		if (r->reduce && !s->staging && !(s->staging = aligned_alloc(64, REDUCE_BLOCK))) {
			link_fail_local(l, GRADCOMP_ERR_NOMEM, "no memory to receive from rank %d", l->world);
			break;
		}
		done = c->off > skip ? c->off - skip : 0;
		room = bytes - done;
		want = skip > c->off ? skip - c->off : 0;
		if (want)
			iov[k++] = (struct iovec){s->head + c->off, want};
		if (r->reduce && room > REDUCE_BLOCK - s->filled)
			room = REDUCE_BLOCK - s->filled;
		if (room)
			iov[k++] = (struct iovec){r->reduce ? s->staging + s->filled : r->buf + at + done, room};
		want += room;
		n = readv(l->fd[i], iov, k);
		if (n <= 0) {
			if (n < 0 && errno == EINTR)
				continue;
			if (!n || errno != EAGAIN)
				link_eof(l);
			break;
		}
		moved += (size_t)n;
		if (c->off < skip) {
			size_t head = skip - c->off < (size_t)n ? skip - c->off : (size_t)n;

			c->off += head;
			r->left -= head;
			if (c->off < skip || tcp_accept(l, r, s->head))
				break;
			want -= head;
			n -= (ssize_t)head;
		}
		c->off += (size_t)n;
		r->left -= (size_t)n;
		tcp_arrived(l, s, at, done, (size_t)n, c->off == skip + bytes);
		if (c->off == skip + bytes) {
			tcp_advance(t, c, i);
			if (!r->left)
				link_done(r);
		} else {
			l->bulk = r->left > BULK_BYTES;
		}
		if ((size_t)n < want)
			break;
	}
	return moved > 0;
}

int tcp_turn(peer_link *l, tcp_move *push, tcp_move *pull)
{
	tcp *t = l->impl;
	int moved = 0;
	l->bulk = false;
	for (unsigned i = 0; i < (unsigned)t->n; i++) {
		if (t->s[i].out.r)
			moved |= push(l, t, i);
		if (t->s[i].in.r)
			moved |= pull(l, t, i);
	}
	return moved;
}

static int tcp_progress(peer_link *l)
{
	tcp *t = l->impl;
	int moved = 0;
	for (int i = 0; i < t->n; i++)
		if (zerocopy_busy(t->s[i].zero))
			moved |= zerocopy_reap(l->c->t, t->s[i].zero, l->fd[i]);
	return moved | tcp_turn(l, tcp_push, tcp_pull);
}

int tcp_sleep(peer_link *l, struct pollfd *p)
{
	tcp *t = l->impl;
	int n = 0;
	for (unsigned i = 0; i < (unsigned)t->n; i++) {
		const cursor *in = &t->s[i].in;
		short events = in->r && (in->r->checked || !in->chunk) ? POLLIN : 0;

		if (t->s[i].out.r)
			events |= POLLOUT | (events ? 0 : POLLRDHUP);
		/* Zero-copy notifications are POLLERR, which is always polled for. */
		if (events || zerocopy_busy(t->s[i].zero))
			p[n++] = (struct pollfd){l->fd[i], events, 0};
	}
	return n;
}

/* A peer that closes while this side only sends: did it say goodbye? */
static void tcp_wake(peer_link *l, const struct pollfd *p, int polled)
{
	for (int i = 0; i < polled; i++) {
		unsigned char head[HEAD_BYTES];
		ssize_t n;

		if (p[i].events & POLLIN || !(p[i].revents & (POLLRDHUP | POLLERR | POLLHUP)))
			continue;
		n = recv(p[i].fd, head, sizeof head, MSG_PEEK | MSG_DONTWAIT);
		/* Only a zero-copy notification. */
		if (!(p[i].revents & (POLLRDHUP | POLLHUP)) &&
		    (n > 0 || (n < 0 && (errno == EAGAIN || errno == EINTR))))
			continue;
		if (n == HEAD_BYTES && get32(head) == GOODBYE_MAGIC)
			link_goodbye(l);
		link_eof(l);
	}
}

/* After this the kernel has its copy of what was sent, or does not send it. */
void tcp_revoke(peer_link *l)
{
	tcp *t = l->impl;
	/* In a fork the connection belongs to the rank too. */
	for (int i = 0; i < t->n && !l->c->t->forked; i++)
		zerocopy_abort(t->s[i].zero, l->fd[i]);
}

static void tcp_close(peer_link *l, int goodbye)
{
	tcp *t = l->impl;
	unsigned char head[HEAD_BYTES];
	tcp_head(head, GOODBYE_MAGIC, l->send.seq, 0);
	for (int i = 0; i < t->n; i++) {
		/* After a send that was cut short, a goodbye would be taken for payload. */
		if (goodbye && !l->send.head)
			send(l->fd[i], head, sizeof head, MSG_NOSIGNAL | MSG_DONTWAIT);
		zerocopy_abort(t->s[i].zero, l->fd[i]);
		free(t->s[i].zero);
		free(t->s[i].staging);
	}
	free(t);
}

static const link_ops tcp_ops = {.posted = tcp_posted,
                                 .progress = tcp_progress,
                                 .sleep = tcp_sleep,
                                 .wake = tcp_wake,
                                 .revoke = tcp_revoke,
                                 .close = tcp_close};

tcp *tcp_new(peer_link *l)
{
	tcp *t = calloc(1, sizeof *t + l->h.streams * sizeof t->s[0]);
	if (!t) {
		link_fail_local(l, GRADCOMP_ERR_NOMEM, "no memory for a link to rank %d", l->world);
		return NULL;
	}
	t->n = l->h.streams;
	/* One stream needs no striping. */
	t->chunk_bytes = t->n > 1 ? l->h.chunk : SIZE_MAX / 2;
	l->impl = t;
	return t;
}

int tcp_open(peer_link *l)
{
	tcp *t = tcp_new(l);
	if (!t)
		return -1;
	for (int i = 0; i < t->n; i++)
		t->s[i].zero = zerocopy_start(l->c->t, l->fd[i]);
	l->ops = &tcp_ops;
	return 0;
}
