/* A state for any number of ranks: the same bytes on all of them, for every compressor that holds
 * something back; on another number of ranks, nodes, collectives and buckets the mean over ranks
 * that is owed is what it was. One that does not belong is refused by all ranks, which go on as
 * if nothing had been. */
#include "tests/support/residuals.h"

#include "reducer/state/reducer_state.h"
#include "reducer/state/shared_state.h"

#include <stddef.h>

enum { STEPS = 3 };

/* Some ranks, and what they reduce over. */
typedef struct crew {
	int P;
	const char *collective; /* NULL: what the compressor goes over by default */
	uint64_t bucket_bytes;
} crew;

static struct run {
	const char *spec;
	crew crew;
	model *models[MAX_RANKS];
	double owed[2][MEMORIES]; /* by place in the layout: the mean over ranks, before and after */
	unsigned char *state[MAX_RANKS];
	uint64_t bytes[MAX_RANKS], prints[MAX_RANKS];
	int failed[MAX_RANKS], holds, nodes;
	char text[508];
	double off; /* how far the step after is off */
} now;

static void failed(int rank, int what, const gradcomp_error *err)
{
	if (what)
		fprintf(stderr, "# rank %d: %s\n", rank, err->text);
	now.failed[rank] |= what;
}

static int in_two_levels(const reducer *r)
{
	return r->eng.list.shards ? r->eng.list.shards->layout.nranks : 0;
}

/* With all ranks standing still: what the average over ranks lacks. */
static void owed(double *to)
{
	const reducer *first = reducer_of(now.models[0]->red);
	int P = now.crew.P, nodes = in_two_levels(first);
	memories(now.models, P, to);
	/* The compressor's own accumulation, where that is not error memory. */
	for (int r = 0; first->eng.compressor->traits & GRADCOMP_TRAIT_OWN_MOMENTUM && r < P; r++) {
		const reducer *red = reducer_of(now.models[r]->red);
		for (const engine *k = red->eng.list.shards ? red->eng.list.shards : &red->eng; k; k = k->next)
			for (uint32_t i = 0; i < k->list.nbuckets; i++)
				for (uint64_t j = 0; j < k->list.buckets[i].pub.numel; j++)
					to[red->eng.list.buckets[i].pub.offset + k->list.buckets[i].begin + j] +=
						k->arrays.memory[k->list.buckets[i].pub.offset + j];
	}
	for (int i = 0; i < MEMORIES; i++)
		to[i] /= nodes ? nodes : P;
}

static gradcomp_status open_crew(model *m, gradcomp_job *job, gradcomp_error *err)
{
	return model_open_over(m, gradcomp_job_world(job), now.spec, now.crew.collective, now.crew.bucket_bytes, err);
}

static gradcomp_status save_shared(model *m, unsigned char **state, uint64_t *bytes, gradcomp_error *err)
{
	gradcomp_status st = gradcomp_reducer_save_shared(m->red, NULL, 0, bytes, err);
	*state = malloc(*bytes + 1);
	return st ? st : gradcomp_reducer_save_shared(m->red, *state, *bytes, bytes, err);
}

static void save_body(gradcomp_job *job, int rank, int P, void *arg)
{
	gradcomp_error err = {0};
	model m;
	(void)P, (void)arg;
	now.models[rank] = &m;
	if (open_crew(&m, job, &err)) {
		failed(rank, 1, &err);
		return;
	}
	for (int s = 0; s < STEPS; s++)
		failed(rank, (model_step(&m, rank, s, &err) != 0) << 1, &err);
	ranks_wait();
	if (rank == 0) {
		now.nodes = in_two_levels(reducer_of(m.red));
		now.holds = 0;
		owed(now.owed[0]);
		for (int i = 0; i < MEMORIES; i++)
			now.holds |= now.owed[0][i] != 0;
	}
	ranks_wait();
	failed(rank, (save_shared(&m, &now.state[rank], &now.bytes[rank], &err) != 0) << 2, &err);
	/* It is theirs still. */
	failed(rank, (model_step(&m, rank, STEPS, &err) != 0) << 3, &err);
	ranks_wait();
	model_close(&m);
}

/* Compares what is by parameter: behind the head, before the plugin's own. */
static int same_arrays(const unsigned char *a, uint64_t bytes_a, const unsigned char *b, uint64_t bytes_b)
{
	shared_head h[2];
	memcpy(&h[0], a, sizeof h[0]);
	memcpy(&h[1], b, sizeof h[1]);
	bytes_a -= h[0].plugin_bytes;
	return bytes_a == bytes_b - h[1].plugin_bytes &&
	       !memcmp(a + sizeof h[0], b + sizeof h[1], bytes_a - sizeof h[0]);
}

static void load_body(gradcomp_job *job, int rank, int P, void *arg)
{
	const struct run *saved = arg;
	gradcomp_error err = {0};
	unsigned char *again = NULL;
	uint64_t bytes = 0;
	model m;
	now.models[rank] = &m;
	if (open_crew(&m, job, &err)) {
		failed(rank, 1, &err);
		return;
	}
	failed(rank, (model_step(&m, rank, 77, &err) != 0) << 1, &err); /* the step that it was at must not matter */
	failed(rank,
	       (gradcomp_reducer_load(m.red, saved->state[rank % saved->crew.P], saved->bytes[0], &err) != 0) << 2,
	       &err);
	ranks_wait();
	if (rank == 0) {
		now.nodes = in_two_levels(reducer_of(m.red));
		owed(now.owed[0]);
	}
	ranks_wait();
	failed(rank, (save_shared(&m, &again, &bytes, &err) != 0) << 3, &err);
	now.failed[rank] |= !same_arrays(saved->state[0], saved->bytes[0], again, bytes) << 4;
	free(again);
	failed(rank, (reducer_of(m.red)->eng.step != STEPS) << 5, &err);
	failed(rank, (model_step(&m, rank, STEPS, &err) != 0) << 6, &err);
	now.prints[rank] = fingerprint(&m);
	ranks_wait();
	if (rank == 0 && !(reducer_of(m.red)->eng.compressor->traits & GRADCOMP_TRAIT_OWN_MOMENTUM)) {
		double sums[2][MEMORIES];
		int holders = now.nodes ? now.nodes : P;
		owed(now.owed[1]);
		for (int i = 0; i < MEMORIES; i++) {
			sums[0][i] = now.owed[0][i] * holders;
			sums[1][i] = now.owed[1][i] * holders;
		}
		now.off = memories_off(now.models, P, STEPS, sums[0], sums[1]);
	}
	ranks_wait();
	model_close(&m);
}

static void run(const char *spec, const crew *c, void (*body)(gradcomp_job *, int, int, void *), void *arg)
{
	const char *settings[] = {plugin_path_setting(), "transport.timeout=60", "gradcomp.log=error", NULL};
	memset(&now, 0, sizeof now);
	now.spec = spec;
	now.crew = *c;
	run_ranks(c->P, settings, body, arg);
}

static int any_failed(void)
{
	int all = 0;
	for (int r = 0; r < now.crew.P; r++)
		all |= now.failed[r];
	return all;
}

static void free_states(struct run *r)
{
	for (int i = 0; i < MAX_RANKS; i++)
		free(r->state[i]);
}

/* Saved by one crew, loaded by the others. */
static void goes_to(const char *spec, const crew *from, const crew *to, int n)
{
	run(spec, from, save_body, NULL);
	struct run *saved = malloc(sizeof *saved);
	*saved = now;
	int alike = !any_failed();
	for (int r = 1; alike && r < from->P; r++)
		alike = now.bytes[r] == now.bytes[0] && !memcmp(now.state[r], now.state[0], now.bytes[0]);
	ok(alike, "%s over %s: %d ranks%s save the same %llu bytes%s", spec,
	   from->collective ? from->collective : "its own", from->P, now.nodes ? " in two levels" : "",
	   (unsigned long long)now.bytes[0], now.holds ? "" : ", and hold nothing back");
	for (int k = 0; alike && k < n; k++) {
		double most = 0, off = 0;
		int all = 0, differ = 0;
		run(spec, &to[k], load_body, saved);
		for (int i = 0; i < MEMORIES; i++) {
			most = fmax(most, fabs(saved->owed[0][i]));
			off = fmax(off, fabs(saved->owed[0][i] - now.owed[0][i]));
		}
		for (int r = 0; r < to[k].P; r++) {
			all |= now.failed[r];
			differ |= now.prints[r] != now.prints[0];
		}
		ok(!all && !differ && off <= 1e-7 * most && (now.off <= 3e-5 || !saved->holds),
		   "... %d ranks over %s%s owe the same: off by %.1e of %.2g, %.1e lost in the step after (%#x)",
		   to[k].P, to[k].collective ? to[k].collective : "its own", now.nodes ? " in two levels" : "", off,
		   most, now.off, (unsigned)all);
	}
	free_states(saved);
	free(saved);
}

static char names_of[40][32];
static int n_names;

static int name_it(void *ctx, const char *name, const char *path, const gradcomp_plugin_info *info, const char *reason)
{
	(void)ctx, (void)path, (void)reason;
	if (info && n_names < 40)
		snprintf(names_of[n_names++], sizeof names_of[0], "%s", name);
	return 0;
}

/* The functions below try what is refused. */

/* Both ranks; only rank 0 prints. `mine`: what this rank is to load. */
static void refused(model *m, int rank, const void *mine, uint64_t bytes, const char *words, const char *what)
{
	gradcomp_error err = {0};
	gradcomp_status st = gradcomp_reducer_load(m->red, mine, bytes, &err);
	if (rank == 0)
		ok(st < 0 && strstr(err.text, words), "%s: %s", what, st ? err.text : "was taken");
	else
		failed(rank, st >= 0, &err);
}

static void flips(model *m, int rank, const unsigned char *state, uint64_t bytes)
{
	unsigned char *copy = malloc(bytes);
	gradcomp_error err = {0};
	int taken = 0;
	for (uint64_t at = 0; at < bytes; at += 1 + at / 5) {
		memcpy(copy, state, bytes);
		copy[at] ^= 1 << at % 8;
		taken += gradcomp_reducer_load(m->red, copy, bytes, &err) >= 0;
		taken += gradcomp_reducer_load(m->red, copy, at, &err) >= 0;
	}
	if (rank == 0)
		ok(!taken, "a bit that is another, and states cut anywhere: %d were taken", taken);
	free(copy);
}

static void refuse_body(gradcomp_job *job, int rank, int P, void *arg)
{
	const char *spec = arg;
	gradcomp_group *world = gradcomp_job_world(job);
	gradcomp_error err = {0};
	gradcomp_reducer *smaller = NULL;
	gradcomp_tensor_desc desc = {.name = "w1", .dims = dims[0], .ndim = 2};
	gradcomp_reducer_options o = {.struct_size = sizeof o, .compressor = spec, .seed = 5};
	unsigned char *one = NULL, *later = NULL, own[32768];
	uint64_t bytes = 0, later_bytes = 0, own_bytes = 0;
	model a, b, c;
	(void)P;
	now.failed[rank] = model_open(&a, world, spec, 8000, &err) || model_open(&b, world, spec, 8000, &err) ||
	                   model_open(&c, world, "topk:density=0.2", 8000, &err) ||
	                   gradcomp_reducer_create(world, &desc, 1, &o, &smaller, &err);
	if (now.failed[rank]) {
		fprintf(stderr, "# rank %d: %s\n", rank, err.text);
		return;
	}
	for (int s = 0; s < 2; s++)
		failed(rank, model_step(&a, rank, s, &err) || model_step(&b, rank, s, &err), &err);
	model_step(&c, rank, 0, &err);
	failed(rank,
	       save_shared(&a, &one, &bytes, &err) || gradcomp_reducer_save(a.red, own, sizeof own, &own_bytes, &err),
	       &err);
	refused(&c, rank, one, bytes, "this reducer is 'topk:density=0.2", "another compressor");
	gradcomp_error why = {0};
	gradcomp_status st = gradcomp_reducer_load(smaller, one, bytes, &why);
	if (rank == 0)
		ok(st == GRADCOMP_ERR_MISMATCH && strstr(why.text, "in other tensors"), "another model: %s", why.text);
	flips(&b, rank, one, bytes);
	one[7] = '9';
	refused(&b, rank, one, bytes, "version '9', this library reads versions '1' to '1'", "another version");
	one[7] = '1';
	refused(&b, rank, rank ? one : own, rank ? bytes : own_bytes,
	        "either all ranks load a shared one, or each its own", "a shared one on one rank, its own on another");
	refused(&b, rank, rank ? NULL : one, rank ? 0 : bytes, "rank 1 on", "nothing on rank 1");
	one[bytes / 2] ^= (unsigned char)rank;
	refused(&b, rank, one, bytes, "cannot load its state: load: the shared state of", "one bit on rank 1");
	one[bytes / 2] ^= (unsigned char)rank;
	failed(rank, model_step(&a, rank, 2, &err) || save_shared(&a, &later, &later_bytes, &err), &err);
	refused(&b, rank, rank ? later : one, bytes, "loads a state of step 3, rank 0 one of step 2",
	        "a later one on rank 1");

	/* Saving, when one rank cannot. */
	st = gradcomp_reducer_save_shared(a.red, later, later_bytes - (uint64_t)rank, &later_bytes, &why);
	if (rank == 0)
		ok(st == GRADCOMP_ERR_INVALID && strstr(why.text, "rank 1 on") && strstr(why.text, "the buffer has"),
		   "no room on rank 1: %s", why.text);
	failed(rank, st >= 0, &err);
	if (rank == 1)
		gradcomp_reducer_ready(c.red, 0, c.grad[0], &err);
	st = gradcomp_reducer_save_shared(c.red, own, sizeof own, &own_bytes, &why);
	if (rank == 0)
		ok(st == GRADCOMP_ERR_STATE && strstr(why.text, "in the middle of a step"),
		   "a step begun on rank 1: %s", why.text);
	failed(rank, st >= 0, &err);
	for (uint32_t t = rank == 1; t < T; t++)
		gradcomp_reducer_ready(c.red, t, c.grad[t], &err);
	failed(rank, gradcomp_reducer_wait(c.red, &err) != 0, &err);

	/* b has gone on as if nothing had been. */
	failed(rank, model_step(&b, rank, 2, &err) != 0, &err);
	for (int s = 3; s < 5; s++) {
		failed(rank, model_step(&a, rank, s, &err) || model_step(&b, rank, s, &err), &err);
		if (rank == 0)
			ok(fingerprint(&a) == fingerprint(&b), "step %d after all of these is the same to the bit", s);
	}
	failed(rank, gradcomp_reducer_load(b.red, one, bytes, &err) != 0, &err);
	failed(rank, reducer_of(b.red)->eng.step != 2, &err);
	free(one);
	free(later);
	gradcomp_reducer_free(smaller);
	model_close(&a);
	model_close(&b);
	model_close(&c);
}

static void refuses(const char *spec)
{
	char copy[64];
	snprintf(copy, sizeof copy, "%s", spec);
	run(spec, &(crew){2, NULL, 8000}, refuse_body, copy);
	ok(!any_failed(), "%s: both ranks were refused alike, and took the right one", spec);
}

static void before_body(gradcomp_job *job, int rank, int P, void *arg)
{
	gradcomp_group *world = gradcomp_job_world(job);
	gradcomp_error err = {0};
	gradcomp_reducer_options o = {.struct_size = sizeof o, .compressor = "topk:density=0.1", .seed = 5, .delay = 2};
	unsigned char *one = NULL, *other = NULL;
	uint64_t bytes = 0, other_bytes = 0;
	model late, plain, tuned;
	void *corrections[T];
	(void)P, (void)arg;
	now.failed[rank] = model_open_with(&late, world, &o, &err) ||
	                   model_open(&plain, world, "topk:density=0.1", 0, &err) ||
	                   model_open(&tuned, world, "auto:candidates=none/topk:density=0.1", 0, &err);
	if (now.failed[rank]) {
		fprintf(stderr, "# rank %d: %s\n", rank, err.text);
		return;
	}
	for (int s = 0; s < 3; s++)
		failed(rank, model_step(&late, rank, s, &err) || model_step(&plain, rank, s, &err), &err);
	gradcomp_error why = {0};
	unsigned char few[8];
	gradcomp_status st = gradcomp_reducer_save_shared(late.red, few, sizeof few, &bytes, &why);
	if (rank == 0)
		ok(st == GRADCOMP_ERR_STATE && strstr(why.text, "gradcomp_reducer_drain()"), "steps are owed: %s",
		   why.text);
	failed(rank, st >= 0, &err);
	for (int t = 0; t < T; t++)
		corrections[t] = late.grad[t];
	failed(rank,
	       gradcomp_reducer_drain(late.red, corrections, NULL, 0, &err) || save_shared(&late, &one, &bytes, &err) ||
	               save_shared(&plain, &other, &other_bytes, &err),
	       &err);
	if (rank == 0)
		ok(bytes == other_bytes && !memcmp(one, other, bytes), "after it the state is that of no delay");
	failed(rank,
	       gradcomp_reducer_load(plain.red, one, bytes, &err) ||
	               gradcomp_reducer_load(late.red, other, bytes, &err) || model_step(&late, rank, 3, &err) ||
	               model_step(&plain, rank, 3, &err),
	       &err);
	refused(&tuned, rank, one, bytes, "this reducer is of auto", "into auto");
	free(one);
	free(other);
	model_close(&late);
	model_close(&plain);
	model_close(&tuned);
}

int main(void)
{
	const crew to[] = {{2, NULL, 3000}, {7, NULL, 1 << 20}};
	gradcomp_error err = {0};
	model_seed();
	setenv("GRADCOMP_PLUGIN_PATH", strchr(plugin_path_setting(), '=') + 1, 1);
	gradcomp_plugin_each(GRADCOMP_KIND_COMPRESSOR, name_it, NULL, &err);
	ok(n_names > 10, "%d compressors", n_names);
	for (int i = 0; i < n_names; i++)
		goes_to(names_of[i], &(crew){4, NULL, 8000}, to, 2);
	const crew one[] = {{1, NULL, 8000}, {3, NULL, 3000}};
	goes_to("powersgd:rank=2", &(crew){3, NULL, 8000}, one, 2);
	goes_to("topk:density=0.1", &(crew){1, NULL, 8000}, one, 2);
	/* Where a collective holds something back, too; in two levels; from one to the other. */
	const crew direct[] = {{3, "direct", 1 << 20}, {2, "ring", 1000}};
	goes_to("onebit", &(crew){4, "direct", 2000}, direct, 2);
	goes_to("onebit:average=0.9999999", &(crew){4, "direct", 2000}, direct, 2);
	const crew levels[] = {
		{6, "hier:ranks_per_node=2", 3000}, {3, "ring", 1 << 20}, {3, "hier:ranks_per_node=2", 8000}};
	goes_to("topk:density=0.1", &(crew){4, "hier:ranks_per_node=2", 8000}, levels, 3);
	goes_to("topk:density=0.1,average=0.9999999", &(crew){4, "hier:ranks_per_node=2", 8000}, levels, 3);
	goes_to("dgc:density=0.1", &(crew){6, "hier:ranks_per_node=3", 8000}, levels, 3);
	goes_to("lags:density=0.1", &(crew){4, "ring", 8000}, levels, 3);
	goes_to("lags:density=0.1", &(crew){4, "hier:ranks_per_node=2", 3000}, levels, 3);
	refuses("topk:density=0.1");
	refuses("powersgd:rank=2");
	run("", &(crew){2, NULL, 0}, before_body, NULL);
	ok(!any_failed(), "with a delay, and auto");
	return done_testing();
}
