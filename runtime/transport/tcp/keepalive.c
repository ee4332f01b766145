#include "transport/tcp/keepalive.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <string.h>
#include <sys/socket.h>

#define KEEPALIVE_MIN_SECONDS 3.0 /* the kernel counts in seconds, and asks three times */
#define PROBES_LOST 2     /* one may be under way */

void keepalive_start(int fd, double timeout)
{
	int on = 1, idle = timeout > KEEPALIVE_MIN_SECONDS ? (int)(timeout / 3) : 1, every = idle > 1 ? idle / 2 : 1;
	/* Giving up is the caller's. */
	int probes = 127;

	setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle, sizeof idle);
	setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &every, sizeof every);
	setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &probes, sizeof probes);
	setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
}

int keepalive_lost(int fd, double timeout)
{
	struct tcp_info info;
	socklen_t bytes = sizeof info;

	memset(&info, 0, sizeof info);
	if (getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &bytes) || info.tcpi_state != TCP_ESTABLISHED)
		return 0;
	/* Bytes under way, or questions (of an idle connection, or for a window that
	 * was shut): any answer, also to a question for room, counts as life. */
	return (info.tcpi_unacked || info.tcpi_probes >= PROBES_LOST) &&
	       info.tcpi_last_ack_recv > 1e3 * (timeout > KEEPALIVE_MIN_SECONDS ? timeout : KEEPALIVE_MIN_SECONDS);
}
