/* Sealed records: what a connection carries after its hand-shake when
 * security.frames is mac or encrypt. Layout, keys and limits are in
 * doc/wire-format.md.
 *
 * A record is 4 bytes of length, the content and a tag of 16 bytes. Each
 * connection has a key a direction, out of its hand-shake; records are numbered
 * by both sides and not on the wire, so one that was repeated, left out, moved or
 * changed does not open. */
#ifndef TRANSPORT_TCP_RECORD_CRYPTO_H
#define TRANSPORT_TCP_RECORD_CRYPTO_H

#include "transport/control/handshake.h"
#include "transport/core/transport.h"

#define RECORD_HEAD 4
#define RECORD_TAG 16
#define RECORD_OVERHEAD (RECORD_HEAD + RECORD_TAG)
#define RECORD_MAX (64u << 10)              /* bytes of a record at most */
#define RECORD_CONTENT_MAX (RECORD_MAX - RECORD_OVERHEAD)
#define RECORDS_PER_KEY (1u << 20)          /* then the next key */

/* What a greeting names. */
typedef enum record_cipher { CIPHER_NONE = 0, CIPHER_MAC = 1, CIPHER_CHACHA = 2, CIPHER_AES = 3 } record_cipher;

typedef struct record_crypto record_crypto;

/* What is said of a record that does not open. */
#define RECORD_TAMPERED "changed, repeated or left out on its way (security.frames)"

/* Has this build records at all? */
int record_crypto_available(void);
/* Before records are made; any thread, any number of times. */
gradcomp_status record_crypto_start(gradcomp_error *err);
/* Has this CPU AES-GCM? */
int record_crypto_has_aes(void);
const char *record_crypto_mode_name(frames_mode mode);
/* The kind to propose, when the peer has AES-GCM or has not. */
record_cipher record_crypto_choose(frames_mode mode, int peer_aes);
/* Does the kind a peer proposes keep this rank's mode, on this CPU? */
int record_crypto_fits(frames_mode mode, unsigned kind);

/* Both directions of the connection that was made with this greeting (its nonces
 * are filled in). NULL without memory. */
record_crypto *record_crypto_new(const unsigned char secret[TRANSPORT_SECRET_BYTES], const hello *h, int connecting);
void record_crypto_free(record_crypto *s);

/* rec: RECORD_HEAD bytes of room, n bytes of content (at most RECORD_CONTENT_MAX), RECORD_TAG
 * bytes of room. In place; returns the bytes of the record. */
size_t record_crypto_seal(record_crypto *s, unsigned char *rec, size_t n);
/* How long the content of the record is whose first 4 bytes are given; 0 when no
 * record begins so. */
size_t record_crypto_length(const unsigned char head[RECORD_HEAD]);
/* Checks a whole record with n bytes of content, which go to out[n] (it may be where
 * they lie, rec + RECORD_HEAD). 0, or -1: it is not the record that is due, and
 * nothing that depends on out[] may be used. */
int record_crypto_open(record_crypto *s, const unsigned char *rec, size_t n, void *out);
/* The same, but the record stays due. */
int record_crypto_peek(const record_crypto *s, const unsigned char *rec, size_t n, void *out);

#endif
