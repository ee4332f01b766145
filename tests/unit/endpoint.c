/* Endpoint records are untrusted text: what is not one is refused, what is read is
 * in bounds, and a peer's addresses are tried in a sensible order. */
#include "tests/support/tap.h"

#include "transport/wire/endpoint.h"
#include "transport/wire/handshake.h"
#include "transport/core/transport.h"

#include <inttypes.h>
#include <stdlib.h>

#define MUTATIONS 20000

static const char good[] = "gc1 host=n1 node=6f1c-f0000001-3e8 cpus=0-3,8-8 unix=3030613162 "
			   "tcp=10.0.0.1/24@41257,fd00::1/64@41258";
static uint64_t state;

static unsigned draw(unsigned n)
{
	state = state * 6364136223846793005u + 1442695040888963407u;
	return (unsigned)(state >> 33) % n;
}

/* Reads a copy that ends where its memory ends. */
static gradcomp_status read_exact(const char *text, endpoint *c, endpoint_node *node, gradcomp_error *err)
{
	size_t n = strlen(text) + 1;
	char *copy = malloc(n);
	gradcomp_status st;
	memcpy(copy, text, n);
	st = endpoint_read(copy, c, node, err);
	free(copy);
	return st;
}

static int same_address(const address *a, const address *b)
{
	return a->bytes == b->bytes && a->prefix == b->prefix && a->port == b->port && !memcmp(a->ip, b->ip, a->bytes);
}

static int same_record(const endpoint *a, const endpoint_node *an, const endpoint *b, const endpoint_node *bn)
{
	if (strcmp(a->host, b->host) || strcmp(an->host, bn->host) || strcmp(an->key, bn->key) ||
	    strcmp(an->cpus, bn->cpus) || a->naddr != b->naddr || a->unix_bytes != b->unix_bytes ||
	    memcmp(a->unix_name, b->unix_name, a->unix_bytes))
		return 0;
	for (int i = 0; i < a->naddr; i++)
		if (!same_address(&a->addr[i], &b->addr[i]))
			return 0;
	return 1;
}

static void written_and_read(void)
{
	endpoint_node here, there;
	address own[2];
	char text[TRANSPORT_ENDPOINT_MAX], small[64];
	static const char name[] = {'0', '\0', '\xff', 'a', '1'};
	gradcomp_error err = {0};
	endpoint c;
	endpoint_this_node(&here);
	ok(!address_parse("10.0.0.1/24@41257", 17, &own[0]) && !address_parse("fd00::1/64@65535", 16, &own[1]),
	   "addresses of both families are read");
	is_int(endpoint_write(&here, name, sizeof name, own, &(int){2}, text, sizeof text, &err), 0,
	       "this node's record is written");
	is_int(endpoint_read(text, &c, &there, &err), 0, "and read");
	is_str(c.host, here.host, "its host");
	is_str(there.key, here.key, "its node");
	is_str(there.cpus, here.cpus, "its CPUs");
	ok(c.unix_bytes == sizeof name && !memcmp(c.unix_name, name, sizeof name), "its local socket, any bytes");
	ok(c.naddr == 2 && same_address(&c.addr[0], &own[0]) && same_address(&c.addr[1], &own[1]), "its addresses");
	is_int(atomic_load(&c.good), -1, "of which none has been tried");
	endpoint_clear(&c);
	ok(!here.verbs[0] && !c.verbs, "without an RDMA device");
	strcpy(here.verbs, "ib-fe80000000000000");
	ok(!endpoint_write(&here, name, 0, own, &(int){1}, text, sizeof text, &err) &&
	           !endpoint_read(text, &c, &there, &err),
	   "a record with one is written and read");
	is_str(there.verbs, here.verbs, "what network it is on");
	ok(c.verbs, "which can be compared");
	endpoint_clear(&c);
	here.verbs[0] = 0;
	is_int(endpoint_write(&here, name, 0, NULL, &(int){0}, text, sizeof text, &err), 0,
	       "a record without a local socket is written");
	ok(!endpoint_read(text, &c, &there, &err) && !c.naddr && !c.addr && !c.unix_bytes, "and read");
	endpoint_clear(&c);
	memset(small, 'x', sizeof small);
	is_int(endpoint_write(&here, name, sizeof name, own, &(int){2}, small, 40, &err), GRADCOMP_ERR_RANGE,
	       "a record that does not fit is an error");
	ok(small[40] == 'x' && memchr(small, '\0', 40), "which stays within its room");
}

/* However many addresses there are, the record stays within its room, and has those that come first. */
static void bounded(void)
{
	address own[ADDRESS_MAX];
	char text[TRANSPORT_ENDPOINT_MAX];
	endpoint_node here, there;
	gradcomp_error err;
	endpoint c;
	int written = 0, n = ADDRESS_MAX;
	endpoint_this_node(&here);
	memset(here.host, 'h', sizeof here.host - 1);
	memset(here.key, 'k', sizeof here.key - 1);
	memset(here.cpus, '1', sizeof here.cpus - 1);
	for (int i = 0; i < ADDRESS_MAX; i++) {
		if (address_parse("fd00:1111:2222:3333:4444:5555:6666:7777/64@65535:64:2147483647", 62, &own[i]))
			printf("Bail out! no address\n");
		own[i].ip[15] = (unsigned char)i;
	}
	is_int(endpoint_write(&here, "0123456789abcdef", 16, own, &n, text, sizeof text, &err), 0,
	       "a record of 64 long addresses is written");
	ok(n > 16 && n < ADDRESS_MAX && strlen(text) < sizeof text, "with %d of them, in %zu bytes", n, strlen(text));
	ok(!endpoint_read(text, &c, &there, &err) && c.naddr == n && same_address(&c.addr[n - 1], &own[n - 1]),
	   "those that come first");
	endpoint_clear(&c);
	for (n = ADDRESS_MAX; n > 0; n = written) {
		size_t room = strlen(text);

		written = n;
		if (endpoint_write(&here, "0123456789abcdef", 16, own, &written, text, room, &err))
			break;
		if (written >= n || strlen(text) >= room || endpoint_read(text, &c, &there, &err))
			ok(0, "%d of %d addresses in %zu bytes", written, n, room);
		else
			endpoint_clear(&c);
	}
	ok(n > 0, "with less room there are fewer, and with none for one it is an error");
	here.frames = FRAMES_ENCRYPT;
	here.aes = 1;
	n = ADDRESS_MAX;
	ok(!endpoint_write(&here, "0123456789abcdef", 16, own, &n, text, sizeof text, &err) &&
	           strstr(text, " frames=encrypt aes=1"),
	   "what comes after the addresses is not cut");
}

#define FOUR "1.1.1.1/8@1,1.1.1.1/8@1,1.1.1.1/8@1,1.1.1.1/8@1,"
#define SIXTEEN FOUR FOUR FOUR FOUR

static void refused(void)
{
	static const struct {
		const char *name, *text, *what;
	} bad[] = {
		{"nothing", "", "not of this version"},
		{"another version", "gc2 host=a node=b cpus= unix= tcp=", "not of this version: \"gc2 "},
		{"a terminal's commands", "\033[2J\nroot", "\"?[2J?root\""},
		{"only the version", "gc1 ", "host"},
		{"no host", "gc1 node=b cpus= unix= tcp=", "host"},
		{"an empty host", "gc1 host= node=b cpus= unix= tcp=", "host"},
		{"a host of 65 bytes",
	         "gc1 host=aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa node=b cpus= unix= "
	         "tcp=",
	         "host"},
		{"an empty node", "gc1 host=a node= cpus= unix= tcp=", "node"},
		{"a key glued to another", "gc1 host=anode=b cpus= unix= tcp=", "node"},
		{"no CPUs", "gc1 host=a node=b unix= tcp=", "cpus"},
		{"no local socket", "gc1 host=a node=b cpus= tcp=", "unix"},
		{"half a byte", "gc1 host=a node=b cpus= unix=303 tcp=", "unix"},
		{"what is no digit", "gc1 host=a node=b cpus= unix=3g tcp=", "unix"},
		{"a sign in a byte", "gc1 host=a node=b cpus= unix=+1 tcp=", "unix"},
		{"17 bytes of a name of 16",
	         "gc1 host=a node=b cpus= unix=0000000000000000000000000000000000 tcp=", "unix"},
		{"no addresses' key", "gc1 host=a node=b cpus= unix=", "tcp"},
		{"an address without a port", "gc1 host=a node=b cpus= unix= tcp=10.0.0.1/24", "tcp"},
		{"port 0", "gc1 host=a node=b cpus= unix= tcp=10.0.0.1/24@0", "tcp"},
		{"port 65536", "gc1 host=a node=b cpus= unix= tcp=10.0.0.1/24@65536", "tcp"},
		{"a port that wraps", "gc1 host=a node=b cpus= unix= tcp=10.0.0.1/24@-18446744073709551535", "tcp"},
		{"a port with a tail", "gc1 host=a node=b cpus= unix= tcp=10.0.0.1/24@80x", "tcp"},
		{"a subnet of 33 bits", "gc1 host=a node=b cpus= unix= tcp=10.0.0.1/33@80", "tcp"},
		{"a subnet of 129 bits", "gc1 host=a node=b cpus= unix= tcp=fd00::1/129@80", "tcp"},
		{"a subnet with a sign", "gc1 host=a node=b cpus= unix= tcp=10.0.0.1/+24@80", "tcp"},
		{"a name for an address", "gc1 host=a node=b cpus= unix= tcp=localhost/8@80", "tcp"},
		{"a network of 32 bytes", "gc1 host=a node=b cpus= unix= tcp= verbs=0123456789abcdef0123456789abcdef",
	         "verbs"},
		{"an empty address", "gc1 host=a node=b cpus= unix= tcp=10.0.0.1/24@80,,10.0.0.2/24@80", "tcp"},
		{"an address of 72 bytes",
	         "gc1 host=a node=b cpus= unix= "
	         "tcp=10.0.0.1/24@000000000000000000000000000000000000000000000000000000000080",
	         "tcp"},
		{"65 addresses", "gc1 host=a node=b cpus= unix= tcp=" SIXTEEN SIXTEEN SIXTEEN SIXTEEN "1.1.1.1/8@1",
	         "tcp"},
		{"an interface without a number", "gc1 host=a node=b cpus= unix= tcp=10.0.0.1/24@80:", "tcp"},
		{"a speed of 0", "gc1 host=a node=b cpus= unix= tcp=10.0.0.1/24@80:1:0", "tcp"},
		{"a new line", "gc1 host=a\nb node=b cpus= unix= tcp=", "text"},
		{"a byte over 126", "gc1 host=a\xc3\xa4 node=b cpus= unix= tcp=", "text"},
	};
	char text[2 * TRANSPORT_ENDPOINT_MAX];
	gradcomp_error err;
	endpoint_node node;
	endpoint c;
	size_t used;

	is_int(endpoint_read(NULL, &c, &node, &err), GRADCOMP_ERR_INVALID, "no record at all is refused");
	for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
		err = (gradcomp_error){0};
		if (ok(read_exact(bad[i].text, &c, &node, &err) == GRADCOMP_ERR_INVALID, "%s is refused", bad[i].name))
			like(err.text, bad[i].what, "and the message says where");
		else
			endpoint_clear(&c);
		ok(!c.host && !c.addr, "nothing of it is kept");
	}
	/* Unknown keys are skipped, so that only its length is wrong here. */
	used = (size_t)snprintf(text, sizeof text, "%s x=", good);
	memset(text + used, 'x', sizeof text - used);
	text[TRANSPORT_ENDPOINT_MAX] = '\0';
	is_int(read_exact(text, &c, &node, &err), GRADCOMP_ERR_INVALID, "a record of %d bytes is refused",
	       TRANSPORT_ENDPOINT_MAX);
	text[TRANSPORT_ENDPOINT_MAX - 1] = '\0';
	is_int(read_exact(text, &c, &node, &err), 0, "one of a byte less is read");
	endpoint_clear(&c);
	is_int(read_exact("gc1 host=a host=b node=c cpus= node=d unix= tcp= tcp=1.1.1.1/8@1", &c, &node, &err), 0,
	       "keys that come twice are read");
	ok(!strcmp(c.host, "a") && !strcmp(node.key, "c") && !c.naddr, "by every rank alike: the first counts");
	endpoint_clear(&c);
}

/* Every record cut short anywhere is refused or reads as less of the same. */
static void truncated(void)
{
	char text[sizeof good];
	gradcomp_error err;
	endpoint_node node;
	endpoint c;
	int bad = 0;
	for (size_t n = 0; n < sizeof good - 1; n++) {
		snprintf(text, sizeof text, "%.*s", (int)n, good);
		if (read_exact(text, &c, &node, &err)) {
			bad += c.host || c.addr;
			continue;
		}
		bad += n < (size_t)(strstr(good, "tcp=") + 4 - good) || c.naddr > 2;
		endpoint_clear(&c);
	}
	is_int(bad, 0, "a record cut short at each of %zu bytes has no more than it says", sizeof good - 1);
}

static void mutate(char *text, size_t room)
{
	static const char likely[] = "0123456789abcdefg=/@:,. +-x";
	size_t n = strlen(text);
	for (unsigned times = 1 + draw(4); times && n; times--) {
		size_t at = draw((unsigned)n), len = 1 + draw(8);

		switch (draw(4)) {
		case 0: /* another byte, mostly one that could stand there */
			text[at] = draw(4) ? likely[draw(sizeof likely - 1)] : (char)(1 + draw(255));
			break;
		case 1: /* a piece less */
			len = len < n - at ? len : n - at;
			memmove(text + at, text + at + len, n - at - len + 1);
			break;
		case 2: /* a piece twice */
			len = len < n - at ? len : n - at;
			if (n + len < room)
				memmove(text + at + len, text + at, n - at + 1);
			break;
		default: /* the end is missing */
			if (!draw(4))
				text[at] = '\0';
		}
		n = strlen(text);
	}
}

/* Checks that all that is read is in bounds, and means the same when written and read again. */
static int sound(const endpoint *c, const endpoint_node *node)
{
	char text[4 * TRANSPORT_ENDPOINT_MAX];
	endpoint_node node2;
	endpoint c2;
	int same;
	if (!c->host || !*c->host || strlen(c->host) >= ENDPOINT_HOST_MAX || c->naddr > ADDRESS_MAX ||
	    c->unix_bytes > ENDPOINT_UNIX_MAX)
		return 0;
	for (int i = 0; i < c->naddr; i++)
		if ((c->addr[i].bytes != 4 && c->addr[i].bytes != 16) || c->addr[i].prefix > 8 * c->addr[i].bytes ||
		    !c->addr[i].port)
			return 0;
	if (endpoint_write(node, c->unix_name, c->unix_bytes, c->addr, &(int){c->naddr}, text, sizeof text, NULL) ||
	    endpoint_read(text, &c2, &node2, NULL))
		return 0;
	same = same_record(c, node, &c2, &node2);
	endpoint_clear(&c2);
	return same;
}

static void mutated(void)
{
	const char *seed = getenv("GRADCOMP_FUZZ_SEED");
	char text[2 * sizeof good];
	gradcomp_error err;
	endpoint_node node;
	endpoint c;
	int bad = 0, read = 0;
	if (seed)
		state = strtoull(seed, NULL, 10);
	else
		secret_random(&state, sizeof state, NULL);
	printf("# GRADCOMP_FUZZ_SEED=%" PRIu64 "\n", state);
	for (int i = 0; i < MUTATIONS; i++) {
		snprintf(text, sizeof text, "%s", good);
		mutate(text, sizeof text);
		err = (gradcomp_error){0};
		if (read_exact(text, &c, &node, &err)) {
			if (err.status != GRADCOMP_ERR_INVALID || !err.text[0] || c.host || c.addr) {
				printf("# refused badly: %s\n", text);
				bad++;
			}
			continue;
		}
		read++;
		if (!sound(&c, &node)) {
			printf("# read badly: %s\n", text);
			bad++;
		}
		endpoint_clear(&c);
	}
	is_int(bad, 0, "%d records with random faults are refused or read soundly", MUTATIONS);
	ok(read > MUTATIONS / 100 && read < MUTATIONS, "some of either kind (%d read)", read);
}

int main(void)
{
	written_and_read();
	bounded();
	refused();
	truncated();
	mutated();
	return done_testing();
}
