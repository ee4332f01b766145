/* Chunks of a copy between nodes, of a node that has the secret: the head of a message and the pages it says are
 * there. Four bytes are the chunk's length, the next 64 the head; what follows stands for the pages. */
#include "tests/fuzz/harness.h"

#include "io/transfer/chunks.h"
#include "transport/wire/wire.h"

#include <stdlib.h>
#include <string.h>

static long taken, refused;

struct sum {
	const unsigned char *first, *end, *data;
	uint32_t at;
};

static int each(void *ctx, uint32_t at, const unsigned char *data, uint32_t n)
{
	struct sum *s = ctx;
	if (at != s->at || !n)
		abort();
	s->at += n;
	if (!data)
		return 0;
	if (data != s->data || n > (size_t)(s->end - data))
		abort();
	s->data += n;
	return 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	stage_chunk p = {.parts = 1, .large = true, .holes = true};
	unsigned char head[CHUNK_HEAD + SHA256_BYTES] = {0}, *message;
	uint32_t flags;
	uint64_t end;
	int64_t n;
	if (size < 4 + CHUNK_HEAD)
		return 0;
	p.bytes = 1 + get32(data) % STAGE_BLOCK;
	p.number = 1;
	memcpy(head, data + 4, CHUNK_HEAD);
	if (!chunk_head_check(head, &p, &flags, &end) || (n = chunk_packed(head, &p)) < 0) {
		refused++;
		return 0;
	}
	if ((flags & ~CHUNK_STOP) || end <= p.number || n > p.bytes)
		abort();
	/* No longer than what was received. */
	message = malloc(sizeof head + (size_t)n);
	if (!message)
		return 0;
	memcpy(message, head, sizeof head);
	memset(message + sizeof head, 1, (size_t)n);
	struct sum s = {chunk_bytes(message, &p), message + sizeof head + n, chunk_bytes(message, &p), 0};
	if (chunk_runs(message, &p, each, &s) || s.at != p.bytes || s.data != s.end)
		abort();
	free(message);
	taken++;
	return 0;
}

#ifndef LIBFUZZER
int main(void)
{
	return wire_main("chunks", 30000, &taken, &refused);
}
#endif
