/* Entries of the meeting place's log: sealed by the guest that says them, passed on as
 * they are, opened by the guests. */
#include <string.h>

#include "meet.h"

/* HMAC in counter mode: taken and given back by the same call. */
static void hide(const meet_keys *k, const unsigned char nonce[MEET_NONCE], unsigned char *p, size_t bytes)
{
	unsigned char block[SECRET_BYTES], counter[4];

	for (uint32_t i = 0; bytes; i++) {
		size_t n = bytes < sizeof block ? bytes : sizeof block;
		secret_mac m;

		put32(counter, i);
		secret_mac_init(&m, k->hide, SECRET_BYTES);
		secret_mac_update(&m, nonce, MEET_NONCE);
		secret_mac_update(&m, counter, sizeof counter);
		secret_mac_final(&m, block);
		for (size_t j = 0; j < n; j++)
			p[j] ^= block[j];
		p += n;
		bytes -= n;
	}
	secret_wipe(block, sizeof block);
}

static void tag(const meet_keys *k, const unsigned char *in, size_t bytes, unsigned char out[SECRET_BYTES])
{
	secret_mac m;

	secret_mac_init(&m, k->tag, SECRET_BYTES);
	secret_mac_update(&m, in, bytes);
	secret_mac_final(&m, out);
}

size_t meet_entry_seal(const meet_keys *k, uint32_t rank, const char *key, const void *value, size_t bytes,
                       unsigned char out[MEET_ENTRY_MAX])
{
	size_t key_bytes = strlen(key) + 1, body = key_bytes + bytes;

	if (key_bytes < 2 || key_bytes > MEET_KEY_MAX || bytes > MEET_VALUE_MAX ||
	    secret_random(out + 8, MEET_NONCE, NULL))
		return 0;
	put32(out, (uint32_t)body);
	put32(out + 4, rank);
	memcpy(out + MEET_HEAD, key, key_bytes);
	if (bytes)
		memcpy(out + MEET_HEAD + key_bytes, value, bytes);
	hide(k, out + 8, out + MEET_HEAD, body);
	tag(k, out, MEET_HEAD + body, out + MEET_HEAD + body);
	return MEET_HEAD + body + SECRET_BYTES;
}

long meet_entry_check(const meet_keys *k, const unsigned char *in, size_t have, uint32_t *rank)
{
	unsigned char want[SECRET_BYTES];
	size_t body;

	if (have < 4)
		return 0;
	body = get32(in);
	if (body < 2 || body > MEET_KEY_MAX + MEET_VALUE_MAX)
		return -1;
	if (have < MEET_HEAD + body + SECRET_BYTES)
		return 0;
	tag(k, in, MEET_HEAD + body, want);
	if (!secret_equal(want, in + MEET_HEAD + body, sizeof want))
		return -1;
	*rank = get32(in + 4);
	return (long)(MEET_HEAD + body + SECRET_BYTES);
}

unsigned char *meet_entry_open(const meet_keys *k, unsigned char *in, size_t bytes, size_t *value_bytes)
{
	size_t body = bytes - MEET_HEAD - SECRET_BYTES;
	unsigned char *key = in + MEET_HEAD, *end;

	hide(k, in + 8, key, body);
	end = memchr(key, 0, body < MEET_KEY_MAX ? body : MEET_KEY_MAX);
	if (!end || end == key)
		return NULL;
	*value_bytes = (size_t)(key + body - (end + 1));
	return *value_bytes <= MEET_VALUE_MAX ? end + 1 : NULL;
}
