/* Business cards: what a rank tells the others about where it can be reached.
 *
 *     gc1 host=NAME node=BOOTID-NETNS-UID cpus=LIST unix=HEX tcp=ADDR,ADDR frames=MODE aes=1 verbs=KEY
 *
 * A card is untrusted text: it says where to knock, never who answers. */
#ifndef TRANSPORT_CORE_ENDPOINT_H
#define TRANSPORT_CORE_ENDPOINT_H

#include "transport/core/address.h"
#include "transport/verbs/fabric.h"

#include <stdatomic.h>

#define ENDPOINT_HOST_MAX 65
#define ENDPOINT_UNIX_MAX 16

typedef struct endpoint {
	char *host;
	address *addr;
	unsigned char naddr;
	atomic_schar good; /* the address that led there last, or -1 */
	unsigned char aes;        /* it encrypts with AES-GCM */
	atomic_uchar no_verbs;    /* it was tried, in vain */
	uint64_t verbs;           /* of two ranks with the same that is not 0 verbs may lead from one to the other */
	unsigned char unix_bytes; /* 0: no local door */
	char unix_name[ENDPOINT_UNIX_MAX]; /* abstract, without the leading 0 */
} endpoint;

/* This machine and user, as far as shared memory reaches: equal on two ranks
 * that can share memory. */
typedef struct endpoint_node {
	char host[ENDPOINT_HOST_MAX];
	char key[128];
	char cpus[96]; /* those this process may run on, as 0-3,8; "" when not known */
	int frames;    /* security.frames: frames_mode */
	int aes;       /* as in card */
	char verbs[FABRIC_KEY]; /* what network its RDMA device is on; "": none */
} endpoint_node;

void endpoint_this_node(endpoint_node *out);
/* Writes this rank's card to out[capacity]; RANGE when it does not fit. */
gradcomp_status endpoint_write(const endpoint_node *node, const char *unix_name, size_t unix_bytes, const address *addr,
                           int naddr, char *out, size_t capacity, gradcomp_error *err);
/* Reads one. The node's key and CPUs are copied to *node. On failure nothing is
 * kept; the text says what is wrong. Free with endpoint_clear(). */
gradcomp_status endpoint_read(const char *text, endpoint *out, endpoint_node *node, gradcomp_error *err);
void endpoint_clear(endpoint *c);

/* Numbers nodes by first appearance: node[r] for the n keys; returns how many,
 * or -1 without memory. */
int endpoint_number_nodes(const char *const *keys, int n, int32_t *node);
/* How many different CPUs the lists name together; 0 when one is not known. */
int endpoint_count_cpus(const char *const *lists, int n);

#endif
