/* Endpoint records: how a rank can be reached. Every rank publishes one.
 *
 *     gc1 host=NAME node=BOOTID-NETNS-UID cpus=LIST unix=HEX tcp=ADDR,ADDR frames=MODE aes=1 verbs=KEY
 *
 * A record is untrusted text. It says where to connect, never who answers. */
#ifndef TRANSPORT_WIRE_ENDPOINT_H
#define TRANSPORT_WIRE_ENDPOINT_H

#include "transport/wire/address.h"
#include "transport/verbs/fabric.h"

#include <stdatomic.h>

#define ENDPOINT_HOST_MAX 65
#define ENDPOINT_UNIX_MAX 16

typedef struct endpoint {
	char *host;
	address *addr;
	uint64_t verbs; /* hash of its RDMA network, or 0: ranks with the same one try verbs */
	unsigned char naddr;
	atomic_schar good;                 /* the address that was reached last, or -1 */
	unsigned char aes;                 /* its CPU has AES-GCM */
	atomic_uchar no_verbs;             /* tried without success */
	unsigned char unix_bytes;          /* 0: no local socket */
	char unix_name[ENDPOINT_UNIX_MAX]; /* abstract, without the leading 0 */
} endpoint;

/* A rank tells this of its machine. `key` is equal on two ranks that can share memory. */
typedef struct endpoint_node {
	char host[ENDPOINT_HOST_MAX];
	char key[128];
	char cpus[96];          /* those this process may run on, as 0-3,8; "" when not known */
	int frames;             /* security.frames: frames_mode */
	int aes;                /* 1: its CPU has AES-GCM */
	char verbs[FABRIC_KEY]; /* the network of its RDMA device; "": none */
} endpoint_node;

void endpoint_this_node(endpoint_node *out);
/* Writes this rank's record to out[capacity], with as many of the *naddr addresses as there is room for; sets *naddr to
 * that. RANGE when the rest does not fit. */
gradcomp_status endpoint_write(const endpoint_node *node, const char *unix_name, size_t unix_bytes, const address *addr,
                               int *naddr, char *out, size_t capacity, gradcomp_error *err);
/* Reads one. The node's key and CPUs are copied to *node. On failure nothing is
 * kept, and *err says what is wrong. Free with endpoint_clear(). */
gradcomp_status endpoint_read(const char *text, endpoint *out, endpoint_node *node, gradcomp_error *err);
void endpoint_clear(endpoint *c);
/* The host that a record names, in out, which is returned; "?" without one. */
const char *endpoint_host(const char *text, char out[ENDPOINT_HOST_MAX]);

/* Numbers nodes by first appearance: node[r] for the n keys; returns how many,
 * or -1 without memory. */
int endpoint_number_nodes(const char *const *keys, int n, int32_t *node);
/* How many different CPUs the lists have together; 0 when one is not known. */
int endpoint_count_cpus(const char *const *lists, int n);

#endif
