/* The mutual proof of the job's secret that begins every connection. Sizes and
 * fields are in doc/dev/wire-format.md. Both sides authenticate the whole HELLO and
 * both nonces with a key of their role, so a proof is valid for one connection and one
 * direction only. The secret belongs to one job and step. */
#ifndef TRANSPORT_WIRE_HANDSHAKE_H
#define TRANSPORT_WIRE_HANDSHAKE_H

#include "gradcomp/abi.h"
#include "base/sha256.h"
#include "security/secret.h"

#define HELLO_BYTES 64
#define CHALLENGE_BYTES 64
#define PROOF_BYTES 32
#define WELCOME_BYTES 4
#define NONCE_BYTES 32
#define STREAMS_MAX 16
#define CHUNK_MIN 4096u
#define CHUNK_MAX (64u << 20)

/* The fourth byte of every HELLO. */
#define HELLO_VERSION '2'

/* CALL: the higher rank is to connect on this channel. PROBE: what comes is thrown away, it measures the network. Only
 * these two go to a higher rank. */
typedef enum hello_kind {
	HELLO_CONTROL = 0,
	HELLO_TCP = 1,
	HELLO_SHM = 2,
	HELLO_VERBS = 3,
	HELLO_CALL = 4,
	HELLO_PROBE = 5
} hello_kind;

typedef struct hello {
	uint64_t channel;
	uint32_t from, to, nranks;
	uint32_t chunk; /* bytes: a chunk of a striped message, or one ring of shared memory */
	uint8_t kind, stream, streams;
	uint8_t frames; /* record_cipher of what follows */
	unsigned char nonce[NONCE_BYTES];
	unsigned char answer[NONCE_BYTES]; /* the accepting side's nonce; not in a HELLO */
} hello;

typedef enum handshake_role { ROLE_ACCEPT = 0, ROLE_CONNECT = 1 } handshake_role;

extern const unsigned char handshake_welcome[WELCOME_BYTES];
/* In place of it: this side has closed the channel for good. */
extern const unsigned char handshake_gone[WELCOME_BYTES];

void handshake_write(const hello *h, unsigned char out[HELLO_BYTES]);
/* Checks form and limits, not the sender. NULL, or what is wrong. */
const char *handshake_read(const unsigned char in[HELLO_BYTES], hello *h);
/* Computes what `role` must present for this HELLO and the accepting side's nonce. */
void handshake_mac(const unsigned char secret[32], handshake_role role, const unsigned char hello[HELLO_BYTES],
                   const unsigned char nonce[NONCE_BYTES], unsigned char mac[SHA256_BYTES]);

#endif
