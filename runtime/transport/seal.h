/* Sealed records: what a connection carries after its hand-shake when
 * security.frames is mac or encrypt. Layout, keys and limits are in
 * doc/wire-format.md.
 *
 * A record is 4 bytes of length, the content and a tag of 16 bytes. Each
 * connection has a key a direction, out of its hand-shake; records are numbered
 * by both sides and not on the wire, so one that was repeated, left out, moved or
 * changed does not open. */
#ifndef SEAL_H
#define SEAL_H

#include "handshake.h"
#include "transport.h"

#define SEAL_HEAD 4
#define SEAL_TAG 16
#define SEAL_EXTRA (SEAL_HEAD + SEAL_TAG)
#define SEAL_RECORD (64u << 10)              /* bytes of a record at most */
#define SEAL_CONTENT (SEAL_RECORD - SEAL_EXTRA)
#define SEAL_KEY_RECORDS (1u << 20)          /* then the next key */

/* What a greeting names. */
typedef enum seal_kind { SEAL_NONE = 0, SEAL_MAC = 1, SEAL_CHACHA = 2, SEAL_AES = 3 } seal_kind;

typedef struct seals seals;

/* What is said of a record that does not open. */
#define SEAL_BROKEN "changed, repeated or left out on its way (security.frames)"

/* Has this build records at all? */
int seal_available(void);
/* Has this CPU AES-GCM? */
int seal_fast_aes(void);
const char *seal_mode_name(frames_mode mode);
/* The kind to propose, when the peer has AES-GCM or has not. */
seal_kind seal_choose(frames_mode mode, int peer_aes);
/* Does the kind a peer proposes keep this rank's mode, on this CPU? */
int seal_fits(frames_mode mode, unsigned kind);

/* Both directions of the connection that was made with this greeting (its nonces
 * are filled in). NULL without memory. */
seals *seal_new(const unsigned char secret[TRANSPORT_SECRET_BYTES], const hello *h, int connecting);
void seal_free(seals *s);

/* rec: SEAL_HEAD bytes of room, n bytes of content (at most SEAL_CONTENT), SEAL_TAG
 * bytes of room. In place; returns the bytes of the record. */
size_t seal_record(seals *s, unsigned char *rec, size_t n);
/* How long the content of the record is whose first 4 bytes are given; 0 when no
 * record begins so. */
size_t seal_length(const unsigned char head[SEAL_HEAD]);
/* Checks a whole record with n bytes of content, which go to out[n] (it may be where
 * they lie, rec + SEAL_HEAD). 0, or -1: it is not the record that is due, and
 * nothing that depends on out[] may be used. */
int seal_open(seals *s, const unsigned char *rec, size_t n, void *out);
/* The same, but the record stays due. */
int seal_peek(const seals *s, const unsigned char *rec, size_t n, void *out);

#endif
