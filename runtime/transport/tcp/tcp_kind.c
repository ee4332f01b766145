/* Links over TCP as a kind: when they can be used, how they are made, and whether the peer's host still answers. */
#include "transport/wire/keepalive.h"
#include "transport/tcp/striping.h"

#include <linux/tcp.h>
#include <netinet/in.h>
#include <stddef.h>
#include <sys/socket.h>

#define ANSWER_SECONDS 1.0 /* for a host to answer */

static bool tcp_reaches(const link_use *u, const transport *t, int a, int b)
{
	(void)u;
	return peer_has_address(t, a) && peer_has_address(t, b);
}

static const char *tcp_why_not(const link_use *u)
{
	(void)u;
	return "not needed";
}

static gradcomp_status tcp_offer(peer_link *l, gradcomp_error *err)
{
	(void)err;
	l->h.streams = (uint8_t)l->c->t->o.streams;
	return GRADCOMP_OK;
}

static link_opened tcp_open_link(peer_link *l)
{
	return (l->h.frames ? tcp_secure_open(l) : tcp_open(l)) ? LINK_REFUSED : LINK_OPENED;
}

static void tcp_check(peer_link *l)
{
	const transport *t = l->c->t;
	for (int i = 0; !link_ended(l) && i < l->nfd; i++) {
		unsigned bytes;

		if (!keepalive_lost(l->fd[i], t->o.timeout))
			continue;
		bytes = keepalive_too_large(l->fd[i], ANSWER_SECONDS);
		if (bytes)
			link_fail(
				l, GRADCOMP_ERR_TIMEOUT,
				"packets of %u bytes do not get from rank %d on %s to rank %d on %s, small ones do: an MTU on the "
				"way is smaller than that of the nodes (gradcomp doctor tries all pairs)",
				bytes, t->rank, transport_host(t, t->rank), l->world, transport_host(t, l->world));
		else
			link_fail(l, GRADCOMP_ERR_TIMEOUT,
			          "the host of rank %d on %s has not answered that of rank %d on %s for %.3g s",
			          l->world, transport_host(t, l->world), t->rank, transport_host(t, t->rank),
			          t->o.timeout);
		return;
	}
}

/* The kernel counts the time in which bytes were unacknowledged, and the part of it in which a peer that does not read
 * had no room. */
static bool tcp_load(const peer_link *l, link_load *out)
{
	for (int i = 0; i < l->nfd; i++) {
		struct tcp_info info = {0};
		socklen_t bytes = sizeof info;

		if (getsockopt(l->fd[i], IPPROTO_TCP, TCP_INFO, &info, &bytes) ||
		    bytes < offsetof(struct tcp_info, tcpi_sndbuf_limited))
			return false;
		double busy = 1e-6 * ((double)info.tcpi_busy_time - (double)info.tcpi_rwnd_limited);
		out->busy_s = busy > out->busy_s ? busy : out->busy_s;
		out->bytes += info.tcpi_bytes_acked;
		out->rate += (double)info.tcpi_delivery_rate;
		out->full |= !info.tcpi_delivery_rate_app_limited;
	}
	return l->nfd > 0;
}

const link_kind tcp_kind = {.name = "tcp",
                            .hello = HELLO_TCP,
                            .worth = 1,
                            .inherits = true,
                            .reaches = tcp_reaches,
                            .why_not = tcp_why_not,
                            .offer = tcp_offer,
                            .open = tcp_open_link,
                            .check = tcp_check,
                            .load = tcp_load};
