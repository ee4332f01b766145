#include "transport/core/ports.h"

#include <errno.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/error.h"
#include "base/number.h"

#define BACKLOG 1024

static int listen_on(int family, uint16_t port)
{
	struct sockaddr_in6 any6 = {.sin6_family = AF_INET6, .sin6_addr = IN6ADDR_ANY_INIT, .sin6_port = htons(port)};
	struct sockaddr_in any4 = {.sin_family = AF_INET, .sin_port = htons(port)};
	int off = 0, on = 1, fd = socket(family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0), six = family == AF_INET6;

	if (fd < 0)
		return -1;
	if (six)
		setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off);
	setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
	if (bind(fd, six ? (struct sockaddr *)&any6 : (struct sockaddr *)&any4, six ? sizeof any6 : sizeof any4) ||
	    listen(fd, BACKLOG)) {
		int code = errno;
		close(fd);
		errno = code;
		return -1;
	}
	return fd;
}

/* Both families at once; without IPv6 in the kernel the first fails. */
static int listen_any(uint16_t port)
{
	int fd = listen_on(AF_INET6, port);

	return fd < 0 && errno != EADDRINUSE && errno != EACCES ? listen_on(AF_INET, port) : fd;
}

gradcomp_status address_ports_listen(const char *range, int *fd, uint16_t *port, gradcomp_error *err)
{
	struct sockaddr_in6 own = {0}; /* sin_port and sin6_port are at one place */
	socklen_t bytes = sizeof own;
	uint16_t first, last;

	if (number_ports(range, &first, &last) != NUMBER_OK)
		return error_set(err, GRADCOMP_ERR_INVALID, "'%s' is no range of ports such as 60001-60200", range);
	/* Beginning anywhere, so that several at once do not walk the range together. */
	unsigned n = (unsigned)last - first + 1, from = n > 1 ? (unsigned)getpid() % n : 0;
	*fd = -1;
	for (unsigned i = 0; i < n && *fd < 0; i++)
		*fd = listen_any((uint16_t)(first + (from + i) % n));
	if (*fd < 0 || getsockname(*fd, (struct sockaddr *)&own, &bytes))
		return error_errno(err, GRADCOMP_ERR_IO, "cannot listen for the nodes of the step%s%s (stage.meet_ports)",
		                   *range ? " on ports " : "", range);
	*port = ntohs(own.sin6_port);
	return GRADCOMP_OK;
}
