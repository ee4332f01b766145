/* Which of its addresses a rank offers, and in which order a peer's are tried. */
#define _GNU_SOURCE
#include "tests/support/tap.h"

#include "transport/wire/network.h"
#include "transport/wire/handshake.h"

#include <ifaddrs.h>
#include <inttypes.h>
#include <net/if.h>
#include <netinet/in.h>
#include <stdlib.h>

#define SHUFFLES 2000

static address from_text(const char *text)
{
	address a = {0};
	if (address_parse(text, strlen(text), &a))
		printf("Bail out! %s is no address\n", text);
	return a;
}

/* "2 0 1": the order in which n addresses are tried. */
static const char *order_of(const char *const *own, int nown, int same_node, const char *const *peer, int n)
{
	static char text[100];
	address mine[ADDRESS_MAX], theirs[ADDRESS_MAX];
	int order[ADDRESS_MAX];
	size_t used = 0;
	for (int i = 0; i < nown; i++)
		mine[i] = from_text(own[i]);
	for (int i = 0; i < n; i++)
		theirs[i] = from_text(peer[i]);
	network_address_order(NULL, mine, nown, same_node, theirs, n, order);
	for (int i = 0; i < n; i++)
		used += (size_t)snprintf(text + used, sizeof text - used, "%s%d", i ? " " : "", order[i]);
	return text;
}

#define ORDER(same, own, peer) order_of(own, sizeof(own) / sizeof *(own), same, peer, sizeof(peer) / sizeof *(peer))

static void ordered(void)
{
	static const char *const own[] = {"10.0.0.1/24@1", "fd00::1/64@1", "172.17.0.1/16@1"};
	static const char *const both[] = {"2001:db8::5/64@2", "192.0.2.5/24@2", "fd00::2/64@2", "10.0.0.2/24@2"};
	static const char *const bridge[] = {"172.17.0.1/16@2", "2001:db8::5/64@2", "10.0.0.2/24@2"};
	static const char *const other_bridge[] = {"2001:db8::5/64@2", "172.17.0.2/16@2"};
	static const char *const equal[] = {"10.0.0.9/24@2", "10.0.0.2/24@2", "10.0.0.5/24@2"};
	static const char *const edge[] = {"10.0.1.0/24@2", "10.0.0.255/24@2"};
	static const char *const odd_own[] = {"10.0.8.1/21@1", "198.51.100.1/24@1"};
	static const char *const odd[] = {"10.0.16.1/21@2", "10.0.7.255/21@2", "10.0.15.255/21@2"};
	static const char *const mapped[] = {"a00:2::/64@2", "10.0.0.2/24@2"};
	is_str(ORDER(0, own, both), "3 2 1 0", "our subnets first, and IPv4 before IPv6 in each half");
	is_str(ORDER(0, own, bridge), "2 1 0", "an address both have is tried last");
	is_str(ORDER(1, own, bridge), "0 2 1", "but not on one node");
	is_str(ORDER(0, own, other_bridge), "1 0", "another address in its subnet is a subnet's");
	is_str(ORDER(0, own, equal), "0 1 2", "among equals the peer's order stays");
	is_str(ORDER(0, own, edge), "1 0", "a subnet ends where it ends");
	is_str(ORDER(0, odd_own, odd), "2 0 1", "also one that ends within a byte");
	is_str(ORDER(0, own, mapped), "1 0", "an IPv6 address that begins with our bytes is in no IPv4 subnet");
	is_str(order_of(NULL, 0, 0, both, 4), "1 3 0 2", "without an address of our own: IPv4, then IPv6");
}

/* Networks from the records of four nodes, and what a rank makes of them. */
static void networks(void)
{
	static const char *const of[4][5] = {
		{"10.0.0.1/24@1:1:1000", "10.1.0.1/24@1:2", "fd00::1/64@1:1:1000", "172.17.0.1/16@1:3",
	         "192.168.9.1/24@1:4"},
		{"10.1.0.2/24@1:1", "10.0.0.2/24@1:2:25000", "fd00::2/64@1:2:25000", "172.17.0.1/16@1:3", NULL},
		{"10.0.0.3/24@1:1:1000", "172.17.0.1/16@1:2", "10.1.0.3/24@1:3", NULL, NULL},
		{"10.0.0.4/24@1:1:100", "fd00::4/64@1:1:100", NULL, NULL, NULL},
	};
	static const char *const rates[] = {"10.1.0.2/24@1:1", "10.0.0.2/24@1:2:25000", "fd00::2/64@1:2:25000",
	                                    "172.17.0.1/16@1:3"};
	address list[4][5], own[5], peer[4];
	endpoint e[4] = {{0}};
	const int32_t node[] = {0, 1, 2, 3};
	network_list l;
	char name[ADDRESS_TEXT];
	int order[ADDRESS_MAX];
	for (int r = 0; r < 4; r++) {
		e[r].addr = list[r];
		for (int i = 0; i < 5 && of[r][i]; i++, e[r].naddr++)
			list[r][i] = from_text(of[r][i]);
	}
	networks_find(&l, e, node, 4, 4);
	is_int(l.n, 2,
	       "two subnets are networks: one bridge everywhere is none, nor is what one node has, or what an interface has besides");
	network_name(&l.of[0], name);
	is_str(name, "10.0.0.0/24", "in the order of the first node");
	is_int(l.of[0].nodes, 4, "all four nodes are in it");
	is_int(l.of[0].claimed, 100, "its speed is that of the slowest");
	is_int(l.of[1].claimed, 0, "that of the other is not known");
	ok(networks_unclear(&l), "so there is something to measure");
	is_int(network_of(&l, list[1], 3, 2), 0, "an interface's other address belongs to its network");
	for (int i = 0; i < 5; i++)
		own[i] = list[0][i];
	for (int i = 0; i < 4; i++)
		peer[i] = from_text(rates[i]);
	network_address_order(&l, own, 5, 0, peer, 4, order);
	ok(order[0] == 1 && order[1] == 2 && order[2] == 0 && order[3] == 3, "before: what drivers say, IPv4 first");
	l.measured = true;
	l.of[0].rate = 90;
	l.of[1].rate = 900;
	network_address_order(&l, own, 5, 0, peer, 4, order);
	ok(order[0] == 0 && order[1] == 1 && order[2] == 2 && order[3] == 3, "then: what was measured");
	l.of[1].rate = 0;
	network_address_order(&l, own, 5, 0, peer, 4, order);
	ok(order[0] == 1 && order[1] == 2 && order[2] == 0 && order[3] == 3,
	   "what carries nothing comes late, not never");
	list[0][1].speed = list[1][0].speed = list[2][2].speed = 10000;
	networks_find(&l, e, node, 4, 4);
	ok(!networks_unclear(&l), "where all drivers know, nothing is measured");
	networks_find(&l, e, node, 1, 1);
	is_int(l.n, 0, "on one node there is no network");
}

static void refused_text(void)
{
	static const char *const bad[] = {
		"10.0.0.2/24@1:",    "10.0.0.2/24@1:0",   "10.0.0.2/24@1:256",          "10.0.0.2/24@1:1:",
		"10.0.0.2/24@1:1:0", "10.0.0.2/24@1:1:x", "10.0.0.2/24@1:1:4294967296", "10.0.0.2/24@1:1:1:1"};
	address a = from_text("10.0.0.2/24@7:3:25000");
	ok(a.port == 7 && a.card == 3 && a.speed == 25000, "interface and speed are read");
	for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
		is_int(address_parse(bad[i], strlen(bad[i]), &a), -1, "'%s' is no address", bad[i]);
}

/* Whatever the addresses: each is tried once, an own one never before another. */
static void shuffled(void)
{
	int bad = 0;
	unsigned seed;
	secret_random(&seed, sizeof seed, NULL);
	printf("# seed %u\n", seed);
	srand(seed);
	for (int k = 0; k < SHUFFLES; k++) {
		address own[ADDRESS_MAX] = {0}, peer[ADDRESS_MAX] = {0};
		int order[ADDRESS_MAX], nown = rand() % (ADDRESS_MAX + 1), n = 1 + rand() % ADDRESS_MAX, shared = 0;
		uint64_t seen = 0;

		for (int i = 0; i < nown + n; i++) {
			address *a = i < nown ? &own[i] : &peer[i - nown];

			a->bytes = rand() % 2 ? 4 : 16;
			a->prefix = (uint8_t)(rand() % (8 * a->bytes + 1));
			a->ip[0] = (unsigned char)(rand() % 3);
			a->ip[a->bytes - 1] = (unsigned char)(rand() % 3);
		}
		network_address_order(NULL, own, nown, 0, peer, n, order);
		for (int i = 0; i < n; i++) {
			int ours = 0;

			if (order[i] < 0 || order[i] >= n) {
				bad++;
				break;
			}
			seen |= UINT64_C(1) << order[i];
			for (int j = 0; j < nown; j++)
				ours |= own[j].bytes == peer[order[i]].bytes &&
				        !memcmp(own[j].ip, peer[order[i]].ip, 16);
			bad += shared && !ours;
			shared |= ours;
		}
		bad += seen != (n < 64 ? (UINT64_C(1) << n) - 1 : UINT64_MAX);
	}
	is_int(bad, 0, "%d random lists are tried whole, own addresses last", SHUFFLES);
}

/* The addresses a filter leaves, as text; "" with *err filled on failure. */
static const char *offered(const char *filter, gradcomp_status want, gradcomp_error *err)
{
	static char text[ADDRESS_MAX * ADDRESS_TEXT];
	address a[ADDRESS_MAX];
	char one[ADDRESS_TEXT];
	size_t used = 0;
	int n = -1;
	*err = (gradcomp_error){0};
	text[0] = '\0';
	if (!is_int(address_own(filter, a, &n, err), want, "transport.interface='%s'", filter) || want) {
		ok(!n, "no address comes with the error");
		return text;
	}
	for (int i = 0; i < n; i++) {
		address_format(&a[i], one);
		used += (size_t)snprintf(text + used, sizeof text - used, "%s ", one);
	}
	return text;
}

static bool all_ipv4(const char *text)
{
	bool good = *text;
	for (; *text; text += strcspn(text, " ") + 1)
		good &= memchr(text, ':', strcspn(text, "@")) == NULL;
	return good;
}

/* Is an interface up that is not loopback, with an address that may be offered? */
static int networked(void)
{
	struct ifaddrs *list, *i;
	int found = 0;
	if (getifaddrs(&list))
		return 0;
	for (i = list; i; i = i->ifa_next)
		found |= i->ifa_addr && (i->ifa_flags & (IFF_UP | IFF_LOOPBACK)) == IFF_UP &&
		         (i->ifa_addr->sa_family == AF_INET ||
		          (i->ifa_addr->sa_family == AF_INET6 &&
		           !IN6_IS_ADDR_LINKLOCAL(&((struct sockaddr_in6 *)(void *)i->ifa_addr)->sin6_addr)));
	freeifaddrs(list);
	return found;
}

static void chosen(void)
{
	static const char *const no_block[] = {"10.0.0.0/33",
	                                       "10.0.0/8",
	                                       "fd00::/129",
	                                       "10.0.0.0/",
	                                       "10.0.0.0/8x",
	                                       "10.0.0.0/-1",
	                                       "10.0.0.0/+8",
	                                       "10.0.0.0/ 8",
	                                       "/8",
	                                       "eth0/24",
	                                       "10.0.0.0/8/8",
	                                       "10.0.0.0/99999999999999999999",
	                                       "0000:0000:0000:0000:0000:0000:0000:0000:0000:0000/64"};
	gradcomp_error err;
	like(offered("lo", 0, &err), "127.0.0.1/8@0:1", "an interface by name");
	ok(all_ipv4(offered("0.0.0.0/0", 0, &err)), "by an IPv4 block, which holds no IPv6 address");
	is_str(offered("127.0.0.1/32", 0, &err), "127.0.0.1/8@0:1 ", "by one address; its subnet is the interface's");
	offered("203.0.113.0/24", GRADCOMP_ERR_NOTFOUND, &err);
	like(err.text, "matches no address of this machine; it has ", "a block of others is an error");
	like(err.text, "lo 127.0.0.1/8", "which lists what there is");
	offered("none-such", GRADCOMP_ERR_NOTFOUND, &err);
	like(err.text, "transport.interface=none-such", "so is the name of no interface");
	offered("l", GRADCOMP_ERR_NOTFOUND, &err);
	for (size_t i = 0; i < sizeof no_block / sizeof *no_block; i++) {
		offered(no_block[i], GRADCOMP_ERR_INVALID, &err);
		like(err.text, "write for instance 10.0.0.0/8 or eth0", "the message says what a block is");
	}
	if (networked())
		ok(!strstr(offered("", 0, &err), "127.0.0.1"), "without a choice loopback is not offered");
	else
		like(offered("", 0, &err), "127.0.0.1", "without a choice and a network loopback is offered");
}

static void in_words(void)
{
	static const char *const text[] = {"10.0.0.2:4711", "[fd00::2]:4711", "10.0.0.2:4711"};
	address a[] = {from_text("10.0.0.2/24@4711"), from_text("fd00::2/64@4711"), {.bytes = 16, .port = 4711}};
	static const unsigned char mapped[16] = {[10] = 0xff, [11] = 0xff, [12] = 10, [15] = 2};
	struct sockaddr_storage sa;
	char out[ADDRESS_TEXT];
	memcpy(a[2].ip, mapped, sizeof mapped);
	for (int i = 0; i < 3; i++) {
		socklen_t n = address_sockaddr(&a[i], &sa);

		ok(n == (a[i].bytes == 4 ? sizeof(struct sockaddr_in) : sizeof(struct sockaddr_in6)),
		   "a socket's address");
		address_text(&sa, out);
		is_str(out, text[i], "in words");
	}
	sa.ss_family = AF_UNIX;
	address_text(&sa, out);
	is_str(out, "a local socket", "a local one");
}

int main(void)
{
	ordered();
	networks();
	refused_text();
	shuffled();
	chosen();
	in_words();
	return done_testing();
}
