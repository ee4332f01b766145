/* A coder's saved state: it goes on to the bit; one that is damaged, forged or another's is refused and
 * changes nothing. */
#include "tests/support/coder_fixture.h"

#include <stdatomic.h>
#include <stddef.h>
#include <xxhash.h>

enum { P = 3, N = 700, BEFORE = 4, AFTER = 3 };

typedef struct board {
	atomic_int wrong, refused;
	uint64_t bytes[P];
	unsigned char *state[P];
} board;

static void expect(board *b, bool so, int rank, const char *what)
{
	if (!so && !atomic_fetch_add(&b->wrong, 1))
		printf("# rank %d: %s\n", rank, what);
}

/* Calls from `first` on, of three slots and of none; their results one after another. */
static void calls(board *b, gradcomp_coder *k, int rank, int first, int n, float *out)
{
	gradcomp_error err = {0};
	uint64_t counts[P];
	float in[P * N];
	for (int i = first; i < first + n; i++) {
		uint64_t total = coder_counts(i % 2 ? CUT_GAPS : CUT_ODD, P, 200, counts);
		uint32_t slot = i % 2 ? 5 + (uint32_t)i % 4 : i % 4 ? GRADCOMP_CODER_NO_SLOT : 1000;
		coder_fill(in, rank, 0, total, GRADCOMP_F32, i);
		expect(b, !gradcomp_coder_reduce_scatter(k, in, out, counts, GRADCOMP_F32, 0.5, slot, &err), rank,
		       err.text);
		out += counts[rank];
	}
}

static void load_refused(board *b, gradcomp_coder *k, int rank, const void *state, uint64_t bytes, gradcomp_status want,
                         const char *words)
{
	gradcomp_error err = {0};
	gradcomp_status st = gradcomp_coder_load(k, state, bytes, &err);
	char text[700];
	snprintf(text, sizeof text, "%d '%s' should be %d '%s'", (int)st, err.text, (int)want, words);
	expect(b, st == want && strstr(err.text, words), rank, text);
}

static void seal(unsigned char *state, uint64_t bytes)
{
	uint64_t sum = XXH64(state + 16, bytes - 16, 0);
	memcpy(state + 8, &sum, sizeof sum);
}

/* A word is another, and the checksum is right again. */
static void forged(board *b, gradcomp_coder *k, int rank, size_t at, uint64_t value, size_t size, gradcomp_status want,
                   const char *words)
{
	uint64_t bytes = b->bytes[rank];
	unsigned char *copy = malloc(bytes);
	memcpy(copy, b->state[rank], bytes);
	memcpy(copy + at, &value, size);
	seal(copy, bytes);
	load_refused(b, k, rank, copy, bytes, want, words);
	free(copy);
}

static void hostile(board *b, gradcomp_coder *k, int rank)
{
	/* The offsets are those of coder_state.c: 16 bytes of magic and checksum, three words, four half words, 256
	 * bytes; then a slot: total, number, counts, numbers. */
	const size_t seed = 24, where = 40, nslots = 48, spec_at = 56, slot = spec_at + 256;
	const char *no = "are no saved state of a coder", *damaged = "is damaged";
	const uint32_t nan = 0x7fc00000;
	uint64_t bytes = b->bytes[rank];
	load_refused(b, k, rank, NULL, 0, GRADCOMP_ERR_INVALID, no);
	for (uint64_t cut = 0; cut < bytes; cut += 1 + bytes / 13)
		load_refused(b, k, rank, b->state[rank], cut, GRADCOMP_ERR_INVALID, cut < slot ? no : damaged);
	for (uint64_t at = 0; at < bytes; at += 1 + bytes / 29) {
		b->state[rank][at] ^= 0x10;
		gradcomp_error err = {0};
		expect(b, gradcomp_coder_load(k, b->state[rank], bytes, &err) < 0, rank,
		       "a bit that is another is found");
		b->state[rank][at] ^= 0x10;
	}
	forged(b, k, rank, 7, '2', 1, GRADCOMP_ERR_UNSUPPORTED, "version '2', this library reads versions '1' to '1'");
	forged(b, k, rank, seed, 9, 8, GRADCOMP_ERR_MISMATCH, "the state has seed 9, this coder 11");
	forged(b, k, rank, where, 7, 4, GRADCOMP_ERR_MISMATCH, "the state is of rank 7 of 3, this is rank");
	forged(b, k, rank, where + 4, 4, 4, GRADCOMP_ERR_MISMATCH, "of 4, this is rank");
	forged(b, k, rank, nslots, 2, 4, GRADCOMP_ERR_INVALID, damaged);
	forged(b, k, rank, nslots, UINT32_MAX, 4, GRADCOMP_ERR_INVALID, damaged);
	forged(b, k, rank, spec_at, 'x', 1, GRADCOMP_ERR_MISMATCH, "this coder is 'block:");
	forged(b, k, rank, slot, UINT64_MAX / 4, 8, GRADCOMP_ERR_INVALID, damaged);
	forged(b, k, rank, slot, 1, 8, GRADCOMP_ERR_INVALID, damaged);
	forged(b, k, rank, slot + 8, UINT32_MAX, 4, GRADCOMP_ERR_INVALID, damaged);
	forged(b, k, rank, slot + 8, 1000, 4, GRADCOMP_ERR_INVALID, damaged); /* out of order */
	forged(b, k, rank, slot + 16, UINT64_MAX, 8, GRADCOMP_ERR_INVALID, damaged);
	forged(b, k, rank, slot + 16 + P * 8, nan, 4, GRADCOMP_ERR_INVALID, damaged);
}

static void body(gradcomp_job *job, int rank, int nranks, void *arg)
{
	static const char *const spec = "block:bits=4,rounding=stochastic";
	board *b = arg;
	gradcomp_group *world = gradcomp_job_world(job);
	gradcomp_error err = {0};
	gradcomp_coder_options o = {.struct_size = sizeof o, .seed = 11}, other = {.struct_size = sizeof o, .seed = 12};
	gradcomp_coder *through, *resumed, *wider, *reseeded;
	uint64_t bytes = 0, short_by = 0;
	(void)nranks;
	if (gradcomp_coder_create(world, spec, &o, &through, &err) ||
	    gradcomp_coder_create(world, spec, &o, &resumed, &err) ||
	    gradcomp_coder_create(world, "block:bits=8", &o, &wider, &err) ||
	    gradcomp_coder_create(world, spec, &other, &reseeded, &err)) {
		expect(b, false, rank, err.text);
		return;
	}
	float *want = calloc(AFTER * P * N, sizeof *want), *got = calloc(AFTER * P * N, sizeof *got);
	float *first = calloc(BEFORE * P * N, sizeof *first);
	if (!want || !got || !first)
		exit(1);
	calls(b, through, rank, 0, BEFORE, first);
	expect(b, !gradcomp_coder_save(through, NULL, 0, &bytes, &err), rank, err.text);
	b->bytes[rank] = bytes;
	b->state[rank] = malloc(bytes);
	expect(b,
	       gradcomp_coder_save(through, b->state[rank], bytes - 1, &short_by, &err) == GRADCOMP_ERR_INVALID &&
	               strstr(err.text, "the state takes"),
	       rank, "a buffer that is too short");
	expect(b, !gradcomp_coder_save(through, b->state[rank], bytes, &bytes, &err), rank, err.text);
	calls(b, through, rank, BEFORE, AFTER, want);

	/* Something else was in it. */
	calls(b, resumed, rank, 1, 2, first);
	expect(b, !gradcomp_coder_load(resumed, b->state[rank], bytes, &err), rank, err.text);
	hostile(b, resumed, rank);
	load_refused(b, wider, rank, b->state[rank], bytes, GRADCOMP_ERR_MISMATCH, "this coder is 'block:bits=8");
	load_refused(b, reseeded, rank, b->state[rank], bytes, GRADCOMP_ERR_MISMATCH,
	             "the state has seed 11, this coder 12");
	ranks_wait();
	load_refused(b, resumed, rank, b->state[(rank + 1) % P], b->bytes[(rank + 1) % P], GRADCOMP_ERR_MISMATCH,
	             "the state is of rank");
	ranks_wait();
	calls(b, resumed, rank, BEFORE, AFTER, got);
	expect(b, !memcmp(want, got, AFTER * P * N * sizeof *want), rank, "it goes on to the bit");

	/* Not while a call is in flight: rank 0's cannot end before the others have started theirs. */
	uint64_t counts[P] = {10, 10, 10};
	gradcomp_coder_request *q;
	if (rank == 0) {
		expect(b, !gradcomp_coder_all_gather_start(resumed, first, want, counts, GRADCOMP_F32, &q, &err), rank,
		       err.text);
		int done = 1;
		expect(b, !gradcomp_coder_test(q, &done, &err) && !done, rank, "it is in flight");
		load_refused(b, resumed, rank, b->state[rank], bytes, GRADCOMP_ERR_STATE,
		             "load with 1 calls in flight: wait for them first");
		expect(b,
		       gradcomp_coder_save(resumed, NULL, 0, &bytes, &err) == GRADCOMP_ERR_STATE &&
		               strstr(err.text, "save with 1 calls"),
		       rank, "save in flight");
	}
	ranks_wait();
	if (rank)
		expect(b, !gradcomp_coder_all_gather_start(resumed, first, want, counts, GRADCOMP_F32, &q, &err), rank,
		       err.text);
	expect(b, !gradcomp_coder_wait(q, &err), rank, err.text);
	gradcomp_coder_free(through);
	gradcomp_coder_free(resumed);
	gradcomp_coder_free(wider);
	gradcomp_coder_free(reseeded);
	free(want), free(got), free(first);
	ranks_wait();
	free(b->state[rank]);
}

int main(void)
{
	const char *const settings[] = {plugin_path_setting(), NULL};
	board b = {0};
	run_ranks(P, settings, body, &b);
	is_int(atomic_load(&b.wrong), 0, "saved, resumed, and nothing else is taken");
	return done_testing();
}
