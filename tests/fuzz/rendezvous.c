/* Feeds the rendezvous server and its clients: HELLO and entries of the log. The first byte says how: 0 a HELLO, 1
 * entries as they are, 2 entries sealed by somebody with the token (key and value each after a byte with its
 * length), 3 the same with one byte changed. */
#include "tests/fuzz/harness.h"

#include "bootstrap/rendezvous_msg.h"

#include <stdlib.h>
#include <string.h>

static long taken, refused;

static void try_hello(const uint8_t *data, size_t size)
{
	unsigned char in[RENDEZVOUS_HELLO_BYTES] = {0}, again[RENDEZVOUS_HELLO_BYTES];
	rendezvous_hello h;
	memcpy(in, data, size < sizeof in ? size : sizeof in);
	if (rendezvous_hello_read(in, &h)) {
		refused++;
		return;
	}
	if (h.rank >= h.nranks || h.nranks > RENDEZVOUS_RANKS_MAX)
		abort();
	rendezvous_hello_write(&h, again);
	if (memcmp(in, again, sizeof in))
		abort();
	taken++;
}

/* Everything that is found in `in`; `sealed` entries at most may be. */
static void entries(const rendezvous_keys *k, unsigned char *in, size_t have, int sealed)
{
	size_t at = 0, bytes;
	uint32_t rank;
	long n;
	int found = 0;
	while ((n = rendezvous_entry_check(k, in + at, have - at, &rank)) > 0) {
		if ((size_t)n > have - at || (size_t)n < RENDEZVOUS_ENTRY_MIN || (size_t)n > RENDEZVOUS_ENTRY_MAX)
			abort();
		unsigned char *value = rendezvous_entry_open(k, in + at, (size_t)n, &bytes);
		if (value && (bytes > RENDEZVOUS_VALUE_MAX || value + bytes > in + at + n ||
		              strlen((char *)in + at + RENDEZVOUS_HEAD) >= RENDEZVOUS_KEY_MAX))
			abort();
		at += (size_t)n;
		if (++found > sealed)
			abort();
		taken++;
	}
	refused += n < 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	const unsigned char token[SECRET_BYTES] = {9};
	unsigned char *in;
	size_t have = 0, at = 1;
	int sealed = 0, how = size ? data[0] % 4 : 0;
	rendezvous_keys k;
	if (!how) {
		try_hello(data + !!size, size - !!size);
		return 0;
	}
	in = malloc(size + 16 * RENDEZVOUS_ENTRY_MAX);
	if (!in)
		return 0;
	rendezvous_keys_make(&k, token);
	if (how == 1) {
		memcpy(in, data + 1, size - 1);
		have = size - 1;
	}
	for (; how > 1 && at + 2 < size && sealed < 16; sealed++) {
		char key[256];
		size_t key_bytes = data[at] % 80, value_bytes = data[at + 1] * 17u;

		at += 2;
		key_bytes = key_bytes < size - at ? key_bytes : size - at;
		memcpy(key, data + at, key_bytes);
		key[key_bytes] = 0;
		at += key_bytes;
		value_bytes = value_bytes < size - at ? value_bytes : size - at;
		size_t n = rendezvous_entry_seal(&k, data[0], key, data + at, value_bytes, in + have);
		if (!n != (!*key || strlen(key) >= RENDEZVOUS_KEY_MAX || value_bytes > RENDEZVOUS_VALUE_MAX))
			abort();
		at += value_bytes;
		have += n;
	}
	if (how == 3 && have)
		in[(size_t)data[size - 1] * 7 % have] ^= (unsigned char)(1 + data[0] / 4 % 255);
	entries(&k, in, have, sealed);
	free(in);
	return 0;
}

#ifndef LIBFUZZER
int main(void)
{
	return wire_main("rendezvous", 20000, &taken, &refused);
}
#endif
