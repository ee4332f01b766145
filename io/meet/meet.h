/* What the place and its guests share: keys, entries, the token as text. The bytes
 * are described in doc/wire-format.md, "Meeting place". */
#ifndef MEET_H
#define MEET_H

#include "error.h"
#include "gradcomp/meet.h"
#include "handshake.h"
#include "munge_seal.h"
#include "secret.h"
#include "wire.h"

struct config;

#define MEET_RANKS_MAX 65536
#define MEET_HELLO_BYTES 48
#define MEET_KEY_MAX 64 /* with the final 0 */
#define MEET_VALUE_MAX 4096
#define MEET_NONCE 16
#define MEET_HEAD (8 + MEET_NONCE)
#define MEET_ENTRY_MIN (MEET_HEAD + 2 + SECRET_BYTES)
#define MEET_ENTRY_MAX (MEET_HEAD + MEET_KEY_MAX + MEET_VALUE_MAX + SECRET_BYTES)
#define MEET_ENTRIES 10 /* that the log takes from a guest: come, gone and 8 values */
#define MEET_TOKEN_TEXT (MUNGE_TEXT + 8)

/* Keys that the place and its guests set themselves; a guest's value is its host. */
#define MEET_COME "come/"
#define MEET_GONE "gone/"
#define MEET_DIED "died/"

/* ---- keys and greeting (greeting.c) ------------------------------------------ */

typedef struct meet_keys {
	unsigned char proof[2][SECRET_BYTES]; /* by handshake_role */
	unsigned char tag[SECRET_BYTES], hide[SECRET_BYTES];
} meet_keys;

void meet_keys_make(meet_keys *k, const unsigned char token[SECRET_BYTES]);

typedef struct meet_hello {
	uint32_t rank, nranks;
	unsigned char nonce[NONCE_BYTES];
} meet_hello;

void meet_hello_write(const meet_hello *h, unsigned char out[MEET_HELLO_BYTES]);
/* NULL, or what is wrong. */
const char *meet_hello_read(const unsigned char in[MEET_HELLO_BYTES], meet_hello *h);
void meet_proof(const meet_keys *k, handshake_role role, const unsigned char hello[MEET_HELLO_BYTES],
                const unsigned char nonce[NONCE_BYTES], unsigned char mac[SECRET_BYTES]);

/* The token for the environment of a job, sealed where `c` and this machine allow. */
gradcomp_status meet_token_write(const struct config *c, const unsigned char token[SECRET_BYTES],
                                 char text[MEET_TOKEN_TEXT], gradcomp_error *err);
gradcomp_status meet_token_read(const struct config *c, const char *text, unsigned char token[SECRET_BYTES],
                                gradcomp_error *err);

/* ---- entries of the log (entry.c) --------------------------------------------- */

/* What `rank` says: a key and a value, sealed once and opened by the guests. Returns
 * its bytes; 0 when key or value are too long or there are no random bytes. */
size_t meet_entry_seal(const meet_keys *k, uint32_t rank, const char *key, const void *value, size_t bytes,
                       unsigned char out[MEET_ENTRY_MAX]);
/* 0: more bytes are wanted; -1: it is none, or not of somebody with the token; else
 * the bytes it has. */
long meet_entry_check(const meet_keys *k, const unsigned char *in, size_t have, uint32_t *rank);
/* Of one that was checked: in[MEET_HEAD] becomes the key, ended by 0; the value's
 * place, or NULL when there is no key. */
unsigned char *meet_entry_open(const meet_keys *k, unsigned char *in, size_t bytes, size_t *value_bytes);

#endif
