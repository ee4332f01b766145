#define _GNU_SOURCE
#include "transport/tcp/zerocopy.h"

#include <linux/errqueue.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

zerocopy *zerocopy_start(const transport *t, int fd)
{
	int on = 1;
	if (t->o.zerocopy == ZEROCOPY_NO || setsockopt(fd, SOL_SOCKET, SO_ZEROCOPY, &on, sizeof on))
		return NULL;
	return calloc(1, sizeof(zerocopy));
}

int zerocopy_flag(const zerocopy *z, size_t bytes)
{
	return z && !z->off && bytes >= ZEROCOPY_MIN && z->next - z->done < ZEROCOPY_CALLS ? MSG_ZEROCOPY : 0;
}

void zerocopy_sent(zerocopy *z, request *r)
{
	z->of[z->next++ % ZEROCOPY_CALLS] = r;
	r->in_kernel++;
}

static void zerocopy_finished(zerocopy *z, uint32_t from, uint32_t to)
{
	/* Both ends come from the kernel; a range that is not one of ours is ignored. */
	if (from - z->done >= z->next - z->done || to - z->done >= z->next - z->done || to - from >= ZEROCOPY_CALLS)
		return;
	for (uint32_t i = from; i != to + 1; i++) {
		request *r = z->of[i % ZEROCOPY_CALLS];

		z->of[i % ZEROCOPY_CALLS] = NULL;
		if (r && !--r->in_kernel && !r->left)
			link_done(r);
	}
	while (z->done != z->next && !z->of[z->done % ZEROCOPY_CALLS])
		z->done++;
}

int zerocopy_reap(const transport *t, zerocopy *z, int fd)
{
	union {
		char buf[CMSG_SPACE(sizeof(struct sock_extended_err) + sizeof(struct sockaddr_in6))];
		struct cmsghdr align;
	} control;
	int some = 0;

	while (zerocopy_busy(z)) {
		struct msghdr m = {.msg_control = control.buf, .msg_controllen = sizeof control.buf};
		struct sock_extended_err e;
		struct cmsghdr *c;

		if (recvmsg(fd, &m, MSG_ERRQUEUE | MSG_DONTWAIT) < 0)
			break;
		for (c = CMSG_FIRSTHDR(&m); c; c = CMSG_NXTHDR(&m, c))
			if (((c->cmsg_level == SOL_IP && c->cmsg_type == IP_RECVERR) ||
			     (c->cmsg_level == SOL_IPV6 && c->cmsg_type == IPV6_RECVERR)) &&
			    c->cmsg_len >= CMSG_LEN(sizeof e))
				break;
		if (!c)
			continue;
		memcpy(&e, CMSG_DATA(c), sizeof e);
		if (e.ee_origin != SO_EE_ORIGIN_ZEROCOPY || e.ee_errno)
			continue;
		if (e.ee_code & SO_EE_CODE_ZEROCOPY_COPIED) {
			z->copied += e.ee_data - e.ee_info + 1;
			z->off |= t->o.zerocopy == ZEROCOPY_AUTO;
		}
		zerocopy_finished(z, e.ee_info, e.ee_data);
		some = 1;
	}
	return some;
}

void zerocopy_abort(zerocopy *z, int fd)
{
	struct sockaddr none = {.sa_family = AF_UNSPEC};
	/* Resets the connection and empties what it was to send. */
	if (zerocopy_busy(z))
		(void)connect(fd, &none, sizeof none);
}
