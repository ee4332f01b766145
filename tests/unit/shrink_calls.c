/* Ranks that are killed in the last millisecond of a collective call, of each kind that there is: a job that may go
 * on without them agrees whether the call is done, and whoever does what the manual says ends with what the others
 * have. */
#include "tests/support/pace.h"
#include "tests/support/process_ranks.h"
#include "tests/support/thread_ranks.h"

#include "gradcomp/coder.h"
#include "gradcomp/dataset.h"

#include <signal.h>
#include <stdbool.h>

enum {
	RANKS = 6,
	KILLS = RANKS - 2,
	NUMEL = 257,
	GAP = 10,
	CALLS = GAP * (KILLS + 1),
	STATES = 2,
	PIECES = 7,
	TIMED = 4
};

#define WAIT_TIMEOUT 20

typedef struct seen {
	int finished, wrong, done, repeated, nranks;
	gradcomp_status status;
	double ended;
	uint64_t hash;
	gradcomp_error err;
} seen;

static struct {
	int kills, who[KILLS], call[KILLS];
	double late[KILLS]; /* parts of the last millisecond */
	bool at_end;        /* the last kill is in gradcomp_job_free() */
} plan;

typedef struct program {
	gradcomp_job *job;
	gradcomp_group *world;
	const struct kind *kind;
	int began, me, n;    /* rank when the job began; now */
	int call_me, call_n; /* when the call began */
	gradcomp_reducer *red, *made;
	gradcomp_coder *coder;
	gradcomp_parallel *parallel;
	gradcomp_dataset *ds;
	unsigned char *state[STATES], *saved;
	uint64_t bytes, arrays[STATES]; /* hashes of what loading a state makes of the error memory */
	float in[RANKS * NUMEL], out[RANKS * NUMEL];
	double took[TIMED]; /* by the latest calls */
	int ncalls;
	bool dying, ending;
	seen *s;
} program;

typedef struct kind {
	const char *name;
	gradcomp_status (*call)(program *p, int i, gradcomp_error *err);
	void (*check)(program *p, int i); /* when the call is done */
	void (*voided)(program *p, int i);
	bool coder, parallel; /* made anew after ranks were lost */
} kind;

static uint64_t hash_of(uint64_t h, const void *p, size_t bytes)
{
	for (size_t i = 0; i < bytes; i++)
		h = (h ^ ((const unsigned char *)p)[i]) * 1099511628211u;
	return h;
}

static void note(program *p, const void *what, size_t bytes)
{
	p->s->hash = hash_of(p->s->hash, what, bytes);
}

/* Small enough that sums are exact. */
static float number(int rank, int i, int k)
{
	return (float)((rank * 7 + i * 13 + k * 3) % 64 - 31);
}

static void fill(program *p, int i, int n)
{
	for (int k = 0; k < n; k++)
		p->in[k] = number(p->me, i, k);
}

static float sum(const program *p, int i, int k)
{
	float x = 0;
	for (int r = 0; r < p->call_n; r++)
		x += number(r, i, k);
	return x;
}

static gradcomp_status allreduce(program *p, int i, gradcomp_error *err)
{
	fill(p, i, NUMEL);
	return gradcomp_allreduce(p->world, p->in, NUMEL, GRADCOMP_F32, GRADCOMP_SUM, err);
}

static void check_allreduce(program *p, int i)
{
	for (int k = 0; k < NUMEL; k++)
		p->s->wrong += p->in[k] != sum(p, i, k);
	note(p, p->in, NUMEL * sizeof *p->in);
}

static gradcomp_status allgather(program *p, int i, gradcomp_error *err)
{
	uint64_t counts[RANKS];
	for (int r = 0; r < p->n; r++)
		counts[r] = (uint64_t)(NUMEL - r);
	fill(p, i, NUMEL - p->me);
	return gradcomp_allgather(p->world, p->in, p->out, counts, GRADCOMP_F32, err);
}

static void check_allgather(program *p, int i)
{
	const float *at = p->out;
	for (int r = 0; r < p->call_n; r++)
		for (int k = 0; k < NUMEL - r; k++)
			p->s->wrong += *at++ != number(r, i, k);
}

static gradcomp_status reduce_scatter(program *p, int i, gradcomp_error *err)
{
	uint64_t counts[RANKS];
	for (int r = 0; r < p->n; r++)
		counts[r] = NUMEL;
	fill(p, i, p->n * NUMEL);
	return gradcomp_reduce_scatter(p->world, p->in, p->out, counts, GRADCOMP_F32, GRADCOMP_SUM, err);
}

static void check_reduce_scatter(program *p, int i)
{
	for (int k = 0; k < NUMEL; k++)
		p->s->wrong += p->out[k] != sum(p, i, p->call_me * NUMEL + k);
}

static gradcomp_status broadcast(program *p, int i, gradcomp_error *err)
{
	fill(p, i, NUMEL);
	return gradcomp_broadcast(p->world, p->in, NUMEL, GRADCOMP_F32, i % p->n, err);
}

static void check_broadcast(program *p, int i)
{
	for (int k = 0; k < NUMEL; k++)
		p->s->wrong += p->in[k] != number(i % p->call_n, i, k);
}

static gradcomp_status barrier(program *p, int i, gradcomp_error *err)
{
	(void)i;
	return gradcomp_barrier(p->world, err);
}

static gradcomp_status split(program *p, int i, gradcomp_error *err)
{
	gradcomp_group *g = NULL;
	gradcomp_status st = gradcomp_group_split(p->world, (p->me + i) % 2, -p->me, &g, err);
	p->s->wrong += !st && gradcomp_group_nranks(g) != (p->n + !((p->me + i) % 2 ^ i % 2)) / 2;
	gradcomp_group_free(g);
	return st;
}

static gradcomp_status reducer(program *p, gradcomp_reducer **out, gradcomp_error *err)
{
	const uint64_t dims[1] = {NUMEL};
	const gradcomp_tensor_desc desc = {.dims = dims, .ndim = 1};
	const gradcomp_reducer_options o = {.struct_size = sizeof o, .compressor = "topk:density=0.1"};
	return gradcomp_reducer_create(p->world, &desc, 1, &o, out, err);
}

static gradcomp_status create(program *p, int i, gradcomp_error *err)
{
	(void)i;
	gradcomp_reducer_free(p->made);
	return reducer(p, &p->made, err);
}

static void check_create(program *p, int i)
{
	(void)i;
	p->s->wrong += !p->made;
}

static gradcomp_status step_of(program *p, gradcomp_reducer *r, int i, bool drain, gradcomp_error *err)
{
	void *corrections[1] = {p->out};
	fill(p, i, NUMEL);
	gradcomp_status st = gradcomp_reducer_ready(r, 0, p->in, err);
	if (st)
		return st;
	return drain ? gradcomp_reducer_drain(r, corrections, NULL, 0, err) : gradcomp_reducer_wait(r, err);
}

static gradcomp_status step(program *p, int i, gradcomp_error *err)
{
	return step_of(p, p->red, i, false, err);
}

static gradcomp_status drain(program *p, int i, gradcomp_error *err)
{
	return step_of(p, p->red, i, true, err);
}

static void check_step(program *p, int i)
{
	(void)i;
	note(p, p->in, NUMEL * sizeof *p->in);
}

static gradcomp_status save(program *p, int i, gradcomp_error *err)
{
	uint64_t bytes = 0;
	(void)i;
	return gradcomp_reducer_save_shared(p->red, p->saved, p->bytes, &bytes, err);
}

static void check_save(program *p, int i)
{
	(void)i;
	note(p, p->saved, p->bytes);
}

/* Hashes this rank's error memory, with which a state of its own ends. */
static uint64_t error_memory(program *p)
{
	uint64_t bytes = 0, h = 0;
	gradcomp_reducer_save(p->red, NULL, 0, &bytes, NULL);
	unsigned char *own = malloc(bytes + 1);
	if (!gradcomp_reducer_save(p->red, own, bytes, &bytes, NULL))
		h = hash_of(1, own + bytes - NUMEL * sizeof(float), NUMEL * sizeof(float));
	free(own);
	return h;
}

static gradcomp_status load(program *p, int i, gradcomp_error *err)
{
	return gradcomp_reducer_load(p->red, p->state[i % STATES], p->bytes, err);
}

static void check_load(program *p, int i)
{
	p->s->wrong += error_memory(p) != p->arrays[i % STATES];
}

/* Checks that all is as if it had not been called. */
static void voided_load(program *p, int i)
{
	p->s->wrong += i && error_memory(p) != p->arrays[(i + 1) % STATES];
}

static gradcomp_status make_coder(program *p, gradcomp_error *err)
{
	const gradcomp_coder_options o = {.struct_size = sizeof o, .collective = "ring"};
	return gradcomp_coder_create(p->world, "block:bits=4", &o, &p->coder, err);
}

static gradcomp_status coder_create(program *p, int i, gradcomp_error *err)
{
	(void)i;
	gradcomp_coder_free(p->coder);
	p->coder = NULL;
	return make_coder(p, err);
}

static gradcomp_status coder_gather(program *p, int i, gradcomp_error *err)
{
	uint64_t counts[RANKS];
	for (int r = 0; r < p->n; r++)
		counts[r] = NUMEL;
	fill(p, i, NUMEL);
	return gradcomp_coder_all_gather(p->coder, p->in, p->out, counts, GRADCOMP_F32, err);
}

static void check_coder_gather(program *p, int i)
{
	(void)i;
	note(p, p->out, (size_t)p->call_n * NUMEL * sizeof *p->out);
}

static gradcomp_status coder_scatter(program *p, int i, gradcomp_error *err)
{
	uint64_t counts[RANKS];
	for (int r = 0; r < p->n; r++)
		counts[r] = NUMEL;
	fill(p, i, p->n * NUMEL);
	return gradcomp_coder_reduce_scatter(p->coder, p->in, p->out, counts, GRADCOMP_F32, 1, 0, err);
}

static gradcomp_status make_parallel(program *p, gradcomp_error *err)
{
	uint64_t bytes[PIECES];
	for (int k = 0; k < PIECES; k++)
		bytes[k] = NUMEL;
	return gradcomp_parallel_create(p->world, bytes, PIECES, &p->parallel, err);
}

static gradcomp_status parallel_create(program *p, int i, gradcomp_error *err)
{
	(void)i;
	gradcomp_parallel_free(p->parallel);
	p->parallel = NULL;
	return make_parallel(p, err);
}

typedef struct work {
	unsigned char *out;
	int i;
} work;

static void work_piece(void *ctx, uint32_t piece)
{
	const work *w = ctx;
	memset(w->out + piece * NUMEL, w->i + (int)piece, NUMEL);
}

static gradcomp_status parallel_apply(program *p, int i, gradcomp_error *err)
{
	work w = {(unsigned char *)p->out, i};
	void *out[PIECES];
	for (int k = 0; k < PIECES; k++)
		out[k] = w.out + k * NUMEL;
	memset(w.out, 255, PIECES * NUMEL);
	return gradcomp_parallel_apply(p->parallel, out, work_piece, &w, err);
}

static void check_parallel(program *p, int i)
{
	for (int k = 0; k < PIECES * NUMEL; k++)
		p->s->wrong += ((unsigned char *)p->out)[k] != i + k / NUMEL;
}

static gradcomp_status load_sample(void *ctx, uint64_t index, gradcomp_value_buffer *out, gradcomp_error *err)
{
	void *at = out->alloc(out, sizeof index);
	(void)ctx, (void)err;
	if (at)
		memcpy(at, &index, sizeof index);
	return at ? GRADCOMP_OK : GRADCOMP_ERR_NOMEM;
}

/* Made by every other call, and freed by the next one. */
static gradcomp_status dataset(program *p, int i, gradcomp_error *err)
{
	gradcomp_dataset_options o = {.struct_size = sizeof o, .count = 64, .memory = 1 << 16, .load = load_sample};
	return i % 2 ? gradcomp_dataset_free(p->ds, err) : gradcomp_dataset_create(p->world, &o, &p->ds, err);
}

static void check_dataset(program *p, int i)
{
	gradcomp_value_view v = {.struct_size = sizeof v};
	if (i % 2) {
		p->ds = NULL;
		return;
	}
	p->s->wrong += !p->ds;
	if (p->ds && !gradcomp_dataset_get(p->ds, (uint64_t)i, &v, NULL)) {
		p->s->wrong += v.bytes != sizeof(uint64_t) || *(const uint64_t *)v.data != (uint64_t)i;
		gradcomp_dataset_release(p->ds, &v);
	}
}

static const kind kinds[] = {
	{"gradcomp_allreduce", allreduce, check_allreduce, NULL, false, false},
	{"gradcomp_allgather", allgather, check_allgather, NULL, false, false},
	{"gradcomp_reduce_scatter", reduce_scatter, check_reduce_scatter, NULL, false, false},
	{"gradcomp_broadcast", broadcast, check_broadcast, NULL, false, false},
	{"gradcomp_barrier", barrier, NULL, NULL, false, false},
	{"gradcomp_group_split", split, NULL, NULL, false, false},
	{"gradcomp_reducer_create", create, check_create, NULL, false, false},
	{"gradcomp_reducer_wait", step, check_step, NULL, false, false},
	{"gradcomp_reducer_drain", drain, check_step, NULL, false, false},
	{"gradcomp_reducer_save_shared", save, check_save, NULL, false, false},
	{"gradcomp_reducer_load", load, check_load, voided_load, false, false},
	{"gradcomp_coder_create", coder_create, NULL, NULL, false, false},
	{"gradcomp_coder_all_gather", coder_gather, check_coder_gather, NULL, true, false},
	{"gradcomp_coder_reduce_scatter", coder_scatter, NULL, NULL, true, false},
	{"gradcomp_parallel_create", parallel_create, NULL, NULL, false, false},
	{"gradcomp_parallel_apply", parallel_apply, check_parallel, NULL, false, true},
	{"gradcomp_dataset_create and _free", dataset, check_dataset, NULL, false, false},
};

static void *die(void *arg)
{
	const double *until = arg;
	double left = *until - process_now();
	if (left > 0)
		usleep((useconds_t)(left * 1e6));
	raise(SIGKILL);
	return NULL;
}

static void arm(double seconds, double late)
{
	static double until;
	pthread_t thread;
	until = process_now() + (seconds > 1e-3 ? seconds - 1e-3 + late * 1e-3 : late * seconds);
	pthread_create(&thread, NULL, die, &until);
}

/* Returns the least time: calls that another rank kept waiting took longer. */
static double quickest(const program *p)
{
	double least = 1;
	for (int i = 0; i < TIMED; i++)
		least = p->took[i] < least ? p->took[i] : least;
	return least;
}

static void drop_others(program *p)
{
	gradcomp_coder_free(p->coder);
	gradcomp_parallel_free(p->parallel);
	p->coder = NULL;
	p->parallel = NULL;
}

static gradcomp_status make_others(program *p, gradcomp_error *err)
{
	gradcomp_status st = p->kind->coder && !p->ending ? make_coder(p, err) : GRADCOMP_OK;
	return st || !p->kind->parallel || p->ending ? st : make_parallel(p, err);
}

static gradcomp_status recover(program *p, int i, int *done, void **made, gradcomp_error *err)
{
	gradcomp_status st;
	bool first = true;
	do {
		gradcomp_survivors who = {.struct_size = sizeof who};
		drop_others(p);
		st = gradcomp_job_shrink(p->job, &who, err);
		if (st)
			return st;
		if (first) {
			*done = who.step_done;
			*made = who.made;
			/* Those whom the last call has told that it is done are at their end, and make nothing. */
			p->ending |= i == CALLS - 1 && *done;
		}
		first = false;
		p->me = who.rank;
		p->n = who.nranks;
		st = make_others(p, err);
	} while (st == GRADCOMP_ERR_PEER_LOST);
	return st;
}

/* One call, until it is done. */
static gradcomp_status one(program *p, int i, gradcomp_status (*call)(program *, int, gradcomp_error *),
                           gradcomp_error *err)
{
	gradcomp_status st;
	int done = 0;
	do {
		void *made = NULL;
		double began = process_now();
		/* One at a time, so that those that are left are never half of them. */
		for (int j = 0; j < plan.kills; j++)
			if (plan.who[j] == p->began && plan.call[j] <= i && p->n == RANKS - j && !p->dying) {
				p->dying = true;
				arm(quickest(p), plan.late[j]);
			}
		p->call_me = p->me;
		p->call_n = p->n;
		st = call(p, i, err);
		if (!st) {
			p->took[p->ncalls++ % TIMED] = process_now() - began;
			return st;
		}
		if (st != GRADCOMP_ERR_PEER_LOST)
			return st;
		st = recover(p, i, &done, &made, err);
		if (!st && made && call == create)
			p->made = made;
		if (!st && made && call == dataset)
			p->ds = made;
		p->s->done += !st && done;
		p->s->repeated += !st && !done;
		if (!st && !done && p->kind->voided)
			p->kind->voided(p, i);
	} while (!st && !done);
	return st;
}

static gradcomp_status last_step(program *p, int i, gradcomp_error *err)
{
	return p->made ? step_of(p, p->made, i, false, err) : GRADCOMP_OK;
}

/* Two states, of different steps. */
static gradcomp_status states(program *p, gradcomp_error *err)
{
	gradcomp_status st = gradcomp_reducer_save_shared(p->red, NULL, 0, &p->bytes, err);
	for (int k = 0; !st && k < STATES; k++) {
		p->state[k] = malloc(p->bytes);
		st = step(p, k, err);
		if (!st)
			st = gradcomp_reducer_save_shared(p->red, p->state[k], p->bytes, &p->bytes, err);
	}
	for (int k = 0; !st && k < STATES; k++) {
		st = gradcomp_reducer_load(p->red, p->state[k], p->bytes, err);
		p->arrays[k] = error_memory(p);
	}
	p->saved = malloc(p->bytes + 1);
	return st;
}

static const kind *tried;

static void body(gradcomp_job *job, int rank, process_board *board, void *room)
{
	static program p;
	seen *s = room;
	p = (program){.job = job,
	              .world = gradcomp_job_world(job),
	              .kind = tried,
	              .began = rank,
	              .me = rank,
	              .n = RANKS,
	              .s = s};
	s->hash = 1;
	s->status = reducer(&p, &p.red, &s->err);
	if (!s->status)
		s->status = states(&p, &s->err);
	if (!s->status)
		s->status = make_others(&p, &s->err);
	pthread_barrier_wait(&board->barrier);
	for (int i = 0; !s->status && i < CALLS; i++) {
		s->status = one(&p, i, tried->call, &s->err);
		if (!s->status && tried->check)
			tried->check(&p, i);
	}
	/* Others may have ended when this rank is told that the barrier is done. */
	p.ending = true;
	if (!s->status)
		s->status = one(&p, CALLS, last_step, &s->err);
	if (!s->status)
		s->status = one(&p, CALLS, barrier, &s->err);
	drop_others(&p);
	gradcomp_reducer_free(p.red);
	gradcomp_reducer_free(p.made);
	for (int k = 0; k < STATES; k++)
		free(p.state[k]);
	free(p.saved);
	s->nranks = p.n;
	s->finished = !s->status;
	s->ended = process_now();
	if (plan.at_end && plan.who[0] == rank)
		arm(1e-3, plan.late[0]);
}

static unsigned state;

static int chance(int n)
{
	state = state * 1103515245u + 12345u;
	return (int)((state >> 8) % (unsigned)n);
}

static bool killed(int rank)
{
	bool is = false;
	for (int j = 0; j < plan.kills; j++)
		is |= plan.who[j] == rank;
	return is;
}

static void draw(int kills)
{
	int order[RANKS];
	memset(&plan, 0, sizeof plan);
	plan.kills = kills;
	for (int r = 0; r < RANKS; r++)
		order[r] = r;
	for (int j = 0; j < kills; j++) {
		int k = j + chance(RANKS - j), was = order[j];
		order[j] = order[k];
		order[k] = was;
		plan.who[j] = order[j];
		plan.call[j] = GAP * (j + 1) - 2 + chance(3);
		plan.late[j] = chance(1250) * 1e-3;
	}
}

static struct {
	int done, repeated, mixed;
	double longest;
} counted;

static int run(void)
{
	char wait[40];
	const char *settings[] = {plugin_path_setting(),  "gradcomp.on_failure=shrink",
	                          "transport.timeout=10", wait,
	                          "gradcomp.log=error",   NULL};
	snprintf(wait, sizeof wait, "transport.wait_timeout=%d", WAIT_TIMEOUT);
	double began = process_now();
	process_board *b = run_processes(RANKS, settings, body, sizeof(seen));
	double took = process_now() - began;
	const seen *first = NULL;
	int good = took < WAIT_TIMEOUT;
	for (int r = 0; r < RANKS; r++) {
		const seen *s = process_room(b, r);
		if (killed(r))
			continue;
		first = first ? first : s;
		/* It is nothing to a rank that leaves if another one has gone. */
		good &= s->finished && !s->wrong && s->hash == first->hash &&
		        (b->slot[r].left || strstr(b->slot[r].error.text, " died ("));
		counted.done += s->done;
		counted.repeated += s->repeated;
	}
	for (int r = 0; !good && r < RANKS; r++) {
		const seen *s = process_room(b, r);
		printf("# rank %d%s: finished %d, status %d, %d ranks, wrong %d, hash %llx, done %d, repeated %d, left %d, exit %x: %s%s\n",
		       r, killed(r) ? " (killed)" : "", s->finished, s->status, s->nranks, s->wrong,
		       (unsigned long long)s->hash, s->done, s->repeated, b->slot[r].left, b->slot[r].status,
		       s->err.text, b->slot[r].error.text);
	}
	if (!good)
		for (int j = 0; j < plan.kills; j++)
			printf("# kill %d: rank %d in call %d\n", j, plan.who[j], plan.call[j]);
	if (took > counted.longest)
		counted.longest = took;
	end_processes(b);
	return good;
}

/* Against the manual: rank 0 goes on where the others repeat a call. */
static void apart(gradcomp_job *job, int rank, process_board *board, void *room)
{
	static program p;
	seen *s = room;
	(void)board;
	p = (program){.job = job, .world = gradcomp_job_world(job), .kind = tried, .me = rank, .n = 3, .s = s};
	s->status = reducer(&p, &p.red, &s->err);
	if (!s->status)
		s->status = states(&p, &s->err);
	while (!s->status)
		s->status = rank ? save(&p, 0, &s->err) : step(&p, 0, &s->err);
	gradcomp_reducer_free(p.red);
	for (int k = 0; k < STATES; k++)
		free(p.state[k]);
	free(p.saved);
	s->ended = process_now();
}

static void overdue(void)
{
	const char *settings[] = {plugin_path_setting(),      "gradcomp.on_failure=shrink", "transport.timeout=4",
	                          "transport.wait_timeout=4", "gradcomp.log=error",         NULL};
	double began = process_now();
	process_board *b = run_processes(3, settings, apart, sizeof(seen));
	for (int r = 0; r < 3; r++) {
		const seen *s = process_room(b, r);
		is_int(s->status, GRADCOMP_ERR_TIMEOUT,
		       "ranks in different calls: rank %d ends after transport.wait_timeout", r);
		like(s->err.text, "which is alive but takes no part", "and says for whom it has waited");
	}
	ok(in_time(process_now() - began - 4, 2), "that is all it takes: %.1f s", process_now() - began);
	end_processes(b);
}

int main(void)
{
	const char *kills = getenv("TEST_KILLS"), *seed = getenv("TEST_SEED"), *only = getenv("TEST_ONLY");
	int runs = ((kills ? atoi(kills) : 20) + KILLS - 1) / KILLS;
	state = seed ? (unsigned)atoi(seed) : 20261127;
	for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++) {
		int good = 0;
		if (only && !strstr(kinds[k].name, only))
			continue;
		tried = &kinds[k];
		memset(&counted, 0, sizeof counted);
		for (int i = 0; i < runs; i++) {
			draw(KILLS);
			good += run();
		}
		is_int(good, runs, "%s: %d ranks are killed at its end, and the others agree what is done", tried->name,
		       runs * KILLS);
		printf("# failed where it was done: %d, repeated: %d, longest run %.2f s\n", counted.done,
		       counted.repeated, counted.longest);
	}
	tried = &kinds[4];
	int good = 0;
	for (int i = 0; i < runs * KILLS; i++) {
		draw(1);
		plan.call[0] = CALLS + 1;
		plan.at_end = true;
		good += run();
	}
	is_int(good, runs * KILLS, "gradcomp_job_free: %d ranks are killed at its end, and the others leave",
	       runs * KILLS);
	overdue();
	return done_testing();
}
