/* SHA-256 (FIPS 180-4) and HMAC-SHA-256 (RFC 2104), for the hand-shake between
 * ranks and the checksums of staged files. Nothing fails and nothing is
 * allocated; a context is the caller's and belongs to one thread at a time.
 * Contexts hold secrets: final() wipes them. */
#ifndef BASE_SHA256_H
#define BASE_SHA256_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define SHA256_BYTES 32
#define SHA256_BLOCK 64

typedef struct sha256 {
	uint32_t state[8];
	uint64_t bytes; /* taken so far */
	unsigned char block[SHA256_BLOCK];
} sha256;

void sha256_init(sha256 *s);
void sha256_update(sha256 *s, const void *data, size_t bytes);
void sha256_final(sha256 *s, unsigned char digest[SHA256_BYTES]);
/* Digests all of it at once. */
void sha256_digest(const void *data, size_t bytes, unsigned char digest[SHA256_BYTES]);

typedef struct hmac_sha256_ctx {
	sha256 inner, outer;
} hmac_sha256_ctx;

void sha256_hmac_init(hmac_sha256_ctx *h, const void *key, size_t key_bytes);
void sha256_hmac_update(hmac_sha256_ctx *h, const void *data, size_t bytes);
void sha256_hmac_final(hmac_sha256_ctx *h, unsigned char mac[SHA256_BYTES]);
void sha256_hmac(const void *key, size_t key_bytes, const void *data, size_t bytes, unsigned char mac[SHA256_BYTES]);

/* Writes it in lower-case hexadecimal, terminated. */
void sha256_hex(const unsigned char digest[SHA256_BYTES], char hex[2 * SHA256_BYTES + 1]);
/* Digests a file's content; 0, or -1 and errno. */
int sha256_file(const char *path, unsigned char digest[SHA256_BYTES]);
/* Reads 64 digits as sha256_hex() writes them; what follows does not matter. */
bool text_unhex_sha256(const char *hex, unsigned char digest[SHA256_BYTES]);

#endif
