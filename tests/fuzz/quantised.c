/* Decodes what a peer sends to the codes block, zfp and lossless and to onebit, signsgd, qsgd and terngrad:
 * whatever it is, nothing is read or written past an end, what is refused is refused in words, and what is taken is
 * finite where the method is.
 *
 * As a program: good payloads mutated at random, and the files given as arguments.
 * GRADCOMP_FUZZ_SEED and GRADCOMP_FUZZ_ROUNDS repeat a run or make a longer one.
 * For libFuzzer, without main(), on plugins built with the same compiler and
 * -fsanitize=fuzzer-no-link,address:
 *
 *     clang -fsanitize=fuzzer,address -DLIBFUZZER ... tests/fuzz/quantised.c */
#include <math.h>
#include <stdint.h>

#include "tests/support/codec_fixture.h"
#include "tests/fuzz/mutate.h"

enum { MOST = 20000, NUMEL = 777, ROOM = 4 * MOST + 4096 };

/* `round` is that of a gathered payload, -1 for a code, which may be that of a sum that has overflowed. */
static const struct target {
	const char *spec;
	int round, finite;
} targets[] = {
	{"block", -1, 0},
	{"block:bits=4,block=32", -1, 0},
	{"block:bits=2", -1, 0},
	{"fp4", -1, 0},
	{"fp4:type=mx", -1, 0},
#ifdef HAVE_ZFP
	{"zfp", -1, 0},
	{"zfp:rate=1", -1, 0},
	{"zfp:rate=32", -1, 0},
#endif
#ifdef HAVE_ZSTD
	{"lossless:codec=zstd", -1, 0},
#endif
#ifdef HAVE_LZ4
	{"lossless:codec=lz4", -1, 0},
#endif
	{"onebit", 0, 1},
	{"onebit:column=40", 0, 1},
	{"signsgd", 0, 1},
	{"qsgd", 0, 1},
	{"qsgd:levels=1,block=32", 0, 1},
	{"terngrad", 0, 1},
	{"terngrad", 1, 1},
};
enum { TARGETS = sizeof targets / sizeof targets[0] };

static codec codecs[TARGETS];
static guarded payload, output;
static long taken, refused;

/* The host's side of one step. */
typedef struct side {
	_Alignas(64) char scratch[1 << 18];
	float x[NUMEL], error[NUMEL], *xs[1], *errors[1];
	_Alignas(8) uint8_t own[ROOM];
	gradcomp_bucket bucket;
	gradcomp_work work;
	gradcomp_plan plan;
	gradcomp_payload out;
	int fault[2];
} side;
static side now;

/* Encodes round `round` after everything before it; other rounds get what they sent. */
static int side_begin(codec *c, int round)
{
	int ran = 1;
	for (int i = 0; i < NUMEL; i++)
		now.x[i] = (float)(i * 37 % 101 - 50) * 0.02f;
	now.xs[0] = now.x, now.errors[0] = now.error;
	now.bucket = (gradcomp_bucket){.struct_size = sizeof now.bucket, .ntensors = 1, .numel = NUMEL};
	now.plan = (gradcomp_plan){.struct_size = sizeof now.plan};
	memset(now.fault, 0, sizeof now.fault);
	ran = !c->plugin->plan(c->instance, &now.bucket, 0, &now.plan, &c->err) &&
	      now.plan.scratch_bytes <= sizeof now.scratch && now.plan.rounds[round].bound <= ROOM;
	now.work = (gradcomp_work){.struct_size = sizeof now.work,
	                           .bucket = &now.bucket,
	                           .x = now.xs,
	                           .flat = now.x,
	                           .error = now.errors,
	                           .error_flat = now.error,
	                           .scratch = now.scratch,
	                           .scratch_bytes = now.plan.scratch_bytes,
	                           .operators_v1 = c->host.operators_v1,
	                           .operators = c->host.operators,
	                           .fault = now.fault};
	for (int r = 0; ran && r <= round; r++) {
		now.out = (gradcomp_payload){now.own, now.plan.rounds[r].bound, 0};
		ran = !c->plugin->encode(c->instance, &now.work, (uint32_t)r, &now.out, &c->err);
		gradcomp_payload both[2] = {now.out, now.out};
		if (ran && r < round)
			ran = !c->plugin->decode(c->instance, &now.work, (uint32_t)r, both, 2, &c->err);
	}
	return ran;
}

static gradcomp_status decode_gathered(codec *c, int round, const void *in, uint64_t bytes, float *out, uint64_t *n)
{
	if (!side_begin(c, round))
		abort();
	gradcomp_payload both[2] = {now.out, {(void *)(uintptr_t)in, bytes, bytes}};
	gradcomp_status st = c->plugin->decode(c->instance, &now.work, (uint32_t)round, both, 2, &c->err);
	memcpy(out, now.x, sizeof now.x);
	*n = NUMEL;
	return st;
}

enum { HEAD = 4 };

static void begin(void)
{
	payload = guard("the payload", ROOM, 8);
	output = guard("the output", 4 * MOST, 8);
	for (int k = 0; k < TARGETS; k++)
		if (!codec_open(&codecs[k], targets[k].spec, 0, 2, NUMEL))
			exit(1);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	if (!payload.map)
		begin();
	if (size < HEAD)
		return 0;
	int k = data[0] % TARGETS;
	uint64_t n = (data[2] | (uint64_t)data[3] << 8) % (MOST + 1), bytes = size - HEAD < ROOM ? size - HEAD : ROOM;
	char *in = payload.data + ROOM - (bytes + 7) / 8 * 8;
	codec *c = &codecs[k];
	gradcomp_status st;
	float *out = (float *)(void *)(output.data + 4 * MOST - 4 * n);
	memcpy(in, data + HEAD, bytes);
	c->err.text[0] = 0;
	if (targets[k].round >= 0) {
		out = (float *)(void *)output.data;
		st = decode_gathered(c, targets[k].round, in, bytes, out, &n);
	} else if (data[1] & 1) {
		memset(out, 0, 4 * n);
		st = c->plugin->code_decode_add(c->instance, in, bytes, out, n, &c->err);
	} else {
		st = c->plugin->code_decode(c->instance, in, bytes, out, n, &c->err);
	}
	if (st) {
		if (st != GRADCOMP_ERR_MISMATCH || !c->err.text[0])
			abort();
		refused++;
		return 0;
	}
	/* A sum over ranks of the largest floats may be no float any more. */
	for (uint64_t i = 0; targets[k].finite && i < n; i++)
		if (isnan(out[i]))
			abort();
	taken++;
	return 0;
}

#ifndef LIBFUZZER
/* A good input for target k; returns its bytes. */
static size_t make(uint8_t *data, int k)
{
	static float x[MOST];
	codec *c = &codecs[k];
	uint64_t n = draw(4) ? draw(300) : draw(MOST + 1), bytes = 0;
	data[0] = (uint8_t)k, data[1] = (uint8_t)draw(2);
	data[2] = (uint8_t)n, data[3] = (uint8_t)(n >> 8);
	if (targets[k].round >= 0) {
		if (!side_begin(c, targets[k].round))
			abort();
		memcpy(data + HEAD, now.own, now.out.bytes);
		return HEAD + now.out.bytes;
	}
	for (uint64_t i = 0; i < n; i++)
		x[i] = ((float)draw(2001) - 1000) * (draw(2) ? 1e-3f : 1e20f);
	if (c->plugin->code(c->instance, x, n, draw(1000), data + HEAD, &bytes, &c->err))
		abort();
	return HEAD + bytes;
}

static int run_file(const char *path, uint8_t *data, size_t room)
{
	FILE *f = fopen(path, "rb");
	size_t n = f ? fread(data, 1, room, f) : 0;
	if (!f || fclose(f))
		return 0;
	LLVMFuzzerTestOneInput(data, n);
	return 1;
}

static void target(int k, uint8_t *data, long rounds)
{
	taken = refused = 0;
	for (long i = 0; i < 300; i++)
		LLVMFuzzerTestOneInput(data, make(data, k));
	is_int(taken, 300, "%s: good payloads are taken", targets[k].spec);
	for (long i = 0; i < rounds; i++) {
		size_t n = make(data, k);
		mutate(data + HEAD, n - HEAD);
		n = draw(10) ? n : HEAD + draw((uint32_t)(n - HEAD) + 9);
		LLVMFuzzerTestOneInput(data, n);
	}
	tap_tried((unsigned long)rounds, "mutated inputs");
	ok(refused > rounds / 50, "%s: of %ld mutated ones %ld are refused, the others do no harm", targets[k].spec,
	   rounds, refused);
}

int main(int argc, char **argv)
{
	static _Alignas(8) uint8_t data[HEAD + ROOM + 16];
	long rounds = mutate_begin(5000);
	begin();
	for (int i = 1; i < argc; i++)
		ok(run_file(argv[i], data, sizeof data), "%s", argv[i]);
	for (int k = 0; k < TARGETS; k++)
		target(k, data, rounds);
	for (int k = 0; k < TARGETS; k++)
		codec_close(&codecs[k]);
	return done_testing();
}
#endif
