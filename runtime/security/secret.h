/* Handles secrets: keys, comparison, random bytes, and memory that neither a core file nor a forked process sees.
 *
 * Keys are derived as HKDF does (RFC 5869, with SHA-256): each purpose has its
 * label, and so a key of its own. Any thread. */
#ifndef SECURITY_SECRET_H
#define SECURITY_SECRET_H

#include "gradcomp/abi.h"

#include <stdbool.h>

#define SECRET_BYTES 32

/* HKDF-Extract: a key out of what is secret but not uniform. */
void secret_extract(const void *salt, size_t salt_bytes, const void *input, size_t bytes,
                    unsigned char key[SECRET_BYTES]);
/* HKDF-Expand to 32 bytes; its info is the label, a 0 byte and `info`. */
void secret_expand(const unsigned char key[SECRET_BYTES], const char *label, const void *info, size_t bytes,
                   unsigned char out[SECRET_BYTES]);

/* Returns true when they are equal; takes the same time wherever they differ. */
bool secret_equal(const void *a, const void *b, size_t bytes);
/* Wipes memory; the compiler does not leave this out. */
void secret_wipe(void *p, size_t bytes);
/* Draws fresh random bytes. */
gradcomp_status secret_random(void *out, size_t bytes, gradcomp_error *err);

/* Allocates whole pages, zeroed: left out of core files, zero in a forked process, not swapped where the limit of
 * locked memory allows. NULL without memory. */
void *secret_alloc(size_t bytes);
void secret_free(void *p, size_t bytes);

#endif
