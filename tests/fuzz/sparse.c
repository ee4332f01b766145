/* Decodes what a peer sends as a sparse payload: whatever it is, nothing is read or written past its end, and what
 * is taken is k indices that ascend below d, with finite values.
 *
 * As a program: good payloads mutated at random, and the files given as arguments.
 * GRADCOMP_FUZZ_SEED and GRADCOMP_FUZZ_ROUNDS repeat a run or make a longer one.
 * For libFuzzer, without main():
 *
 *     clang -fsanitize=fuzzer,address -DLIBFUZZER ... tests/fuzz/sparse.c */
#include "conformance/guard.h"
#include "operators/operator_tables.h"
#include "gradcomp/sdk/sparse.h"
#include "tests/support/tap.h"

#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum { MOST = 4096 }; /* most of k */

/* An input: how it is to be read, then the payload; what is missing of that is 0. */
typedef struct head {
	uint32_t d;
	uint16_t k;
	uint8_t indices, values;
} head;

static guarded payload, indices, numbers;
static long taken, refused;

/* The last `bytes` before the wall. */
static void *end_of(const guarded *g, uint64_t bytes)
{
	return g->data + g->bytes - bytes;
}

static void read_head(head *h, const uint8_t *data)
{
	memcpy(h, data, sizeof *h);
	h->k %= MOST + 1;
	h->d = h->d == UINT32_MAX ? 0 : h->d;
	h->d = h->d < h->k ? h->k : h->d;
	h->indices %= 4;
	h->values %= 5;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	const gradcomp_operators *op = operators_cpu();
	head h;
	if (size < sizeof h)
		return 0;
	if (!payload.map) {
		payload = guard("the payload", 8 * MOST + 4096, 8);
		indices = guard("indices", 4 * MOST, 8);
		numbers = guard("values", 4 * MOST, 8);
	}
	read_head(&h, data);
	sdk_sparse_coding c = {h.indices, h.values};
	uint64_t bytes = sdk_sparse_bytes(op, c, h.d, h.k), given = size - sizeof h < bytes ? size - sizeof h : bytes;
	if (bytes > payload.bytes)
		abort();
	char *in = end_of(&payload, bytes);
	memset(in, 0, bytes);
	memcpy(in, data + sizeof h, given);
	sdk_sparse_pairs out = {end_of(&indices, 4 * (uint64_t)h.k), end_of(&numbers, 4 * (uint64_t)h.k)};
	const char *wrong = sdk_sparse_unpack(op, c, in, out, h.d, h.k);
	if (wrong) {
		refused++;
		return 0;
	}
	for (uint32_t j = 0; j < h.k; j++)
		if (out.idx[j] >= h.d || (j && out.idx[j] <= out.idx[j - 1]) || !isfinite(out.val[j]))
			abort();
	taken++;
	return 0;
}

#ifndef LIBFUZZER
#include "tests/fuzz/mutate.h"

/* A payload as encode() makes it, and its head; returns the bytes. */
static size_t make(uint8_t *data)
{
	uint32_t idx[MOST];
	float val[MOST];
	uint16_t k = (uint16_t)draw(draw(4) ? 100 : MOST);
	head h = {.k = k,
	          .d = k + (k ? draw(draw(2) ? 100 : 4000000) : 0),
	          .indices = (uint8_t)draw(4),
	          .values = (uint8_t)draw(5)};
	memcpy(data, &h, sizeof h);
	read_head(&h, data);
	sdk_sparse_coding c = {h.indices, h.values};
	for (uint32_t j = 0; j < h.k; j++) {
		uint64_t from = (uint64_t)j * h.d / h.k, to = (uint64_t)(j + 1) * h.d / h.k;
		idx[j] = (uint32_t)from + draw((uint32_t)(to - from));
		val[j] = ((float)draw(2001) - 1000) * 1e-3f;
	}
	sdk_sparse_pack(operators_cpu(), NULL, c, data + sizeof h, (sdk_sparse_pairs){idx, val}, h.d, h.k);
	return sizeof h + sdk_sparse_bytes(operators_cpu(), c, h.d, h.k);
}

static int run_file(const char *path)
{
	static uint8_t data[1 << 16];
	FILE *f = fopen(path, "rb");
	size_t n = f ? fread(data, 1, sizeof data, f) : 0;
	if (!f || fclose(f))
		return 0;
	LLVMFuzzerTestOneInput(data, n);
	return 1;
}

int main(int argc, char **argv)
{
	long rounds = mutate_begin(100000);
	static _Alignas(8) uint8_t data[sizeof(head) + 8 * MOST + 4096];
	for (int i = 1; i < argc; i++)
		ok(run_file(argv[i]), "%s", argv[i]);
	for (long i = 0; i < 2000; i++)
		LLVMFuzzerTestOneInput(data, make(data));
	is_int(refused, 0, "2000 good payloads are taken");
	is_int(taken, 2000, "all of them");
	for (long i = 0; i < rounds; i++) {
		size_t n = make(data);
		mutate(data + sizeof(head), n - sizeof(head));
		LLVMFuzzerTestOneInput(data, n);
	}
	tap_tried((unsigned long)rounds, "mutated inputs");
	ok(refused > rounds / 10 && taken - 2000 > rounds / 10,
	   "of %ld mutated ones %ld are refused, the others are lists of numbers too", rounds, refused);
	return done_testing();
}
#endif
