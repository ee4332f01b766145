/* Messages of the control tree, of a neighbour that has the secret. The first byte says
 * how: 0 in the clear, 1 in records of somebody without the key, 2 in proper records
 * (each after a byte with its length). */
#include "tests/fuzz/harness.h"

#include "transport/wire/ctrl_msg.h"

#include <stdlib.h>
#include <string.h>

static long taken, refused;

static void check(const ctrl_msg *f, const unsigned char *in, size_t have)
{
	if (f->type < CTRL_HEARTBEAT || f->type > CTRL_TALLY || f->bytes > CTRL_MSG_TEXT ||
	    (const unsigned char *)f->text < in || (const unsigned char *)f->text + f->bytes > in + have)
		abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	const unsigned char secret[TRANSPORT_SECRET_BYTES] = {9};
	hello h = {.from = 1, .nranks = 2, .streams = 1, .frames = CIPHER_CHACHA};
	record_crypto *ours = NULL, *theirs = NULL;
	unsigned char *in = malloc(2 * size + 40 * RECORD_OVERHEAD);
	size_t have = 0, at = 0;
	int how, n;
	ctrl_msg f;
	if (size < 1 || !in) {
		free(in);
		return 0;
	}
	how = record_crypto_available() ? data[0] % 3 : 0;
	data++;
	size--;
	if (how) {
		ours = record_crypto_new(secret, &h, 0);
		theirs = record_crypto_new(secret, &h, 1);
	}
	if (how < 2) {
		memcpy(in, data, size);
		have = size;
	}
	for (int i = 0; how == 2 && i < 20 && size > 1; i++) {
		size_t part = 1 + (size_t)data[0] % 64 * (data[0] & 64 ? 8 : 1);

		part = part < size - 1 ? part : size - 1;
		memcpy(in + have + RECORD_HEAD, data + 1, part);
		have += record_crypto_seal(theirs, in + have, part);
		data += 1 + part;
		size -= 1 + part;
	}
	while ((n = ctrl_msg_read(in + at, have - at, ours, &f)) > 0) {
		if ((size_t)n > have - at)
			abort();
		check(&f, in + at, (size_t)n);
		if (how == 1)
			abort();
		at += (size_t)n;
		taken++;
	}
	refused += n < 0;
	record_crypto_free(ours);
	record_crypto_free(theirs);
	free(in);
	return 0;
}

#ifndef LIBFUZZER
int main(void)
{
	return wire_main("ctrl_msg", 30000, &taken, &refused);
}
#endif
