#include "transport/tcp/keepalive.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>
#include <sys/socket.h>

#define KEEPALIVE_MIN_SECONDS 3.0 /* the kernel counts in seconds, and probes three times */
#define PROBES_LOST 2     /* one probe may be under way */

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
