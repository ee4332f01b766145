/* Checksums of files whose blocks come in any order; datasets cut into pieces; pieces with
 * holes. */
#include <stdlib.h>
#include <string.h>

#include "io/transfer/chunks.h"
#include "tests/support/tap.h"

#define MIB ((uint64_t)STAGE_BLOCK)

static void shuffled(uint64_t size, unsigned seed)
{
	unsigned char sum[1000][SHA256_BYTES], want[SHA256_BYTES], got[SHA256_BYTES];
	uint64_t n = block_digest_blocks(size), order[1000];
	stage_digest d;
	sha256 all;
	int early = 0;
	srand(seed);
	sha256_init(&all);
	for (uint64_t i = 0; i < n; i++) {
		for (size_t k = 0; k < SHA256_BYTES; k++)
			sum[i][k] = (unsigned char)rand();
		sha256_update(&all, sum[i], SHA256_BYTES);
		uint64_t at = (uint64_t)rand() % (i + 1);
		order[i] = order[at];
		order[at] = i;
	}
	sha256_final(&all, want);
	if (n == 1)
		memcpy(want, sum[0], sizeof want);
	block_digest_begin(&d, size);
	for (uint64_t i = 0; i < n; i++) {
		early |= block_digest_complete(&d);
		if (block_digest_block(&d, order[i], sum[order[i]]) < 0)
			early = 1;
	}
	int complete = block_digest_complete(&d);
	block_digest_end(&d, got);
	ok(!early && complete && !memcmp(got, want, sizeof got), "%llu bytes: %llu blocks in any order",
	   (unsigned long long)size, (unsigned long long)n);
}

/* Returns 1 when the pieces of files of these sizes are all of them, once, and none too large. */
static int cut_well(const uint64_t *sizes, size_t n, const unsigned char *needed, uint64_t *chunks)
{
	stage_manifest m = {.n = n, .entries = calloc(n + 1, sizeof *m.entries)};
	uint64_t *seen = calloc(n + 1, sizeof *seen);
	unsigned char *files = calloc(n + 1, 1);
	stage_chunk p;
	int well = 1;
	for (size_t i = 0; i < n; i++)
		m.entries[i] = (stage_entry){
			.type = i % 7 == 3 ? STAGE_DIR : STAGE_FILE, .size = sizes[i], .stored = sizes[i]};
	chunk_cursor c = {.m = &m, .needed = needed};
	for (*chunks = 0; chunk_next(&c, &p); ++*chunks) {
		uint64_t bytes = 0;
		size_t i = p.first;
		well &= p.number == *chunks && p.parts && p.parts <= CHUNK_FILES && p.bytes <= MIB;
		for (uint32_t k = 0; k < p.parts; k++) {
			well &= i < n && (p.large ? p.at == seen[i] : !files[i]);
			uint64_t here = p.large ? p.bytes : m.entries[i].size;
			seen[i] += here;
			files[i] = 1;
			bytes += here;
			i = chunk_file(&m, needed, i + 1);
		}
		well &= bytes == p.bytes;
	}
	for (size_t i = 0; i < n; i++) {
		int wanted = m.entries[i].type == STAGE_FILE && entry_bit(needed, i);
		well &= files[i] == wanted && seen[i] == (wanted ? sizes[i] : 0);
	}
	free(m.entries);
	free(seen);
	free(files);
	return well;
}

static void cutting(void)
{
	uint64_t sizes[3000], chunks;
	int well;
	unsigned char needed[400];
	static const uint64_t edges[] = {0, 1, MIB - 1, MIB, MIB + 1, 2 * MIB, 0, 0, 3 * MIB + 5, 7, MIB, 0};
	memset(needed, 0xff, sizeof needed);
	well = cut_well(edges, 12, needed, &chunks);
	ok(well && chunks == 11, "sizes around a block's: %llu pieces", (unsigned long long)chunks);
	well = cut_well(edges, 0, needed, &chunks);
	ok(well && !chunks, "no files, no pieces");
	memset(sizes, 0, sizeof sizes);
	well = cut_well(sizes, 3000, needed, &chunks);
	ok(well && chunks == 11, "empty files: %llu pieces", (unsigned long long)chunks);
	for (int trial = 0; trial < 50; trial++) {
		size_t n = 1 + (size_t)rand() % 500;
		for (size_t i = 0; i < n; i++)
			sizes[i] = (uint64_t)rand() % (rand() % 3 ? 40000 : 3 * MIB);
		for (size_t i = 0; i < sizeof needed; i++)
			needed[i] = (unsigned char)rand();
		if (!cut_well(sizes, n, needed, &chunks)) {
			ok(0, "trial %d", trial);
			return;
		}
	}
	ok(1, "50 random trees of which some files are needed");
}

static unsigned char *rebuilt;

static int rebuild(void *ctx, uint32_t at, const unsigned char *data, uint32_t n)
{
	*(uint32_t *)ctx += n;
	if (data)
		memcpy(rebuilt + at, data, n);
	else
		memset(rebuilt + at, 0, n);
	return 0;
}

static void holes(void)
{
	unsigned char *message = malloc(CHUNK_MESSAGE_MAX), *want = malloc(STAGE_BLOCK);
	int well = 1;
	rebuilt = malloc(STAGE_BLOCK);
	for (int trial = 0; trial < 60; trial++) {
		stage_chunk p = {.parts = 1,
		                 .large = true,
		                 .holes = true,
		                 .number = 7,
		                 .bytes = trial % 3 ? STAGE_BLOCK : 1 + (uint32_t)rand() % STAGE_BLOCK};
		uint32_t flags, sum = 0, kept = 0;
		uint64_t end;
		memset(want, 0, STAGE_BLOCK);
		for (uint32_t i = 0; i < p.bytes; i += CHUNK_PAGE)
			if (trial && rand() % trial % 2)
				want[i + (uint32_t)rand() % (p.bytes - i < CHUNK_PAGE ? p.bytes - i : CHUNK_PAGE)] = 1;
		for (uint32_t i = 0; i < p.bytes; i += CHUNK_PAGE)
			kept += memchr(want + i, 1, p.bytes - i < CHUNK_PAGE ? p.bytes - i : CHUNK_PAGE) != NULL;
		chunk_head(message, &p, 0, 8);
		memcpy(chunk_bytes(message, &p), want, p.bytes);
		uint32_t packed = chunk_pack(message, &p);
		memset(rebuilt, 0xff, STAGE_BLOCK);
		well &= chunk_packed(message, &p) == packed && packed <= kept * CHUNK_PAGE;
		well &= !chunk_runs(message, &p, rebuild, &sum) && sum == p.bytes && !memcmp(want, rebuilt, p.bytes);
		chunk_head_end(message, 9);
		chunk_sum(message, SHA256_BYTES + packed);
		well &= chunk_sum_check(message, SHA256_BYTES + packed);
		message[CHUNK_HEAD + SHA256_BYTES + packed / 2] ^= 4;
		well &= !packed || !chunk_sum_check(message, SHA256_BYTES + packed);
		well &= chunk_head_check(message, &p, &flags, &end) && !flags && end == 9;
	}
	ok(well, "blocks with holes are packed and come out again, with the pages that are not zero");
	stage_chunk small = {.parts = 1, .large = true, .holes = true, .bytes = 5000}, other = {.number = 1};
	uint32_t flags;
	uint64_t end;
	chunk_head(message, &small, CHUNK_STOP, 1);
	ok(chunk_head_check(message, &small, &flags, &end) && flags == CHUNK_STOP, "a node that stops");
	ok(!chunk_head_check(message, &other, &flags, &end), "the head of another piece");
	chunk_head_end(message, 0);
	ok(!chunk_head_check(message, &small, &flags, &end), "an end that is before the piece");
	chunk_head_end(message, 1);
	message[32] = 3;
	is_int(chunk_packed(message, &small), 5000, "two pages, of which the last is short");
	message[32] = 4;
	is_int(chunk_packed(message, &small), -1, "a page behind the end");
	message[32] = 0;
	message[63] = 0x80;
	is_int(chunk_packed(message, &small), -1, "and the very last one");
	message[5] = 1;
	ok(!chunk_head_check(message, &small, &flags, &end), "flags that nobody knows");
	free(message);
	free(want);
	free(rebuilt);
}

int main(void)
{
	static const uint64_t sizes[] = {0, 1, STAGE_BLOCK, STAGE_BLOCK + 1, 17 * MIB, 1000 * MIB - 3};
	for (unsigned i = 0; i < sizeof sizes / sizeof sizes[0]; i++)
		shuffled(sizes[i], i);
	cutting();
	holes();
	return done_testing();
}
