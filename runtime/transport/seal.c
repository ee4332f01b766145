#include "seal.h"

#include "secret.h"
#include "wire.h"

#include <string.h>

/* In the order of frames_mode. */
static const char *const mode_names[] = {"none", "mac", "encrypt"};

const char *seal_mode_name(frames_mode mode)
{
	return mode_names[mode];
}

seal_kind seal_choose(frames_mode mode, int peer_aes)
{
	if (mode == FRAMES_ENCRYPT)
		return peer_aes && seal_fast_aes() ? SEAL_AES : SEAL_CHACHA;
	return mode == FRAMES_MAC ? SEAL_MAC : SEAL_NONE;
}

int seal_fits(frames_mode mode, unsigned kind)
{
	if (mode == FRAMES_ENCRYPT)
		return kind == SEAL_CHACHA || (kind == SEAL_AES && seal_fast_aes());
	return kind == (mode == FRAMES_MAC ? SEAL_MAC : SEAL_NONE);
}

size_t seal_length(const unsigned char head[SEAL_HEAD])
{
	uint32_t n = get32(head);

	return n <= SEAL_CONTENT ? n : 0;
}

#if HAVE_SODIUM

#define NONCE 12

typedef struct seal_way {
	_Alignas(16) crypto_aead_aes256gcm_state aes;
	unsigned char key[SECRET_BYTES];
	uint64_t count; /* records so far */
} seal_way;

struct seals {
	seal_way out, in;
	seal_kind kind;
};

int seal_available(void)
{
	return 1;
}

int seal_fast_aes(void)
{
	return crypto_aead_aes256gcm_is_available();
}

static void seal_key(const seals *s, seal_way *w)
{
	if (s->kind == SEAL_AES)
		crypto_aead_aes256gcm_beforenm(&w->aes, w->key);
}

seals *seal_new(const unsigned char secret[TRANSPORT_SECRET_BYTES], const hello *h, int connecting)
{
	unsigned char key[SECRET_BYTES], transcript[HELLO_BYTES + NONCE_BYTES];
	seals *s = secret_alloc(sizeof *s);

	if (!s)
		return NULL;
	s->kind = h->frames;
	hello_write(h, transcript);
	memcpy(transcript + HELLO_BYTES, h->answer, NONCE_BYTES);
	secret_expand(secret, "gradcomp 2 frames", NULL, 0, key);
	secret_expand(key, "to accepting", transcript, sizeof transcript, connecting ? s->out.key : s->in.key);
	secret_expand(key, "to connecting", transcript, sizeof transcript, connecting ? s->in.key : s->out.key);
	secret_wipe(key, sizeof key);
	seal_key(s, &s->out);
	seal_key(s, &s->in);
	return s;
}

void seal_free(seals *s)
{
	secret_free(s, sizeof *s);
}

static void seal_nonce(const seal_way *w, unsigned char nonce[NONCE])
{
	memset(nonce, 0, 4);
	put64(nonce + 4, w->count);
}

/* The record is done with; no key serves too many. */
static void seal_advance(const seals *s, seal_way *w)
{
	if (++w->count % SEAL_KEY_RECORDS)
		return;
	secret_expand(w->key, "gradcomp 2 next", NULL, 0, w->key);
	seal_key(s, w);
}

size_t seal_record(seals *s, unsigned char *rec, size_t n)
{
	unsigned char nonce[NONCE], *in = rec + SEAL_HEAD, *tag = in + n;

	put32(rec, (uint32_t)n);
	seal_nonce(&s->out, nonce);
	if (s->kind == SEAL_AES)
		crypto_aead_aes256gcm_encrypt_detached_afternm(in, tag, NULL, in, n, rec, SEAL_HEAD, NULL, nonce,
		                                               &s->out.aes);
	else if (s->kind == SEAL_CHACHA)
		crypto_aead_chacha20poly1305_ietf_encrypt_detached(in, tag, NULL, in, n, rec, SEAL_HEAD, NULL, nonce,
		                                                   s->out.key);
	else
		crypto_aead_chacha20poly1305_ietf_encrypt_detached(tag, tag, NULL, NULL, 0, rec, SEAL_HEAD + n, NULL,
		                                                   nonce, s->out.key);
	seal_advance(s, &s->out);
	return n + SEAL_EXTRA;
}

int seal_peek(const seals *s, const unsigned char *rec, size_t n, void *out)
{
	const unsigned char *in = rec + SEAL_HEAD, *tag = in + n;
	unsigned char nonce[NONCE];

	seal_nonce(&s->in, nonce);
	if (s->kind == SEAL_AES)
		return crypto_aead_aes256gcm_decrypt_detached_afternm(out, NULL, in, n, tag, rec, SEAL_HEAD, nonce,
		                                                      &s->in.aes);
	if (s->kind == SEAL_CHACHA)
		return crypto_aead_chacha20poly1305_ietf_decrypt_detached(out, NULL, in, n, tag, rec, SEAL_HEAD, nonce,
		                                                          s->in.key);
	if (crypto_aead_chacha20poly1305_ietf_decrypt_detached(NULL, NULL, tag, 0, tag, rec, SEAL_HEAD + n, nonce,
	                                                       s->in.key))
		return -1;
	if (out != in)
		memcpy(out, in, n);
	return 0;
}

int seal_open(seals *s, const unsigned char *rec, size_t n, void *out)
{
	int rc = seal_peek(s, rec, n, out);

	if (!rc)
		seal_advance(s, &s->in);
	return rc;
}

#else /* transport_listen() refuses every mode but none, so nothing below is reached */

int seal_available(void)
{
	return 0;
}

int seal_fast_aes(void)
{
	return 0;
}

seals *seal_new(const unsigned char secret[TRANSPORT_SECRET_BYTES], const hello *h, int connecting)
{
	(void)secret, (void)h, (void)connecting;
	return NULL;
}

void seal_free(seals *s)
{
	(void)s;
}

size_t seal_record(seals *s, unsigned char *rec, size_t n)
{
	(void)s, (void)rec, (void)n;
	return 0;
}

int seal_peek(const seals *s, const unsigned char *rec, size_t n, void *out)
{
	(void)s, (void)rec, (void)n, (void)out;
	return -1;
}

int seal_open(seals *s, const unsigned char *rec, size_t n, void *out)
{
	return seal_peek(s, rec, n, out);
}

#endif
