#define _GNU_SOURCE
#include "transport/core/emulate_latency.h"

#include "base/error.h"
#include "transport/core/link.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>
#include <time.h>

#define LATENCY_MAX 1000000 /* us; within the moment a closed connection is given */

/* A number of plain digits up to `end`, at most `most`; -1 when it is none. */
static long long latency_number(const char *text, size_t n, long long most)
{
	long long v = 0;

	if (!n || n > 18 || strspn(text, "0123456789") < n)
		return -1;
	for (size_t i = 0; i < n; i++)
		v = 10 * v + (text[i] - '0');
	return v <= most ? v : -1;
}

gradcomp_status latency_parse(const char *text, delay *out, gradcomp_error *err)
{
	long long part[3] = {0, 0, 0};
	const char *p = text ? text : "";

	for (int i = 0; *p && i < 3; i++) {
		size_t n = strcspn(p, "/");

		part[i] = latency_number(p, n, i < 2 ? LATENCY_MAX : INT64_MAX);
		if (part[i] < 0)
			break;
		p += n;
		if (*p == '/' && p[1] && i < 2)
			p++;
		else
			break;
	}
	if (*p)
		return error_set(err, GRADCOMP_ERR_INVALID,
		                 "'%s' is no delay; write microseconds from 0 to %d, then if wanted '/' and the jitter, "
		                 "then '/' and its seed: 500 or 500/100 or 500/100/7", text, LATENCY_MAX);
	*out = (delay){1e-6 * (double)part[0], 1e-6 * (double)part[1], (uint64_t)part[2]};
	return GRADCOMP_OK;
}

/* SplitMix64's finaliser (Steele, Lea, Flood 2014). */
static uint64_t latency_mix(uint64_t x)
{
	x += 0x9e3779b97f4a7c15u;
	x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
	x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
	return x ^ (x >> 31);
}

double latency_of(const delay *d, uint64_t channel, int from, int to, uint32_t seq)
{
	uint64_t x = latency_mix(latency_mix(latency_mix(d->seed) ^ channel) ^ ((uint64_t)(uint32_t)from << 32 | (uint32_t)to));

	return d->fixed + d->jitter * (double)(latency_mix(x ^ seq) >> 11) * 0x1p-53;
}

void latency_start(peer_link *l)
{
	const delay *d = &l->c->t->delay;
	int on = 1;

	l->delayed = l->kind != KIND_SHM && d->fixed + d->jitter > 0;
	for (int i = 0; l->delayed && i < l->nfd; i++)
		setsockopt(l->fd[i], SOL_SOCKET, SO_TIMESTAMPNS, &on, sizeof on);
}

ssize_t latency_read(peer_link *l, int fd, struct iovec *iov, int n)
{
	union {
		char room[CMSG_SPACE(sizeof(struct timespec))];
		struct cmsghdr align;
	} control;
	struct msghdr m = {.msg_iov = iov, .msg_iovlen = (size_t)n, .msg_control = control.room,
	                   .msg_controllen = sizeof control.room};
	ssize_t got = recvmsg(fd, &m, MSG_DONTWAIT);
	struct timespec came, real;

	if (got <= 0)
		return got;
	l->arrived = clock_now();
	for (struct cmsghdr *c = CMSG_FIRSTHDR(&m); c; c = CMSG_NXTHDR(&m, c)) {
		double ago;

		if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_TIMESTAMPNS ||
		    c->cmsg_len < CMSG_LEN(sizeof came))
			continue;
		memcpy(&came, CMSG_DATA(c), sizeof came);
		clock_gettime(CLOCK_REALTIME, &real);
		ago = (double)(real.tv_sec - came.tv_sec) + 1e-9 * (double)(real.tv_nsec - came.tv_nsec);
		/* Somebody may have set the clock. */
		if (ago > 0 && ago < 1e-6 * LATENCY_MAX)
			l->arrived -= ago;
	}
	return got;
}

void latency_hold(peer_link *l, request *r)
{
	const transport *t = l->c->t;

	/* Where nobody noted it, the last bytes arrived just now. */
	r->release = (l->arrived > 0 ? l->arrived : clock_now()) + latency_of(&t->delay, l->c->id, l->world, t->rank, r->seq);
	l->arrived = 0;
	if (l->late.tail && r->release < l->late.tail->release)
		r->release = l->late.tail->release;
	queue_add(&l->late, r);
}

int latency_release(peer_link *l)
{
	double now = clock_now();
	int moved = 0;

	while (l->late.head && l->late.head->release <= now) {
		request *r = l->late.head;

		queue_remove(&l->late, r);
		r->done = moved = 1;
	}
	if (moved)
		link_deactivate(l);
	return moved;
}
