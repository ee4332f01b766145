#define _GNU_SOURCE
#include "handshake.h"

#include "error.h"
#include "wire.h"

#include <errno.h>
#include <sys/random.h>

static const unsigned char hello_magic[4] = {'G', 'C', 'H', '1'};
const unsigned char handshake_welcome[WELCOME_BYTES] = {'G', 'C', 'O', 'K'};

#define HELLO_VERSION 1
#define LABEL_BYTES 16 /* the shorter one ends in a 0 byte */

void hello_write(const hello *h, unsigned char out[HELLO_BYTES])
{
	memcpy(out, hello_magic, 4);
	out[4] = HELLO_VERSION;
	out[5] = h->kind;
	out[6] = h->stream;
	out[7] = h->streams;
	put32(out + 8, h->from);
	put32(out + 12, h->to);
	put32(out + 16, h->nranks);
	put32(out + 20, h->part);
	put64(out + 24, h->channel);
	memcpy(out + 32, h->nonce, NONCE_BYTES);
}

const char *hello_read(const unsigned char in[HELLO_BYTES], hello *h)
{
	if (memcmp(in, hello_magic, 4))
		return "it does not speak gradcomp";
	if (in[4] != HELLO_VERSION)
		return "it speaks another version of gradcomp's protocol";
	h->kind = in[5];
	h->stream = in[6];
	h->streams = in[7];
	h->from = get32(in + 8);
	h->to = get32(in + 12);
	h->nranks = get32(in + 16);
	h->part = get32(in + 20);
	h->channel = get64(in + 24);
	memcpy(h->nonce, in + 32, NONCE_BYTES);
	if (h->kind > HELLO_SHM || h->from >= h->nranks || h->to >= h->nranks || h->from <= h->to ||
	    !h->streams || h->streams > STREAMS_MAX || h->stream >= h->streams)
		return "its greeting is malformed";
	if (h->kind != HELLO_CONTROL && (h->part < PART_MIN || h->part > PART_MAX || h->part % 64))
		return "its greeting is malformed";
	if (h->kind == HELLO_SHM && (h->streams != 1 || (h->part & (h->part - 1))))
		return "its greeting is malformed";
	return NULL;
}

void handshake_mac(const unsigned char secret[32], handshake_role role, const unsigned char hello[HELLO_BYTES],
                   const unsigned char nonce[NONCE_BYTES], unsigned char mac[SHA256_BYTES])
{
	static const char label[2][LABEL_BYTES + 1] = {"gradcomp accept", "gradcomp connect"};
	hmac_sha256_ctx h;

	hmac_sha256_init(&h, secret, 32);
	hmac_sha256_update(&h, label[role], LABEL_BYTES);
	hmac_sha256_update(&h, hello, HELLO_BYTES);
	hmac_sha256_update(&h, nonce, NONCE_BYTES);
	hmac_sha256_final(&h, mac);
}

gradcomp_status handshake_random(void *out, size_t bytes, gradcomp_error *err)
{
	unsigned char *p = out;

	while (bytes) {
		ssize_t n = getrandom(p, bytes, 0);

		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0)
			return error_errno(err, GRADCOMP_ERR_IO, "the kernel gives no random bytes");
		p += n;
		bytes -= (size_t)n;
	}
	return GRADCOMP_OK;
}
