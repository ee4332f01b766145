/* Business cards: what a rank tells the others about where it can be reached.
 *
 *     gc1 host=NAME node=BOOTID-NETNS-UID cpus=LIST unix=HEX tcp=ADDR,ADDR frames=MODE aes=1 verbs=KEY
 *
 * A card is untrusted text: it says where to knock, never who answers. */
#ifndef CARD_H
#define CARD_H

#include "address.h"
#include "fabric.h"

#include <stdatomic.h>

#define CARD_HOST 65
#define CARD_UNIX 16

typedef struct card {
	char *host;
	address *addr;
	unsigned char naddr;
	atomic_schar good; /* the address that led there last, or -1 */
	unsigned char aes;        /* it encrypts with AES-GCM */
	atomic_uchar no_verbs;    /* it was tried, in vain */
	uint64_t verbs;           /* of two ranks with the same that is not 0 verbs may lead from one to the other */
	unsigned char unix_bytes; /* 0: no local door */
	char unix_name[CARD_UNIX]; /* abstract, without the leading 0 */
} card;

/* This machine and user, as far as shared memory reaches: equal on two ranks
 * that can share memory. */
typedef struct card_node {
	char host[CARD_HOST];
	char key[128];
	char cpus[96]; /* those this process may run on, as 0-3,8; "" when not known */
	int frames;    /* security.frames: frames_mode */
	int aes;       /* as in card */
	char verbs[FABRIC_KEY]; /* what network its RDMA device is on; "": none */
} card_node;

void card_this_node(card_node *out);
/* Writes this rank's card to out[capacity]; RANGE when it does not fit. */
gradcomp_status card_write(const card_node *node, const char *unix_name, size_t unix_bytes, const address *addr,
                           int naddr, char *out, size_t capacity, gradcomp_error *err);
/* Reads one. The node's key and CPUs are copied to *node. On failure nothing is
 * kept; the text says what is wrong. Free with card_clear(). */
gradcomp_status card_read(const char *text, card *out, card_node *node, gradcomp_error *err);
void card_clear(card *c);

/* Numbers nodes by first appearance: node[r] for the n keys; returns how many,
 * or -1 without memory. */
int card_number_nodes(const char *const *keys, int n, int32_t *node);
/* How many different CPUs the lists name together; 0 when one is not known. */
int card_count_cpus(const char *const *lists, int n);

#endif
