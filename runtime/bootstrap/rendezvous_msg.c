/* Authentication of clients: keys from the token, the greeting, the token as text; and the
 * entries of the log. */
#include "bootstrap/rendezvous_msg.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "config/config.h"
#include "transport/wire/address.h"

/* s; the SPANK plugin waits 20 s for the server, and a call to munged may take 10 of them. */
#define TOKEN_PATIENCE 8.0

static const unsigned char magic[4] = {'G', 'C', 'M', '3'};

void rendezvous_keys_make(rendezvous_keys *k, const unsigned char token[SECRET_BYTES])
{
	secret_expand(token, "gradcomp meet 1 accept", NULL, 0, k->proof[ROLE_ACCEPT]);
	secret_expand(token, "gradcomp meet 1 connect", NULL, 0, k->proof[ROLE_CONNECT]);
	secret_expand(token, "gradcomp meet 1 tag", NULL, 0, k->tag);
	secret_expand(token, "gradcomp meet 1 hide", NULL, 0, k->encrypt);
}

void rendezvous_hello_write(const rendezvous_hello *h, unsigned char out[RENDEZVOUS_HELLO_BYTES])
{
	memcpy(out, magic, 4);
	put32(out + 4, h->rank);
	put32(out + 8, h->nranks);
	put32(out + 12, h->port);
	memcpy(out + 16, h->nonce, NONCE_BYTES);
}

const char *rendezvous_hello_read(const unsigned char in[RENDEZVOUS_HELLO_BYTES], rendezvous_hello *h)
{
	if (memcmp(in, magic, sizeof magic))
		return "it does not speak this version of gradcomp's rendezvous protocol";
	h->rank = get32(in + 4);
	h->nranks = get32(in + 8);
	h->port = get32(in + 12);
	if (!h->nranks || h->nranks > RENDEZVOUS_RANKS_MAX || h->rank >= h->nranks || !h->port || h->port > UINT16_MAX)
		return "its greeting is malformed";
	memcpy(h->nonce, in + 16, NONCE_BYTES);
	return NULL;
}

bool rendezvous_hello_direct(const rendezvous_hello *h, int fd)
{
	return h->port == address_local_port(fd);
}

void rendezvous_proof(const rendezvous_keys *k, handshake_role role, const unsigned char hello[RENDEZVOUS_HELLO_BYTES],
                      const unsigned char nonce[NONCE_BYTES], unsigned char mac[SECRET_BYTES])
{
	hmac_sha256_ctx m;
	sha256_hmac_init(&m, k->proof[role], SECRET_BYTES);
	sha256_hmac_update(&m, hello, RENDEZVOUS_HELLO_BYTES);
	sha256_hmac_update(&m, nonce, NONCE_BYTES);
	sha256_hmac_final(&m, mac);
}

/* A credential is good for the stagers of one job. */
static munge_request sealed_token(const char *socket, double patience, char purpose[MUNGE_PURPOSE])
{
	const char *job = getenv("SLURM_JOB_ID");
	snprintf(purpose, MUNGE_PURPOSE, "rendezvous token of job %.64s", job ? job : "-");
	return (munge_request){.socket = socket, .purpose = purpose, .patience = patience};
}

/* Returns true when the token has to be sealed: by the setting, or with auto in a job of Slurm. */
static bool must_seal(const char *way)
{
	return !strncmp(way, "munge", 5) || (!strncmp(way, "auto", 4) && munge_built() && getenv("SLURM_JOB_ID"));
}

gradcomp_status rendezvous_token_write(const struct config *c, const unsigned char token[SECRET_BYTES],
                                       char text[RENDEZVOUS_TOKEN_TEXT], gradcomp_error *err)
{
	const char *way = config_str(c, SET_SECURITY_SECRET);
	char purpose[MUNGE_PURPOSE];
	if (must_seal(way)) {
		munge_request q = sealed_token(munge_socket(way), TOKEN_PATIENCE, purpose);

		memcpy(text, "munge=", 6);
		return munge_seal(&q, token, text + 6, err);
	}
	memcpy(text, "plain=", 6);
	sha256_hex(token, text + 6);
	return GRADCOMP_OK;
}

gradcomp_status rendezvous_token_read(const struct config *c, const char *text, double patience,
                                      unsigned char token[SECRET_BYTES], gradcomp_error *err)
{
	const char *way = config_str(c, SET_SECURITY_SECRET), *socket = munge_socket(way);
	char purpose[MUNGE_PURPOSE];
	if (!strncmp(text, "munge=", 6)) {
		munge_request q = sealed_token(socket ? socket : "", patience, purpose);

		return munge_open(&q, text + 6, token, err);
	}
	if (must_seal(way))
		return error_set(
			err, GRADCOMP_ERR_AUTH,
			"the token of the rendezvous server is not sealed by munge, which security.secret=%.100s asks for "
			"here: it must be the same on the node of srun",
			way);
	if (strncmp(text, "plain=", 6) || strlen(text) != 6 + 2 * SECRET_BYTES || !text_unhex_sha256(text + 6, token))
		return error_set(err, GRADCOMP_ERR_INVALID, "the token of the rendezvous server is malformed");
	return GRADCOMP_OK;
}

/* XOR with HMAC in counter mode: encrypts and decrypts. */
static void xor_keystream(const rendezvous_keys *k, const unsigned char nonce[RENDEZVOUS_NONCE], unsigned char *p,
                          size_t bytes)
{
	unsigned char block[SECRET_BYTES], counter[4];
	for (uint32_t i = 0; bytes; i++) {
		size_t n = bytes < sizeof block ? bytes : sizeof block;
		hmac_sha256_ctx m;

		put32(counter, i);
		sha256_hmac_init(&m, k->encrypt, SECRET_BYTES);
		sha256_hmac_update(&m, nonce, RENDEZVOUS_NONCE);
		sha256_hmac_update(&m, counter, sizeof counter);
		sha256_hmac_final(&m, block);
		for (size_t j = 0; j < n; j++)
			p[j] ^= block[j];
		p += n;
		bytes -= n;
	}
	secret_wipe(block, sizeof block);
}

static void tag(const rendezvous_keys *k, const unsigned char *in, size_t bytes, unsigned char out[SECRET_BYTES])
{
	hmac_sha256_ctx m;
	sha256_hmac_init(&m, k->tag, SECRET_BYTES);
	sha256_hmac_update(&m, in, bytes);
	sha256_hmac_final(&m, out);
}

size_t rendezvous_entry_seal(const rendezvous_keys *k, uint32_t rank, const char *key, const void *value, size_t bytes,
                             unsigned char out[RENDEZVOUS_ENTRY_MAX])
{
	size_t key_bytes = strlen(key) + 1, body = key_bytes + bytes;
	if (key_bytes < 2 || key_bytes > RENDEZVOUS_KEY_MAX || bytes > RENDEZVOUS_VALUE_MAX ||
	    secret_random(out + 8, RENDEZVOUS_NONCE, NULL))
		return 0;
	put32(out, (uint32_t)body);
	put32(out + 4, rank);
	memcpy(out + RENDEZVOUS_HEAD, key, key_bytes);
	if (bytes)
		memcpy(out + RENDEZVOUS_HEAD + key_bytes, value, bytes);
	xor_keystream(k, out + 8, out + RENDEZVOUS_HEAD, body);
	tag(k, out, RENDEZVOUS_HEAD + body, out + RENDEZVOUS_HEAD + body);
	return RENDEZVOUS_HEAD + body + SECRET_BYTES;
}

long rendezvous_entry_check(const rendezvous_keys *k, const unsigned char *in, size_t have, uint32_t *rank)
{
	unsigned char want[SECRET_BYTES];
	size_t body;
	if (have < 4)
		return 0;
	body = get32(in);
	if (body < 2 || body > RENDEZVOUS_KEY_MAX + RENDEZVOUS_VALUE_MAX)
		return -1;
	if (have < RENDEZVOUS_HEAD + body + SECRET_BYTES)
		return 0;
	tag(k, in, RENDEZVOUS_HEAD + body, want);
	if (!secret_equal(want, in + RENDEZVOUS_HEAD + body, sizeof want))
		return -1;
	*rank = get32(in + 4);
	return (long)(RENDEZVOUS_HEAD + body + SECRET_BYTES);
}

unsigned char *rendezvous_entry_open(const rendezvous_keys *k, unsigned char *in, size_t bytes, size_t *value_bytes)
{
	size_t body = bytes - RENDEZVOUS_HEAD - SECRET_BYTES;
	unsigned char *key = in + RENDEZVOUS_HEAD, *end;
	xor_keystream(k, in + 8, key, body);
	end = memchr(key, 0, body < RENDEZVOUS_KEY_MAX ? body : RENDEZVOUS_KEY_MAX);
	if (!end || end == key)
		return NULL;
	*value_bytes = (size_t)(key + body - (end + 1));
	return *value_bytes <= RENDEZVOUS_VALUE_MAX ? end + 1 : NULL;
}
