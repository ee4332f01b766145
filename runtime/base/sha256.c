#include "base/sha256.h"

#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#include "base/fileio.h"
#include "base/sha256_block.h"

void sha256_init(sha256 *s)
{
	static const uint32_t first[8] = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
	                                  0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
	memcpy(s->state, first, sizeof first);
	s->bytes = 0;
}

void sha256_update(sha256 *s, const void *data, size_t bytes)
{
	const unsigned char *p = data;
	size_t have = s->bytes % SHA256_BLOCK;
	if (!bytes)
		return;
	s->bytes += bytes;
	if (have) {
		size_t take = SHA256_BLOCK - have < bytes ? SHA256_BLOCK - have : bytes;
		memcpy(s->block + have, p, take);
		p += take;
		bytes -= take;
		if (have + take < SHA256_BLOCK)
			return;
		sha256_blocks(s->state, s->block, 1);
	}
	sha256_blocks(s->state, p, bytes / SHA256_BLOCK);
	memcpy(s->block, p + bytes / SHA256_BLOCK * SHA256_BLOCK, bytes % SHA256_BLOCK);
}

void sha256_final(sha256 *s, unsigned char digest[SHA256_BYTES])
{
	static const unsigned char padding[SHA256_BLOCK] = {0x80};
	unsigned char length[8];
	size_t have = s->bytes % SHA256_BLOCK;
	for (int i = 0; i < 8; i++)
		length[i] = (unsigned char)(s->bytes * 8 >> (56 - 8 * i));
	sha256_update(s, padding, (have < 56 ? 56 : 120) - have);
	sha256_update(s, length, sizeof length);
	for (int i = 0; i < SHA256_BYTES; i++)
		digest[i] = (unsigned char)(s->state[i / 4] >> (24 - 8 * (i % 4)));
	explicit_bzero(s, sizeof *s);
}

void sha256_digest(const void *data, size_t bytes, unsigned char digest[SHA256_BYTES])
{
	sha256 s;
	sha256_init(&s);
	sha256_update(&s, data, bytes);
	sha256_final(&s, digest);
}

void sha256_hmac_init(hmac_sha256_ctx *h, const void *key, size_t key_bytes)
{
	unsigned char pad[SHA256_BLOCK] = {0};
	if (key_bytes > sizeof pad)
		sha256_digest(key, key_bytes, pad);
	else if (key_bytes)
		memcpy(pad, key, key_bytes);

	for (size_t i = 0; i < sizeof pad; i++)
		pad[i] ^= 0x36;
	sha256_init(&h->inner);
	sha256_update(&h->inner, pad, sizeof pad);

	for (size_t i = 0; i < sizeof pad; i++)
		pad[i] ^= 0x36 ^ 0x5c;
	sha256_init(&h->outer);
	sha256_update(&h->outer, pad, sizeof pad);
	explicit_bzero(pad, sizeof pad);
}

void sha256_hmac_update(hmac_sha256_ctx *h, const void *data, size_t bytes)
{
	sha256_update(&h->inner, data, bytes);
}

void sha256_hmac_final(hmac_sha256_ctx *h, unsigned char mac[SHA256_BYTES])
{
	unsigned char digest[SHA256_BYTES];
	sha256_final(&h->inner, digest);
	sha256_update(&h->outer, digest, sizeof digest);
	sha256_final(&h->outer, mac);
	explicit_bzero(digest, sizeof digest);
}

void sha256_hmac(const void *key, size_t key_bytes, const void *data, size_t bytes, unsigned char mac[SHA256_BYTES])
{
	hmac_sha256_ctx h;
	sha256_hmac_init(&h, key, key_bytes);
	sha256_hmac_update(&h, data, bytes);
	sha256_hmac_final(&h, mac);
}

void sha256_hex(const unsigned char digest[SHA256_BYTES], char hex[2 * SHA256_BYTES + 1])
{
	static const char digits[] = "0123456789abcdef";
	for (int i = 0; i < SHA256_BYTES; i++) {
		hex[2 * i] = digits[digest[i] >> 4];
		hex[2 * i + 1] = digits[digest[i] & 15];
	}
	hex[2 * SHA256_BYTES] = '\0';
}

int sha256_file(const char *path, unsigned char digest[SHA256_BYTES])
{
	unsigned char buffer[16384];
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	uint64_t at = 0;
	sha256 sum;
	int64_t n;
	if (fd < 0)
		return -1;
	sha256_init(&sum);
	for (; (n = fileio_read(fd, buffer, sizeof buffer, at)) > 0; at += (uint64_t)n)
		sha256_update(&sum, buffer, (size_t)n);
	close(fd);
	sha256_final(&sum, digest);
	return n < 0 ? -1 : 0;
}
