/* What handles secrets: message authentication, comparison, random bytes, and
 * memory that neither a core file nor a forked process sees. The primitives are
 * libsodium's where the build has it, else our own; the bytes are the same.
 *
 * Keys are derived as HKDF does (RFC 5869, with SHA-256): each purpose has its
 * label, and so a key of its own. */
#ifndef SECURITY_SECRET_H
#define SECURITY_SECRET_H

#include "gradcomp/abi.h"
#include "base/sha256.h"

#if HAVE_SODIUM
#include <sodium.h>
#endif

#define SECRET_BYTES 32

/* HMAC-SHA-256, in pieces. final() wipes the context. */
typedef struct secret_mac {
#if HAVE_SODIUM
	crypto_auth_hmacsha256_state state;
#else
	hmac_sha256_ctx state;
#endif
} secret_mac;

/* Before anything else here; any thread, any number of times. */
gradcomp_status secret_start(gradcomp_error *err);

void secret_mac_init(secret_mac *m, const void *key, size_t bytes);
void secret_mac_update(secret_mac *m, const void *data, size_t bytes);
void secret_mac_final(secret_mac *m, unsigned char mac[SECRET_BYTES]);

/* HKDF-Extract: a key out of what is secret but not uniform. */
void secret_extract(const void *salt, size_t salt_bytes, const void *input, size_t bytes,
                    unsigned char key[SECRET_BYTES]);
/* HKDF-Expand to 32 bytes; its info is the label, a 0 byte and `info`. */
void secret_expand(const unsigned char key[SECRET_BYTES], const char *label, const void *info, size_t bytes,
                   unsigned char out[SECRET_BYTES]);

/* 1 when equal; takes the same time wherever they differ. */
int secret_equal(const void *a, const void *b, size_t bytes);
/* Not left out by the compiler. */
void secret_wipe(void *p, size_t bytes);
/* Fresh random bytes. */
gradcomp_status secret_random(void *out, size_t bytes, gradcomp_error *err);

/* Whole pages, zeroed: left out of core files, zero in a forked process, not
 * swapped where the limit of locked memory allows. NULL without memory. */
void *secret_alloc(size_t bytes);
void secret_free(void *p, size_t bytes);

#endif
