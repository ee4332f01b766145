#include "transport/wire/keepalive.h"

#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define KEEPALIVE_MIN_SECONDS 3.0 /* the kernel counts in seconds, and probes three times */
#define PROBES_LOST 2             /* one probe may be under way */

void keepalive_start(int fd, double timeout)
{
	int on = 1, idle = timeout > KEEPALIVE_MIN_SECONDS ? (int)(timeout / 3) : 1, every = idle > 1 ? idle / 2 : 1;
	/* The caller decides when to give up. */
	int probes = 127;
	setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle, sizeof idle);
	setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &every, sizeof every);
	setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &probes, sizeof probes);
	setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
}

bool keepalive_lost(int fd, double timeout)
{
	struct tcp_info info;
	socklen_t bytes = sizeof info;
	uint32_t heard; /* ms ago */
	memset(&info, 0, sizeof info);
	if (getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &bytes) || info.tcpi_state != TCP_ESTABLISHED)
		return false;
	/* Bytes are unacknowledged, or probes (of an idle connection or of a closed
	 * window). Any answer to either shows that the host lives; so does data, and while that comes
	 * the kernel does not probe, and need not look at acknowledgements. */
	heard = info.tcpi_last_ack_recv < info.tcpi_last_data_recv ? info.tcpi_last_ack_recv : info.tcpi_last_data_recv;
	return (info.tcpi_unacked || info.tcpi_probes >= PROBES_LOST) &&
	       heard > 1e3 * (timeout > KEEPALIVE_MIN_SECONDS ? timeout : KEEPALIVE_MIN_SECONDS);
}

unsigned keepalive_too_large(int fd, double seconds)
{
	struct tcp_info info;
	struct sockaddr_storage peer;
	socklen_t bytes = sizeof info, peer_bytes = sizeof peer, error_bytes = sizeof(int);
	int other, error = 0;
	bool answers;
	memset(&info, 0, sizeof info);
	memset(&peer, 0, sizeof peer);
	if (getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &bytes) || !info.tcpi_unacked || !info.tcpi_backoff ||
	    getpeername(fd, (struct sockaddr *)&peer, &peer_bytes))
		return 0;
	other = socket(peer.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (other < 0)
		return 0;
	/* A refusal is an answer, too. */
	answers = !connect(other, (struct sockaddr *)&peer, peer_bytes) || errno == ECONNREFUSED ||
	          (errno == EINPROGRESS && poll(&(struct pollfd){other, POLLOUT, 0}, 1, (int)(seconds * 1e3)) == 1 &&
	           !getsockopt(other, SOL_SOCKET, SO_ERROR, &error, &error_bytes) && (!error || error == ECONNREFUSED));
	close(other);
	return answers ? info.tcpi_pmtu : 0;
}
