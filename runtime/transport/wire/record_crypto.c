#include "transport/wire/record_crypto.h"

#include "base/error.h"
#include "security/secret.h"
#include "transport/wire/wire.h"

#include <stdbool.h>
#include <string.h>

const char *record_crypto_mode_name(frames_mode mode)
{
	return settings_table[SET_SECURITY_FRAMES].row.choices[mode];
}

record_cipher record_crypto_choose(frames_mode mode, int peer_aes)
{
	if (mode == FRAMES_ENCRYPT)
		return peer_aes && record_crypto_has_aes() ? CIPHER_AES : CIPHER_CHACHA;
	return mode == FRAMES_MAC ? CIPHER_MAC : CIPHER_NONE;
}

bool record_crypto_fits(frames_mode mode, unsigned kind)
{
	if (mode == FRAMES_ENCRYPT)
		return kind == CIPHER_CHACHA || (kind == CIPHER_AES && record_crypto_has_aes());
	return kind == (mode == FRAMES_MAC ? CIPHER_MAC : CIPHER_NONE);
}

size_t record_crypto_length(const unsigned char head[RECORD_HEAD])
{
	uint32_t n = get32(head);
	return n <= RECORD_CONTENT_MAX ? n : 0;
}

#if HAVE_SODIUM

#include <sodium.h>

#define NONCE 12

typedef struct crypto_direction {
	_Alignas(16) crypto_aead_aes256gcm_state aes;
	unsigned char key[SECRET_BYTES];
	uint64_t count; /* records so far */
} crypto_direction;

struct record_crypto {
	crypto_direction out, in;
	record_cipher kind;
};

bool record_crypto_available(void)
{
	return true;
}

gradcomp_status record_crypto_start(gradcomp_error *err)
{
	if (sodium_init() < 0)
		return error_set(err, GRADCOMP_ERR_STATE, "libsodium cannot be used: sodium_init() failed");
	return GRADCOMP_OK;
}

bool record_crypto_has_aes(void)
{
	return crypto_aead_aes256gcm_is_available();
}

static void record_crypto_key(const record_crypto *s, crypto_direction *w)
{
	if (s->kind == CIPHER_AES)
		crypto_aead_aes256gcm_beforenm(&w->aes, w->key);
}

record_crypto *record_crypto_new(const unsigned char secret[TRANSPORT_SECRET_BYTES], const hello *h, int connecting)
{
	unsigned char key[SECRET_BYTES], transcript[HELLO_BYTES + NONCE_BYTES];
	record_crypto *s = secret_alloc(sizeof *s);
	if (!s)
		return NULL;
	s->kind = h->frames;
	handshake_write(h, transcript);
	memcpy(transcript + HELLO_BYTES, h->answer, NONCE_BYTES);
	secret_expand(secret, "gradcomp 2 frames", NULL, 0, key);
	secret_expand(key, "to accepting", transcript, sizeof transcript, connecting ? s->out.key : s->in.key);
	secret_expand(key, "to connecting", transcript, sizeof transcript, connecting ? s->in.key : s->out.key);
	secret_wipe(key, sizeof key);
	record_crypto_key(s, &s->out);
	record_crypto_key(s, &s->in);
	return s;
}

void record_crypto_free(record_crypto *s)
{
	secret_free(s, sizeof *s);
}

static void record_crypto_nonce(const crypto_direction *w, unsigned char nonce[NONCE])
{
	memset(nonce, 0, 4);
	put64(nonce + 4, w->count);
}

/* Is called after each record; a key is replaced after RECORDS_PER_KEY. */
static void record_crypto_advance(const record_crypto *s, crypto_direction *w)
{
	if (++w->count % RECORDS_PER_KEY)
		return;
	secret_expand(w->key, "gradcomp 2 next", NULL, 0, w->key);
	record_crypto_key(s, w);
}

size_t record_crypto_seal(record_crypto *s, unsigned char *rec, size_t n)
{
	unsigned char nonce[NONCE], *in = rec + RECORD_HEAD, *tag = in + n;
	put32(rec, (uint32_t)n);
	record_crypto_nonce(&s->out, nonce);
	if (s->kind == CIPHER_AES)
		crypto_aead_aes256gcm_encrypt_detached_afternm(in, tag, NULL, in, n, rec, RECORD_HEAD, NULL, nonce,
		                                               &s->out.aes);
	else if (s->kind == CIPHER_CHACHA)
		crypto_aead_chacha20poly1305_ietf_encrypt_detached(in, tag, NULL, in, n, rec, RECORD_HEAD, NULL, nonce,
		                                                   s->out.key);
	else
		crypto_aead_chacha20poly1305_ietf_encrypt_detached(tag, tag, NULL, NULL, 0, rec, RECORD_HEAD + n, NULL,
		                                                   nonce, s->out.key);
	record_crypto_advance(s, &s->out);
	return n + RECORD_OVERHEAD;
}

int record_crypto_peek(const record_crypto *s, const unsigned char *rec, size_t n, void *out)
{
	const unsigned char *in = rec + RECORD_HEAD, *tag = in + n;
	unsigned char nonce[NONCE];
	record_crypto_nonce(&s->in, nonce);
	if (s->kind == CIPHER_AES)
		return crypto_aead_aes256gcm_decrypt_detached_afternm(out, NULL, in, n, tag, rec, RECORD_HEAD, nonce,
		                                                      &s->in.aes);
	if (s->kind == CIPHER_CHACHA)
		return crypto_aead_chacha20poly1305_ietf_decrypt_detached(out, NULL, in, n, tag, rec, RECORD_HEAD,
		                                                          nonce, s->in.key);
	if (crypto_aead_chacha20poly1305_ietf_decrypt_detached(NULL, NULL, tag, 0, tag, rec, RECORD_HEAD + n, nonce,
	                                                       s->in.key))
		return -1;
	if (out != in)
		memcpy(out, in, n);
	return 0;
}

int record_crypto_open(record_crypto *s, const unsigned char *rec, size_t n, void *out)
{
	int rc = record_crypto_peek(s, rec, n, out);
	if (!rc)
		record_crypto_advance(s, &s->in);
	return rc;
}

#else /* transport_listen() refuses every mode but none, so nothing below is reached */

bool record_crypto_available(void)
{
	return false;
}

gradcomp_status record_crypto_start(gradcomp_error *err)
{
	(void)err;
	return GRADCOMP_OK;
}

bool record_crypto_has_aes(void)
{
	return false;
}

record_crypto *record_crypto_new(const unsigned char secret[TRANSPORT_SECRET_BYTES], const hello *h, int connecting)
{
	(void)secret, (void)h, (void)connecting;
	return NULL;
}

void record_crypto_free(record_crypto *s)
{
	(void)s;
}

size_t record_crypto_seal(record_crypto *s, unsigned char *rec, size_t n)
{
	(void)s, (void)rec, (void)n;
	return 0;
}

int record_crypto_peek(const record_crypto *s, const unsigned char *rec, size_t n, void *out)
{
	(void)s, (void)rec, (void)n, (void)out;
	return -1;
}

int record_crypto_open(record_crypto *s, const unsigned char *rec, size_t n, void *out)
{
	return record_crypto_peek(s, rec, n, out);
}

#endif
