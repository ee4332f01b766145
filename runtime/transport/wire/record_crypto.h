/* Records under AEAD: what a connection carries after its handshake when
 * security.frames is mac or encrypt. Layout, keys and limits are in
 * doc/dev/wire-format.md.
 *
 * A record is 4 bytes of length, the content and a tag of 16 bytes. Each
 * connection has a key per direction, from its handshake. Both sides number the records,
 * and the number is not on the wire, so a record that was repeated, left out, moved or
 * changed does not open. */
#ifndef TRANSPORT_WIRE_RECORD_CRYPTO_H
#define TRANSPORT_WIRE_RECORD_CRYPTO_H

#include "transport/wire/handshake.h"
#include "transport/core/transport.h"

#include <stdbool.h>

#define RECORD_HEAD 4
#define RECORD_TAG 16
#define RECORD_OVERHEAD (RECORD_HEAD + RECORD_TAG)
#define RECORD_MAX (64u << 10) /* bytes of a record at most */
#define RECORD_CONTENT_MAX (RECORD_MAX - RECORD_OVERHEAD)
#define RECORDS_PER_KEY (1u << 20) /* then the next key */

/* These are the values in HELLO. */
typedef enum record_cipher { CIPHER_NONE = 0, CIPHER_MAC = 1, CIPHER_CHACHA = 2, CIPHER_AES = 3 } record_cipher;

typedef struct record_crypto record_crypto;

/* A message says this about a record that does not open. */
#define RECORD_TAMPERED "changed, repeated or left out on its way (security.frames)"

/* Returns true when this build has records at all. */
bool record_crypto_available(void);
/* Is called before records are made; any thread, any number of times. */
gradcomp_status record_crypto_start(gradcomp_error *err);
/* Returns true when this CPU has AES-GCM. */
bool record_crypto_has_aes(void);
const char *record_crypto_mode_name(frames_mode mode);
/* Returns the cipher to propose to a peer with or without AES-GCM. */
record_cipher record_crypto_choose(frames_mode mode, int peer_aes);
/* Returns true when the cipher that a peer proposes satisfies this rank's mode, on this CPU. */
bool record_crypto_fits(frames_mode mode, unsigned kind);

/* Makes the keys for both directions of the connection that was made with this HELLO (with both nonces). NULL
 * without memory. */
record_crypto *record_crypto_new(const unsigned char secret[TRANSPORT_SECRET_BYTES], const hello *h, int connecting);
void record_crypto_free(record_crypto *s);

/* rec: RECORD_HEAD bytes of space, n bytes of content (at most RECORD_CONTENT_MAX), RECORD_TAG
 * bytes of space. In place; returns the bytes of the record. */
size_t record_crypto_seal(record_crypto *s, unsigned char *rec, size_t n);
/* The content's length from the first 4 bytes of a record; 0 when it is not valid. */
size_t record_crypto_length(const unsigned char head[RECORD_HEAD]);
/* Checks a whole record with n bytes of content, which go to out[n] (which may be
 * rec + RECORD_HEAD). 0, or -1: it is not the next record, and out[] must not be
 * used. */
int record_crypto_open(record_crypto *s, const unsigned char *rec, size_t n, void *out);
/* The same, but it stays the next record. */
int record_crypto_peek(const record_crypto *s, const unsigned char *rec, size_t n, void *out);

#endif
