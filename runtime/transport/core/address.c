#define _GNU_SOURCE
#include "transport/core/address.h"

#include "base/error.h"
#include "base/number.h"

#include <arpa/inet.h>
#include <errno.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define LISTEN_BACKLOG 1024

static int address_from(const struct sockaddr *sa, address *out)
{
	memset(out, 0, sizeof *out);
	if (sa->sa_family == AF_INET) {
		out->bytes = 4;
		memcpy(out->ip, &((const struct sockaddr_in *)(const void *)sa)->sin_addr, 4);
		return 0;
	}
	if (sa->sa_family == AF_INET6) {
		const struct in6_addr *ip = &((const struct sockaddr_in6 *)(const void *)sa)->sin6_addr;

		if (IN6_IS_ADDR_V4MAPPED(ip))
			return -1;
		out->bytes = 16;
		memcpy(out->ip, ip, 16);
		if (address_link_local(out))
			out->scope = ((const struct sockaddr_in6 *)(const void *)sa)->sin6_scope_id;
		return 0;
	}
	return -1;
}

bool address_link_local(const address *a)
{
	return a->bytes == 16 && a->ip[0] == 0xfe && (a->ip[1] & 0xc0) == 0x80;
}

/* A number of plain digits, at most `most`; -1 when it is none. */
static long address_number(const char *text, long most)
{
	char *end;
	long n = strtol(text, &end, 10);

	return text[0] >= '0' && text[0] <= '9' && !*end && n <= most ? n : -1;
}

static uint8_t address_prefix(const struct sockaddr *mask, int bytes)
{
	address m;
	int bits = 0;

	if (!mask || address_from(mask, &m) || m.bytes != bytes)
		return (uint8_t)(8 * bytes);
	while (bits < 8 * bytes && m.ip[bits / 8] & (0x80 >> bits % 8))
		bits++;
	return (uint8_t)bits;
}

static bool address_in(const address *a, const address *net, int prefix)
{
	int whole = prefix / 8, rest = prefix % 8;

	if (a->bytes != net->bytes || memcmp(a->ip, net->ip, (size_t)whole))
		return false;
	return !rest || !((a->ip[whole] ^ net->ip[whole]) & (0xff00 >> rest));
}

/* "10.0.0.0/8" -> net, prefix; -1 when it is not a block. */
static int address_block(const char *text, address *net)
{
	int bytes, prefix;

	memset(net, 0, sizeof *net);
	if (number_block(text, net->ip, &bytes, &prefix) != NUMBER_OK)
		return -1;
	net->bytes = (uint8_t)bytes;
	net->prefix = (uint8_t)prefix;
	return 0;
}

/* "lo 127.0.0.1/8, eth0 10.0.0.5/24": to choose from. */
static void address_note(char *seen, size_t room, const char *name, const address *a)
{
	size_t used = strlen(seen);
	char ip[INET6_ADDRSTRLEN];

	inet_ntop(a->bytes == 16 ? AF_INET6 : AF_INET, a->ip, ip, sizeof ip);
	snprintf(seen + used, room - used, "%s%s %s/%u", used ? ", " : "", name, ip, a->prefix);
}

/* The round in which an address is taken if the rounds before found none; -1: never. */
static int address_round(const address *a, int loopback, int filtered)
{
	if (address_link_local(a))
		return filtered ? 1 : -1;
	return loopback && !filtered ? 1 : 0;
}

gradcomp_status address_own(const char *filter, address out[ADDRESS_MAX], int *n, gradcomp_error *err)
{
	struct ifaddrs *list = NULL, *i;
	address net;
	char seen[300] = "";
	int block = strchr(filter, '/') != NULL;

	*n = 0;
	if (block && address_block(filter, &net))
		return error_set(err, GRADCOMP_ERR_INVALID,
		                 "transport.interface=%s is not an address block; write for instance 10.0.0.0/8 or eth0", filter);
	if (getifaddrs(&list))
		return error_errno(err, GRADCOMP_ERR_IO, "cannot list the network interfaces");
	for (int round = 0; round < 2 && !*n; round++) {
		for (i = list; i && *n < ADDRESS_MAX; i = i->ifa_next) {
			address a;

			if (!i->ifa_addr || !(i->ifa_flags & IFF_UP) || address_from(i->ifa_addr, &a))
				continue;
			a.prefix = address_prefix(i->ifa_netmask, a.bytes);
			if (!round)
				address_note(seen, sizeof seen, i->ifa_name, &a);
			if (*filter && (block ? !address_in(&a, &net, net.prefix) : strcmp(filter, i->ifa_name) != 0))
				continue;
			if (address_round(&a, (i->ifa_flags & IFF_LOOPBACK) != 0, *filter != 0) == round)
				out[(*n)++] = a;
		}
	}
	freeifaddrs(list);
	if (*n)
		return GRADCOMP_OK;
	if (*filter)
		return error_set(err, GRADCOMP_ERR_NOTFOUND,
		                 "transport.interface=%s matches no address of this machine; it has %s", filter,
		                 *seen ? seen : "none");
	return error_set(err, GRADCOMP_ERR_NOTFOUND, "this machine has no network address (no interface is up)");
}

void address_order(const address *own, int nown, int same_node, const address *peer, int n,
                   int order[ADDRESS_MAX])
{
	int score[ADDRESS_MAX], i, j;

	for (i = 0; i < n; i++) {
		score[i] = peer[i].bytes == 4 ? 1 : 0;
		for (j = 0; j < nown; j++) {
			if (!same_node && own[j].bytes == peer[i].bytes &&
			    !memcmp(own[j].ip, peer[i].ip, own[j].bytes)) {
				score[i] = -1;
				break;
			}
			if (address_in(&peer[i], &own[j], own[j].prefix) && score[i] < 4)
				score[i] += 4;
		}
	}
	for (i = 0; i < n; i++) {
		for (j = i; j > 0 && score[order[j - 1]] < score[i]; j--)
			order[j] = order[j - 1];
		order[j] = i;
	}
}

socklen_t address_sockaddr(const address *a, struct sockaddr_storage *out)
{
	memset(out, 0, sizeof *out);
	if (a->bytes == 4) {
		struct sockaddr_in *in = (struct sockaddr_in *)out;

		in->sin_family = AF_INET;
		in->sin_port = htons(a->port);
		memcpy(&in->sin_addr, a->ip, 4);
		return sizeof *in;
	}
	struct sockaddr_in6 *in6 = (struct sockaddr_in6 *)out;

	in6->sin6_family = AF_INET6;
	in6->sin6_port = htons(a->port);
	in6->sin6_scope_id = a->scope;
	memcpy(&in6->sin6_addr, a->ip, 16);
	return sizeof *in6;
}

void address_text(const struct sockaddr_storage *sa, char out[ADDRESS_TEXT])
{
	char ip[INET6_ADDRSTRLEN];

	if (sa->ss_family == AF_INET) {
		const struct sockaddr_in *in = (const struct sockaddr_in *)sa;

		inet_ntop(AF_INET, &in->sin_addr, ip, sizeof ip);
		snprintf(out, ADDRESS_TEXT, "%s:%u", ip, ntohs(in->sin_port));
	} else if (sa->ss_family == AF_INET6) {
		const struct sockaddr_in6 *in6 = (const struct sockaddr_in6 *)sa;

		if (IN6_IS_ADDR_V4MAPPED(&in6->sin6_addr)) {
			inet_ntop(AF_INET, in6->sin6_addr.s6_addr + 12, ip, sizeof ip);
			snprintf(out, ADDRESS_TEXT, "%s:%u", ip, ntohs(in6->sin6_port));
		} else {
			inet_ntop(AF_INET6, &in6->sin6_addr, ip, sizeof ip);
			snprintf(out, ADDRESS_TEXT, "[%s]:%u", ip, ntohs(in6->sin6_port));
		}
	} else {
		snprintf(out, ADDRESS_TEXT, "a local socket");
	}
}

int address_format(const address *a, char out[ADDRESS_TEXT])
{
	char ip[INET6_ADDRSTRLEN];

	inet_ntop(a->bytes == 16 ? AF_INET6 : AF_INET, a->ip, ip, sizeof ip);
	return snprintf(out, ADDRESS_TEXT, "%s/%u@%u", ip, a->prefix, a->port);
}

gradcomp_status address_own_text(uint16_t port, char out[ADDRESS_MAX * ADDRESS_TEXT], gradcomp_error *err)
{
	address own[ADDRESS_MAX];
	int n = 0;
	gradcomp_status st = address_own("", own, &n, err);

	out[0] = 0;
	for (int i = 0; !st && i < n; i++) {
		size_t used = strlen(out);
		own[i].port = port;
		out[used] = ',';
		address_format(&own[i], out + used + !!used);
	}
	return st;
}

int address_parse(const char *text, size_t bytes, address *out)
{
	char copy[ADDRESS_TEXT], *at;
	long port;

	if (bytes >= sizeof copy)
		return -1;
	memcpy(copy, text, bytes);
	copy[bytes] = '\0';
	at = strchr(copy, '@');
	if (!at)
		return -1;
	*at++ = '\0';
	if (address_block(copy, out))
		return -1;
	port = address_number(at, 65535);
	if (port <= 0)
		return -1;
	out->port = (uint16_t)port;
	return 0;
}

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
	    listen(fd, LISTEN_BACKLOG)) {
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

int address_listen(const char *range, uint16_t *port)
{
	struct sockaddr_in6 own = {0}; /* sin_port and sin6_port have the same offset */
	socklen_t bytes = sizeof own;
	uint16_t first, last;
	int fd = -1;

	if (number_ports(range, &first, &last) != NUMBER_OK) {
		errno = EINVAL;
		return -1;
	}
	/* From a port of its own, so that several servers do not try the same ports in step. */
	unsigned n = (unsigned)last - first + 1, from = n > 1 ? (unsigned)getpid() % n : 0;
	for (unsigned i = 0; i < n && fd < 0; i++)
		fd = listen_any((uint16_t)(first + (from + i) % n));
	if (fd < 0)
		return -1;
	if (getsockname(fd, (struct sockaddr *)&own, &bytes)) {
		int code = errno;

		close(fd);
		errno = code;
		return -1;
	}
	*port = ntohs(own.sin6_port);
	return fd;
}
