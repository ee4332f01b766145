/* A saved state that does not belong: each is refused with a message that says what
 * it is and what was wanted, and the reducer goes on as if nothing had been. */
#include "tests/support/small_model.h"

#include "reducer/reducer.h"
#include "reducer/state/reducer_state.h"

#include <stddef.h>

static unsigned char *kept[MAX_RANKS];
static uint64_t kept_bytes[MAX_RANKS];

/* Only rank 0 prints: TAP is not for threads. */
static void refused(model *m, int rank, const void *state, uint64_t bytes, const char *words, const char *what)
{
	gradcomp_error err = {0};
	gradcomp_status st = gradcomp_reducer_load(m->red, state, bytes, &err);
	if (rank == 0)
		ok(st < 0 && strstr(err.text, words), "%s: %s", what, st ? err.text : "was taken");
}

/* A word of the state is another, and the checksum is right again. */
static void forged(model *m, int rank, const unsigned char *state, uint64_t bytes, size_t at, uint64_t value,
                   size_t size, const char *words, const char *what)
{
	unsigned char *copy = malloc(bytes);
	memcpy(copy, state, bytes);
	memcpy(copy + at, &value, size);
	saved_seal(SAVED_REDUCER, copy, bytes);
	refused(m, rank, copy, bytes, words, what);
	free(copy);
}

/* Forges states of a plan of two buckets. */
static void forge(model *m, int rank, const unsigned char *s, uint64_t bytes)
{
	const size_t ends = sizeof(state_head), positions = ends + 2 * sizeof(uint32_t);
	forged(m, rank, s, bytes, offsetof(state_head, nbuckets), 0, 4, "a plan of 0 buckets", "no bucket");
	forged(m, rank, s, bytes, offsetof(state_head, nbuckets), UINT32_MAX, 4, "4294967295 buckets",
	       "too many buckets");
	forged(m, rank, s, bytes, offsetof(state_head, nbuckets), T, 4, "none of this reducer",
	       "a plan that is something else");
	forged(m, rank, s, bytes, offsetof(state_head, lag), 7, 4, "lag is 7", "a lag of seven");
	forged(m, rank, s, bytes, ends, 0, 4, "bucket 0 ends before tensor 0", "a bucket of nothing");
	forged(m, rank, s, bytes, ends + 4, T + 1, 4, "bucket 1 ends before tensor 7", "a bucket past the end");
	forged(m, rank, s, bytes, positions, 2, 4, "bucket 0 has position 2", "a position there is not");
	forged(m, rank, s, bytes, positions, (uint64_t)1 << 32 | 1, 8, "none of this reducer",
	       "positions that are taken");
	forged(m, rank, s, bytes, offsetof(state_head, plugin_bytes), UINT64_MAX - 7, 8, "keeps no state of its own",
	       "bytes of a plugin's that has none");
	forged(m, rank, s, bytes, offsetof(state_head, kept), UINT64_MAX, 8, "other nodes",
	       "more numbers than there are");
	forged(m, rank, s, bytes, offsetof(state_head, nserver_error), 1, 8, "another collective",
	       "a memory of the collective's");
	forged(m, rank, s, bytes, offsetof(state_head, held_hash), 1, 8, "of other numbers", "other numbers");
	forged(m, rank, s, bytes, offsetof(state_head, state_arrays), UINT32_MAX, 4, "should have", "more arrays");
	forged(m, rank, s, bytes, offsetof(state_head, has_error), 0, 4, "should have", "no error memory");
}

/* A compressor whose parameters say that nothing is remembered has no error memory, in the
 * reducer as in its state. */
static void memory_as_asked(gradcomp_group *world, int rank)
{
	static const char *const specs[] = {"qsgd", "qsgd:error=yes"};
	uint64_t bytes[2] = {0}, floats = 0;
	gradcomp_error err = {0};
	int there[2] = {-1, -1};
	for (int k = 0; k < 2; k++) {
		model m;
		if (model_open(&m, world, specs[k], 8000, &err) || model_step(&m, rank, 0, &err))
			break;
		there[k] = reducer_of(m.red)->eng.arrays.error != NULL;
		floats = reducer_of(m.red)->eng.layout.numel;
		gradcomp_reducer_save(m.red, NULL, 0, &bytes[k], &err);
		model_close(&m);
	}
	/* Both hold the name of the compressor with all its parameters. */
	long long more = (long long)bytes[1] - (long long)bytes[0], off = more - 4 * (long long)floats;
	if (rank == 0)
		ok(!there[0] && there[1] == 1 && off >= 0 && off <= 8,
		   "qsgd keeps no error memory, with error=yes one of 4 bytes a number (%lld of %llu numbers) %s", more,
		   (unsigned long long)floats, err.text);
}

static void body(gradcomp_job *job, int rank, int P, void *arg)
{
	gradcomp_group *world = gradcomp_job_world(job);
	gradcomp_error err = {0};
	gradcomp_reducer *smaller = NULL;
	gradcomp_tensor_desc desc = {.name = "w1", .dims = dims[0], .ndim = 2};
	gradcomp_reducer_options o = {.struct_size = sizeof o, .compressor = "topk:density=0.1"};
	model a, b, c;
	(void)arg;
	if (model_open(&a, world, "topk:density=0.1", 8000, &err) ||
	    model_open(&b, world, "topk:density=0.2", 1 << 20, &err) ||
	    model_open(&c, world, "powersgd:rank=2", 1 << 20, &err) ||
	    gradcomp_reducer_create(world, &desc, 1, &o, &smaller, &err)) {
		ok(0, "rank %d: %s", rank, err.text);
		return;
	}
	model_step(&a, rank, 0, &err);
	gradcomp_reducer_save(a.red, NULL, 0, &kept_bytes[rank], &err);
	kept[rank] = malloc(kept_bytes[rank]);
	gradcomp_reducer_save(a.red, kept[rank], kept_bytes[rank], &kept_bytes[rank], &err);
	memory_as_asked(world, rank);
	ranks_wait();

	unsigned char *state = kept[rank];
	uint64_t bytes = kept_bytes[rank];
	refused(&b, rank, state, bytes, "topk:density=0.1", "other parameters");
	refused(&c, rank, state, bytes, "this reducer is 'powersgd", "another compressor");
	model_close(&b);
	model_close(&c);
	model_open(&b, world, "topk:density=0.1", 1 << 20, &err);
	gradcomp_error into = {0};
	gradcomp_status st = gradcomp_reducer_load(smaller, state, bytes, &into);
	if (rank == 0)
		ok(st < 0 && strstr(into.text, "other tensors"), "another model: %s", st ? into.text : "was taken");
	refused(&b, rank, kept[(rank + 1) % P], kept_bytes[(rank + 1) % P], "rank 1 of 2, this is rank 0 of 2",
	        "another rank");
	ranks_wait();
	state[7] = '9';
	refused(&b, rank, state, bytes, "version '9'", "another version");
	state[7] = '3';
	state[0] = 'g';
	refused(&b, rank, state, bytes, "no saved state of a reducer", "something else");
	state[0] = 'G';
	refused(&b, rank, state, 100, "100 bytes", "cut short");
	refused(&b, rank, NULL, 0, "0 bytes", "nothing");
	forge(&b, rank, state, bytes);
	st = gradcomp_reducer_load(b.red, state, bytes, &err);
	if (rank == 0)
		is_int(st, GRADCOMP_OK, "the right one is taken after all of these");
	for (int s = 1; s < 3; s++) {
		model_step(&a, rank, s, &err);
		uint64_t mark = fingerprint(&a);
		model_step(&b, rank, s, &err);
		if (rank == 0)
			ok(mark == fingerprint(&b), "step %d is the same to the bit", s);
	}
	gradcomp_reducer_free(smaller);
	model_close(&a);
	model_close(&b);
}

int main(void)
{
	const char *settings[] = {plugin_path_setting(), "transport.timeout=20", "gradcomp.log=error", NULL};
	model_seed();
	run_ranks(2, settings, body, NULL);
	free(kept[0]);
	free(kept[1]);
	return done_testing();
}
