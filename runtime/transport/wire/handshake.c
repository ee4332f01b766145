#include "transport/wire/handshake.h"

#include "transport/wire/wire.h"
#include "transport/wire/record_crypto.h"

static const unsigned char hello_magic[4] = {'G', 'C', 'H', HELLO_VERSION};
const unsigned char handshake_welcome[WELCOME_BYTES] = {'G', 'C', 'O', 'K'};
const unsigned char handshake_gone[WELCOME_BYTES] = {'G', 'C', 'N', 'O'};

void handshake_write(const hello *h, unsigned char out[HELLO_BYTES])
{
	memcpy(out, hello_magic, 4);
	out[4] = h->frames;
	out[5] = h->kind;
	out[6] = h->stream;
	out[7] = h->streams;
	put32(out + 8, h->from);
	put32(out + 12, h->to);
	put32(out + 16, h->nranks);
	put32(out + 20, h->chunk);
	put64(out + 24, h->channel);
	memcpy(out + 32, h->nonce, NONCE_BYTES);
}

const char *handshake_read(const unsigned char in[HELLO_BYTES], hello *h)
{
	if (memcmp(in, hello_magic, 3))
		return "it does not speak gradcomp";
	if (in[3] != HELLO_VERSION)
		return "it speaks another version of gradcomp's protocol";
	h->frames = in[4];
	h->kind = in[5];
	h->stream = in[6];
	h->streams = in[7];
	h->from = get32(in + 8);
	h->to = get32(in + 12);
	h->nranks = get32(in + 16);
	h->chunk = get32(in + 20);
	h->channel = get64(in + 24);
	memcpy(h->nonce, in + 32, NONCE_BYTES);
	if (h->kind > HELLO_PROBE || h->from >= h->nranks || h->to >= h->nranks || h->from == h->to ||
	    (h->kind != HELLO_PROBE && (h->from < h->to) != (h->kind == HELLO_CALL)) || h->frames > CIPHER_AES ||
	    !h->streams || h->streams > STREAMS_MAX || h->stream >= h->streams)
		return "its HELLO is malformed";
	if (h->kind != HELLO_CONTROL && (h->chunk < CHUNK_MIN || h->chunk > CHUNK_MAX || h->chunk % 64))
		return "its HELLO is malformed";
	if (h->kind == HELLO_VERBS && (h->streams != 1 || h->frames))
		return "its HELLO is malformed";
	if (h->kind == HELLO_SHM && (h->streams != 1 || (h->chunk & (h->chunk - 1))))
		return "its HELLO is malformed";
	return NULL;
}

void handshake_mac(const unsigned char secret[32], handshake_role role, const unsigned char hello[HELLO_BYTES],
                   const unsigned char nonce[NONCE_BYTES], unsigned char mac[SHA256_BYTES])
{
	static const char *const label[] = {"gradcomp 2 accept", "gradcomp 2 connect"};
	unsigned char key[SECRET_BYTES];
	hmac_sha256_ctx m;
	secret_expand(secret, label[role], NULL, 0, key);
	sha256_hmac_init(&m, key, sizeof key);
	sha256_hmac_update(&m, hello, HELLO_BYTES);
	sha256_hmac_update(&m, nonce, NONCE_BYTES);
	sha256_hmac_final(&m, mac);
	secret_wipe(key, sizeof key);
}
