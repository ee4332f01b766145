/* The server and its clients share this: keys, entries, the token as text. The bytes are described in
 * doc/dev/wire-format.md, "Rendezvous server". */
#ifndef BOOTSTRAP_RENDEZVOUS_MSG_H
#define BOOTSTRAP_RENDEZVOUS_MSG_H

#include "base/error.h"
#include "bootstrap/rendezvous.h"
#include "transport/wire/handshake.h"
#include "security/munge_seal.h"
#include "security/secret.h"
#include "transport/wire/wire.h"

struct config;

#define RENDEZVOUS_RANKS_MAX 65536
#define RENDEZVOUS_HELLO_BYTES 48
#define RENDEZVOUS_KEY_MAX 64 /* with the final 0 */
#define RENDEZVOUS_VALUE_MAX 4096
#define RENDEZVOUS_NONCE 16
#define RENDEZVOUS_HEAD (8 + RENDEZVOUS_NONCE)
#define RENDEZVOUS_ENTRY_MIN (RENDEZVOUS_HEAD + 2 + SECRET_BYTES)
#define RENDEZVOUS_ENTRY_MAX (RENDEZVOUS_HEAD + RENDEZVOUS_KEY_MAX + RENDEZVOUS_VALUE_MAX + SECRET_BYTES)
#define RENDEZVOUS_ENTRIES 10 /* that the log takes from a client: that it joined, that it left, and 8 values */
#define RENDEZVOUS_TOKEN_TEXT (MUNGE_TEXT + 8)

/* Keys that the server and its clients set themselves; a client's value is its host. */
#define RENDEZVOUS_JOINED "come/"
#define RENDEZVOUS_LEFT "gone/"
#define RENDEZVOUS_DIED "died/"

/* Between one client and the server, not in the log. To the server: the addresses at which this
 * client passes the log on; the offset from which it wants the log from the server (8 bytes), and
 * whether it wants it even if there is no more (1 byte). To the client: the addresses of its relay; the
 * log follows from this offset (8 bytes). */
#define RENDEZVOUS_RELAY "relay/"
#define RENDEZVOUS_ASK "ask/"
#define RENDEZVOUS_LOG "log/"

/* Clients to which the server, and each client, sends the log. */
#define RENDEZVOUS_FANOUT 16

/* The client from which `rank` has the log; -1: the server. */
static inline int rendezvous_relay_of(int rank)
{
	return rank / RENDEZVOUS_FANOUT - 1;
}

/* The first of the clients to which `rank` passes the log on; there may be none. */
static inline int64_t rendezvous_first_of(int rank)
{
	return ((int64_t)rank + 1) * RENDEZVOUS_FANOUT;
}

typedef struct rendezvous_keys {
	unsigned char proof[2][SECRET_BYTES]; /* by handshake_role */
	unsigned char tag[SECRET_BYTES], encrypt[SECRET_BYTES];
} rendezvous_keys;

void rendezvous_keys_make(rendezvous_keys *k, const unsigned char token[SECRET_BYTES]);

typedef struct rendezvous_hello {
	uint32_t rank, nranks, port; /* port: that the client has connected to */
	unsigned char nonce[NONCE_BYTES];
} rendezvous_hello;

void rendezvous_hello_write(const rendezvous_hello *h, unsigned char out[RENDEZVOUS_HELLO_BYTES]);
/* NULL, or what is wrong. */
const char *rendezvous_hello_read(const unsigned char in[RENDEZVOUS_HELLO_BYTES], rendezvous_hello *h);
/* Returns true when the client means the port that `fd` was accepted at: it does not mean that of somebody who
 * passes the greeting on, and the proof back. */
bool rendezvous_hello_direct(const rendezvous_hello *h, int fd);
void rendezvous_proof(const rendezvous_keys *k, handshake_role role, const unsigned char hello[RENDEZVOUS_HELLO_BYTES],
                      const unsigned char nonce[NONCE_BYTES], unsigned char mac[SECRET_BYTES]);

/* Writes the token for the environment of a job: sealed where `c` asks for munge, or for auto in a job of Slurm;
 * fails where munged does not serve. A client there takes no other. */
gradcomp_status rendezvous_token_write(const struct config *c, const unsigned char token[SECRET_BYTES],
                                       char text[RENDEZVOUS_TOKEN_TEXT], gradcomp_error *err);
gradcomp_status rendezvous_token_read(const struct config *c, const char *text, double patience,
                                      unsigned char token[SECRET_BYTES], gradcomp_error *err);

/* Seals an entry of `rank`: a key and a value, encrypted. Returns its bytes; 0 when key or value are too long or
 * there are no random bytes. */
size_t rendezvous_entry_seal(const rendezvous_keys *k, uint32_t rank, const char *key, const void *value, size_t bytes,
                             unsigned char out[RENDEZVOUS_ENTRY_MAX]);
/* 0: more bytes are wanted; -1: it is no entry, or not made with the token; else its
 * bytes. */
long rendezvous_entry_check(const rendezvous_keys *k, const unsigned char *in, size_t have, uint32_t *rank);
/* Decrypts an entry that was checked: in[RENDEZVOUS_HEAD] becomes the key, ended by 0.
 * Returns the value, or NULL when there is no key. */
unsigned char *rendezvous_entry_open(const rendezvous_keys *k, unsigned char *in, size_t bytes, size_t *value_bytes);

#endif
