#define _GNU_SOURCE
#include "transport/wire/address.h"

#include "base/error.h"
#include "base/number.h"
#include "base/strset.h"

#include <arpa/inet.h>
#include <errno.h>
#include <ifaddrs.h>
#include <linux/ethtool.h>
#include <linux/sockios.h>
#include <net/if.h>
#include <netinet/in.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
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

bool address_in(const address *a, const address *net, int prefix)
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

/* Notes "lo 127.0.0.1/8, eth0 10.0.0.5/24": to choose from. */
static void address_note(char *seen, size_t room, const char *name, const address *a)
{
	size_t used = strlen(seen);
	char ip[INET6_ADDRSTRLEN];
	inet_ntop(a->bytes == 16 ? AF_INET6 : AF_INET, a->ip, ip, sizeof ip);
	snprintf(seen + used, room - used, "%s%s %s/%u", used ? ", " : "", name, ip, a->prefix);
}

/* The functions below find what there is to choose from. */

/* An own address, and what makes it better than another. */
typedef struct candidate {
	address a;
	bool carrier, routed, bridge;
	size_t place; /* in the kernel's list */
} candidate;

/* Drivers that state a constant, whatever their cable is. */
static const char *const unmeasured_drivers[] = {"bridge", "veth", "tun", "vmxnet3"};

/* Asks the driver of an interface. /sys may be another network namespace's, as in a container: so it is asked. */
static void interface_ask(int fd, const char *name, candidate *c)
{
	struct ethtool_drvinfo driver = {.cmd = ETHTOOL_GDRVINFO};
	struct ethtool_cmd speed = {.cmd = ETHTOOL_GSET};
	struct ifreq r = {.ifr_data = (char *)&driver};
	bool constant = false;
	snprintf(r.ifr_name, sizeof r.ifr_name, "%s", name);
	if (!ioctl(fd, SIOCETHTOOL, &r)) {
		c->bridge = !strcmp(driver.driver, "bridge");
		for (size_t i = 0; i < sizeof unmeasured_drivers / sizeof *unmeasured_drivers; i++)
			constant |= !strcmp(driver.driver, unmeasured_drivers[i]);
	}
	r.ifr_data = (char *)&speed;
	if (constant || ioctl(fd, SIOCETHTOOL, &r))
		return;
	/* ethtool_cmd_speed() shifts an int, which cannot hold that of an interface that does not know. */
	c->a.speed = (uint32_t)speed.speed_hi << 16 | speed.speed;
	if (c->a.speed == (uint32_t)SPEED_UNKNOWN || c->a.speed == UINT16_MAX)
		c->a.speed = 0;
}

/* Interfaces through which the routing tables lead to other networks. */
static strset interfaces_routed(void)
{
	static const struct {
		const char *file, *form;
	} table[] = {{"/proc/net/route", "%*s %*s %*s %x"},
	             {"/proc/net/ipv6_route", "%*s %*s %*s %*s %*s %*s %*s %*s %x"}};
	strset through = {0};
	char line[300], name[IFNAMSIZ];

	for (int i = 0; i < 2; i++) {
		FILE *f = fopen(table[i].file, "re");

		while (f && fgets(line, sizeof line, f)) {
			unsigned flags;
			const char *last = strrchr(line, ' ');

			/* The name is first in one table, and last in the other. */
			if (sscanf(line, table[i].form, &flags) == 1 && flags & 2 /* RTF_GATEWAY */ &&
			    sscanf(i && last ? last : line, "%15s", name) == 1)
				strset_add(&through, name, strlen(name));
		}
		if (f)
			fclose(f);
	}
	return through;
}

static bool strset_has(const strset *s, const char *name)
{
	for (size_t i = 0; i < s->count; i++)
		if (!strcmp(s->name[i], name))
			return true;
	return false;
}

static int candidate_compare(const void *x, const void *y)
{
	const candidate *a = x, *b = y;
	if (a->carrier != b->carrier)
		return a->carrier ? -1 : 1;
	if (a->routed != b->routed)
		return a->routed ? -1 : 1;
	if (a->bridge != b->bridge)
		return b->bridge ? -1 : 1;
	if (a->a.speed != b->a.speed)
		return a->a.speed > b->a.speed ? -1 : 1;
	return a->place < b->place ? -1 : 1;
}

/* Chooses the best of them, numbered by interface. */
static int candidates_choose(candidate *c, size_t n, address out[ADDRESS_MAX])
{
	int kept = n < ADDRESS_MAX ? (int)n : ADDRESS_MAX;
	uint8_t cards = 0;
	qsort(c, n, sizeof *c, candidate_compare);
	for (int i = 0; i < kept; i++) {
		out[i] = c[i].a;
		for (int k = 0; k < i && !out[i].card; k++)
			if (out[k].interface == out[i].interface)
				out[i].card = out[k].card;
		if (!out[i].card)
			out[i].card = ++cards;
	}
	return kept;
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
	candidate *found = NULL;
	strset routed = {0};
	address net;
	char seen[300] = "";
	int block = strchr(filter, '/') != NULL, fd;
	size_t nfound = 0, all = 0;
	*n = 0;
	if (block && address_block(filter, &net))
		return error_set(
			err, GRADCOMP_ERR_INVALID,
			"transport.interface=%s is not an address block; write for instance 10.0.0.0/8 or eth0",
			filter);
	if (getifaddrs(&list))
		return error_errno(err, GRADCOMP_ERR_IO, "cannot list the network interfaces");
	for (i = list; i; i = i->ifa_next)
		all++;
	found = calloc(all + 1, sizeof *found);
	if (!found) {
		freeifaddrs(list);
		return error_set(err, GRADCOMP_ERR_NOMEM, "no memory for %zu network addresses", all);
	}
	fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	routed = interfaces_routed();
	for (int round = 0; round < 2 && !nfound; round++) {
		for (i = list; i; i = i->ifa_next) {
			candidate c = {.place = nfound};

			if (!i->ifa_addr || !(i->ifa_flags & IFF_UP) || address_from(i->ifa_addr, &c.a))
				continue;
			c.a.prefix = address_prefix(i->ifa_netmask, c.a.bytes);
			if (!round)
				address_note(seen, sizeof seen, i->ifa_name, &c.a);
			if (*filter && (block ? !address_in(&c.a, &net, net.prefix) : strcmp(filter, i->ifa_name) != 0))
				continue;
			if (address_round(&c.a, (i->ifa_flags & IFF_LOOPBACK) != 0, *filter != 0) != round)
				continue;
			c.a.interface = if_nametoindex(i->ifa_name);
			c.carrier = (i->ifa_flags & IFF_RUNNING) != 0;
			c.routed = strset_has(&routed, i->ifa_name);
			interface_ask(fd, i->ifa_name, &c);
			found[nfound++] = c;
		}
	}
	*n = candidates_choose(found, nfound, out);
	if (fd >= 0)
		close(fd);
	strset_clear(&routed);
	free(found);
	freeifaddrs(list);
	if (*n)
		return GRADCOMP_OK;
	if (*filter)
		return error_set(err, GRADCOMP_ERR_NOTFOUND,
		                 "transport.interface=%s matches no address of this machine; it has %s", filter,
		                 *seen ? seen : "none");
	return error_set(err, GRADCOMP_ERR_NOTFOUND, "this machine has no network address (no interface is up)");
}

/* The functions below turn addresses into sockets' addresses and text. */

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
	in6->sin6_scope_id = address_link_local(a) ? a->interface : 0;
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

uint16_t address_local_port(int fd)
{
	union {
		struct sockaddr any;
		struct sockaddr_in v4;
		struct sockaddr_in6 v6;
	} sa = {.v6 = {0}};
	socklen_t bytes = sizeof sa;
	if (getsockname(fd, &sa.any, &bytes))
		return 0;
	return ntohs(sa.any.sa_family == AF_INET6 ? sa.v6.sin6_port : sa.v4.sin_port);
}

int address_format(const address *a, char out[ADDRESS_TEXT])
{
	char ip[INET6_ADDRSTRLEN], speed[16] = "", card[8] = "";
	inet_ntop(a->bytes == 16 ? AF_INET6 : AF_INET, a->ip, ip, sizeof ip);
	if (a->card)
		snprintf(card, sizeof card, ":%u", a->card);
	if (a->card && a->speed)
		snprintf(speed, sizeof speed, ":%u", a->speed);
	return snprintf(out, ADDRESS_TEXT, "%s/%u@%u%s%s", ip, a->prefix, a->port, card, speed);
}

gradcomp_status address_own_text(uint16_t port, char out[ADDRESS_LIST_TEXT], gradcomp_error *err)
{
	address own[ADDRESS_MAX];
	int n = 0;
	gradcomp_status st = address_own("", own, &n, err);
	out[0] = 0;
	for (int i = 0; !st && i < n; i++) {
		size_t used = strlen(out);
		if (used + 1 + ADDRESS_TEXT > ADDRESS_LIST_TEXT)
			break;
		own[i].port = port;
		out[used] = ',';
		address_format(&own[i], out + used + !!used);
	}
	return st;
}

int address_parse(const char *text, size_t bytes, address *out)
{
	char copy[ADDRESS_TEXT], *at, *card, *speed = NULL;
	long port, number;
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
	card = strchr(at, ':');
	if (card) {
		*card++ = '\0';
		speed = strchr(card, ':');
	}
	if (speed)
		*speed++ = '\0';
	port = address_number(at, 65535);
	number = card ? address_number(card, UINT8_MAX) : 0;
	if (port <= 0 || (card && number <= 0))
		return -1;
	out->port = (uint16_t)port;
	out->card = (uint8_t)number;
	number = speed ? address_number(speed, INT32_MAX) : 0;
	if (speed && number <= 0)
		return -1;
	out->speed = (uint32_t)number;
	return 0;
}

static int listen_on(int family, uint16_t port)
{
	struct sockaddr_in6 any6 = {.sin6_family = AF_INET6, .sin6_addr = IN6ADDR_ANY_INIT, .sin6_port = htons(port)};
	struct sockaddr_in any4 = {.sin_family = AF_INET, .sin_port = htons(port)};
	int off = 0, on = 1, fd = socket(family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0),
	    six = family == AF_INET6;
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

/* Listens for both families at once; without IPv6 in the kernel the first fails. */
static int listen_any(uint16_t port)
{
	int fd = listen_on(AF_INET6, port);
	return fd < 0 && errno != EADDRINUSE && errno != EACCES ? listen_on(AF_INET, port) : fd;
}

int address_listen(const char *range, uint16_t *port)
{
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
	*port = address_local_port(fd);
	if (!*port) {
		int code = errno;

		close(fd);
		errno = code;
		return -1;
	}
	return fd;
}
