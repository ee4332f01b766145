/* Ranks that are killed or stopped at random moments, in a job that may go on without them: those
 * that are left train on, with the same weights, and nothing that was owed is touched by a step that is void. */
#include "tests/support/pace.h"
#include "tests/support/process_ranks.h"
#include "tests/support/thread_ranks.h"

#include <math.h>
#include <signal.h>

enum { MOST = 64, TENSORS = 5, STEPS = 40, NUMEL = 977, RUNS = 12 };

typedef struct seen {
	double killed, told, agreed; /* seconds */
	int status, finished, shrinks, epoch, nranks, rank, wrong;
	long long steps;
	float w[TENSORS * NUMEL];
	gradcomp_error err;
} seen;

static struct {
	int victims, who[3];
	double at[3];     /* seconds after the first step */
	int in_shrink[3]; /* counted from when it calls shrink instead */
	int stop;         /* who[0] is stopped, not killed, and comes back */
	int watched;      /* another thread asks for the counters all the time */
	const char *compressor, *collective;
	int steps;
} plan;

static double limit_of_agreement;

typedef struct death {
	double seconds;
	seen *s;
} death;

static void *die(void *arg)
{
	const death *d = arg;
	usleep((useconds_t)(d->seconds * 1e6));
	d->s->killed = process_now();
	raise(plan.stop ? SIGSTOP : SIGKILL);
	return NULL;
}

static int victim(int rank)
{
	for (int i = 0; i < plan.victims; i++)
		if (plan.who[i] == rank)
			return i;
	return -1;
}

/* Exact in floats however many ranks there are. */
static float gradient(int rank, long long step, int i)
{
	return (float)((rank * 7 + step * 13 + i * 3) % 64 - 31);
}

/* The arrays of a saved state are its last bytes, of compressors without a state of their own. */
static void *arrays(gradcomp_reducer *r, uint64_t *bytes, seen *s)
{
	unsigned char *p;
	if (gradcomp_reducer_save(r, NULL, 0, bytes, &s->err))
		return NULL;
	p = malloc(*bytes);
	if (gradcomp_reducer_save(r, p, *bytes, bytes, &s->err)) {
		free(p);
		return NULL;
	}
	return p;
}

static int same_arrays(const unsigned char *a, uint64_t na, const unsigned char *b, uint64_t nb)
{
	uint64_t n = sizeof(float) * TENSORS * NUMEL;
	return a && b && na >= n && nb >= n && !memcmp(a + na - n, b + nb - n, n);
}

/* The one that was stopped goes on, when the others have trained without it, and is heard. */
static void wake(process_board *board)
{
	const seen *s = process_room(board, plan.who[0]);
	double until = process_now() + 30 * pace();
	while (!s->status && process_now() < until) {
		kill(board->slot[plan.who[0]].pid, SIGCONT);
		usleep(10000);
	}
}

typedef struct watcher {
	gradcomp_reducer *r;
	atomic_bool stop;
	int back; /* how often the counter of steps went back */
	pthread_t thread;
} watcher;

static void *watch(void *arg)
{
	watcher *w = arg;
	uint64_t steps = 0;
	while (!atomic_load(&w->stop)) {
		gradcomp_reducer_stats stats = {.struct_size = sizeof stats};
		gradcomp_reducer_get_stats(w->r, &stats);
		w->back += stats.steps < steps;
		steps = stats.steps;
		usleep(200);
	}
	return NULL;
}

static void body(gradcomp_job *job, int rank, process_board *board, void *room)
{
	static float grad[TENSORS][NUMEL];
	const uint64_t dims[1] = {NUMEL};
	gradcomp_tensor_desc desc[TENSORS];
	gradcomp_reducer_options o = {.struct_size = sizeof o,
	                              .compressor = plan.compressor,
	                              .collective = plan.collective,
	                              .bucket_bytes = 2 * NUMEL * sizeof(float)};
	seen *s = room;
	gradcomp_reducer *r;
	gradcomp_error err;
	int v = victim(rank), feedback = !strncmp(plan.compressor, "topk", 4);
	death d = {v < 0 ? 0 : plan.at[v], s};
	pthread_t killer;
	watcher w = {0};
	unsigned char *before = NULL;
	uint64_t nbefore = 0;
	for (int i = 0; i < TENSORS; i++)
		desc[i] = (gradcomp_tensor_desc){.dims = dims, .ndim = 1};
	s->status = gradcomp_reducer_create(gradcomp_job_world(job), desc, TENSORS, &o, &r, &s->err);
	if (s->status)
		return;
	/* All have made theirs. */
	pthread_barrier_wait(&board->barrier);
	w.r = r;
	if (plan.watched && pthread_create(&w.thread, NULL, watch, &w))
		w.r = NULL;
	if (v >= 0 && !plan.in_shrink[v])
		pthread_create(&killer, NULL, die, &d);
	while (s->steps < plan.steps) {
		gradcomp_status st = GRADCOMP_OK;
		int apply = 1;
		if (feedback) {
			void *now = arrays(r, &nbefore, s);
			if (now) {
				free(before);
				before = now;
			}
		}
		for (int i = TENSORS; i-- > 0 && !st;) {
			for (int k = 0; k < NUMEL; k++)
				grad[i][k] = gradient(rank, s->steps, i * NUMEL + k);
			st = gradcomp_reducer_ready(r, (uint32_t)i, grad[i], &err);
		}
		if (!st)
			st = gradcomp_reducer_wait(r, &err);
		while (st == GRADCOMP_ERR_PEER_LOST) {
			gradcomp_survivors who = {.struct_size = sizeof who};
			s->told = s->told > 0 ? s->told : process_now();
			if (v >= 0 && plan.in_shrink[v])
				pthread_create(&killer, NULL, die, &d);
			st = gradcomp_job_shrink(job, &who, &err);
			if (st)
				break;
			s->agreed = s->agreed > 0 ? s->agreed : process_now();
			s->shrinks++;
			s->epoch = (int)who.epoch;
			apply = who.step_done;
			if (!apply && feedback) {
				uint64_t n = 0;
				void *now = arrays(r, &n, s);
				/* Another may be lost at once; then this says nothing. */
				if (now && !same_arrays(now, n, before, nbefore))
					s->wrong++;
				free(now);
			}
		}
		if (st) {
			s->status = st;
			s->err = err;
			break;
		}
		for (int i = 0; apply && i < TENSORS * NUMEL; i++)
			s->w[i] -= grad[i / NUMEL][i % NUMEL] / 1024;
		s->steps += apply;
		gradcomp_reducer_stats stats = {.struct_size = sizeof stats};
		gradcomp_reducer_get_stats(r, &stats);
		s->wrong += stats.steps != (uint64_t)s->steps;
	}
	s->finished = !s->status;
	if (plan.stop && s->finished)
		wake(board);
	/* A rank that is done stays for those that have not heard yet that they are. */
	while (s->finished && gradcomp_barrier(gradcomp_job_world(job), &err) == GRADCOMP_ERR_PEER_LOST)
		if (gradcomp_job_shrink(job, NULL, &err))
			break;
	s->nranks = gradcomp_job_nranks(job);
	s->rank = gradcomp_job_rank(job);
	free(before);
	atomic_store(&w.stop, true);
	if (plan.watched && w.r)
		pthread_join(w.thread, NULL);
	s->wrong += w.back;
	gradcomp_reducer_free(r);
}

static int whole(const seen *s, const seen *first)
{
	return s->steps == plan.steps && !s->wrong && !memcmp(s->w, first->w, sizeof s->w);
}

/* Returns 1 when the living must be able to go on: whichever comes first, those lost were never too many. */
static int must_go_on(int P)
{
	int low = 0;
	for (int i = 0; i < plan.victims; i++)
		low |= plan.who[i] == 0;
	return 2 * plan.victims < P || (2 * plan.victims == P && !low && P == 2);
}

static const char *const timeouts[] = {"transport.timeout=20", "transport.wait_timeout=60"};

static int trial(int P, const char *name)
{
	char least[] = "gradcomp.min_ranks=1", silent[40];
	const char *settings[] = {plugin_path_setting(),
	                          "gradcomp.on_failure=shrink",
	                          least,
	                          timeouts[1],
	                          "gradcomp.log=error",
	                          silent,
	                          NULL};
	snprintf(silent, sizeof silent, "transport.timeout=%g", plan.stop ? 2 * pace() : 20);
	process_board *b = run_processes(P, settings, body, sizeof(seen));
	const seen *first = NULL;
	int finished = 0, good = 1, ended = 0;
	double worst = 0, killed = 0;
	for (int r = 0; r < P; r++) {
		const seen *s = process_room(b, r);
		finished += s->finished;
		first = s->finished && !first ? s : first;
		if (s->killed > 0 && (killed <= 0 || s->killed < killed))
			killed = s->killed;
	}
	for (int r = 0; r < P; r++) {
		const seen *s = process_room(b, r);
		if (s->finished) {
			good &= whole(s, first);
			worst = s->agreed - killed > worst && s->agreed > 0 ? s->agreed - killed : worst;
		} else if (victim(r) < 0) {
			ended++;
			good &= s->status == GRADCOMP_ERR_PEER && !must_go_on(P);
		}
	}
	if (must_go_on(P))
		good &= finished >= P - plan.victims;
	if (plan.stop) {
		const seen *s = process_room(b, plan.who[0]);
		char who[80];
		snprintf(who, sizeof who, "rank %d on ", plan.who[0]);
		good &= s->status == GRADCOMP_ERR_PEER && strstr(s->err.text, who) &&
		        strstr(s->err.text, "was given up by the others");
	}
	for (int r = 0; !good && r < P; r++) {
		const seen *s = process_room(b, r);
		printf("# rank %d%s: finished %d, status %d, steps %lld, epoch %d, %d ranks, wrong %d, exit %x: %s%s\n",
		       r, victim(r) < 0 ? "" : " (victim)", s->finished, s->status, s->steps, s->epoch, s->nranks,
		       s->wrong, b->slot[r].status, s->err.text,
		       s->finished && memcmp(s->w, first->w, sizeof s->w) ? ", OTHER WEIGHTS" : "");
	}
	printf("# %d ranks, %d lost, %s over %s: %d go on, %d end; agreed %.3f s after the first death\n", P,
	       plan.victims, plan.compressor, plan.collective, finished, ended, worst);
	limit_of_agreement = worst;
	end_processes(b);
	return tap_result(good, __FILE__, __LINE__, "%s", name);
}

static unsigned state;

static int chance(int n)
{
	state = state * 1103515245u + 12345u;
	return (int)((state >> 8) % (unsigned)n);
}

static void random_trial(int k)
{
	static const char *const compressors[] = {"none", "topk:density=0.1", "powersgd:rank=2"};
	static const char *const collectives[] = {"ring", "tree"};
	char name[80];
	int P = 2 + chance(8);
	memset(&plan, 0, sizeof plan);
	plan.steps = STEPS;
	plan.compressor = compressors[chance(3)];
	plan.collective = collectives[chance(2)];
	plan.victims = P > 3 && chance(3) == 0 ? 2 : 1;
	plan.who[0] = chance(P);
	plan.who[1] = (plan.who[0] + 1 + chance(P - 1)) % P;
	plan.at[0] = chance(60) * 1e-3;
	plan.in_shrink[1] = chance(3) > 0;
	plan.at[1] = plan.in_shrink[1] ? chance(40) * 1e-3 : chance(60) * 1e-3;
	plan.watched = k % 4 == 0;
	snprintf(name, sizeof name, "run %d: %d of %d ranks killed at random", k, plan.victims, P);
	trial(P, name);
}

static void stopped_trial(int P, int who)
{
	memset(&plan, 0, sizeof plan);
	plan.steps = STEPS;
	plan.compressor = "topk:density=0.1";
	plan.collective = "ring";
	plan.victims = plan.stop = 1;
	plan.who[0] = who;
	plan.at[0] = 2e-3;
	trial(P, "a rank that is stopped is left out, and refused by name when it comes back");
}

/* Tries what cannot go on without a rank: it is refused before it begins, or says so. */
static void refusing(gradcomp_job *job, int rank, process_board *board, void *room)
{
	seen *s = room;
	const uint64_t dims[1] = {NUMEL};
	gradcomp_tensor_desc desc = {.dims = dims, .ndim = 1};
	gradcomp_reducer_options o = {.struct_size = sizeof o, .compressor = "none", .delay = 1};
	gradcomp_reducer *r = NULL;
	gradcomp_group *half = NULL;
	(void)board, (void)rank;
	s->wrong += gradcomp_job_shrink(job, NULL, &s->err) != GRADCOMP_ERR_STATE ||
	            !strstr(s->err.text, "nothing has failed");
	s->wrong +=
		gradcomp_reducer_create(gradcomp_job_world(job), &desc, 1, &o, &r, &s->err) != GRADCOMP_ERR_UNSUPPORTED;
	o.delay = 0;
	o.compressor = "auto";
	s->wrong +=
		gradcomp_reducer_create(gradcomp_job_world(job), &desc, 1, &o, &r, &s->err) != GRADCOMP_ERR_UNSUPPORTED;
	s->wrong += gradcomp_group_split(gradcomp_job_world(job), 0, 0, &half, &s->err) != GRADCOMP_OK;
	o.compressor = "none";
	s->wrong += gradcomp_reducer_create(half, &desc, 1, &o, &r, &s->err) != GRADCOMP_ERR_UNSUPPORTED;
	gradcomp_group_free(half);
	s->wrong += gradcomp_barrier(gradcomp_job_world(job), &s->err) != GRADCOMP_OK;
	s->finished = 1;
}

static void refused(void)
{
	const char *settings[] = {plugin_path_setting(), "gradcomp.on_failure=shrink", "gradcomp.log=error", NULL};
	process_board *b = run_processes(2, settings, refusing, sizeof(seen));
	for (int r = 0; r < 2; r++) {
		const seen *s = process_room(b, r);
		ok(s->finished && !s->wrong && b->slot[r].left,
		   "rank %d: what cannot shrink is refused, and the job goes on: %s%s", r, s->err.text,
		   b->slot[r].error.text);
	}
	end_processes(b);
}

/* Steps in which nobody is lost: the same averages and the same error memory, to the bit, as in a job that may not
 * shrink; where a gradient is not finite, too. */
typedef struct twin {
	uint64_t hash[2]; /* those of averages, and of arrays by tensor */
} twin;
static const char *twin_compressor;

static uint64_t hash_of(uint64_t h, const void *p, size_t bytes)
{
	for (size_t i = 0; i < bytes; i++)
		h = (h ^ ((const unsigned char *)p)[i]) * 1099511628211u;
	return h;
}

static void twin_steps(gradcomp_job *job, int rank, process_board *board, void *room)
{
	static float grad[TENSORS][NUMEL];
	const uint64_t dims[1] = {NUMEL};
	gradcomp_tensor_desc desc[TENSORS];
	gradcomp_reducer_options o = {.struct_size = sizeof o,
	                              .compressor = twin_compressor,
	                              .collective = "ring",
	                              .bucket_bytes = 2 * NUMEL * sizeof(float)};
	seen *s = room;
	twin *t = (twin *)s->w;
	gradcomp_reducer *r;
	uint64_t n = 0;
	(void)board;
	for (int i = 0; i < TENSORS; i++)
		desc[i] = (gradcomp_tensor_desc){.dims = dims, .ndim = 1};
	s->status = gradcomp_reducer_create(gradcomp_job_world(job), desc, TENSORS, &o, &r, &s->err);
	if (s->status)
		return;
	t->hash[0] = t->hash[1] = 1;
	for (int step = 0; !s->status && step < 7; step++) {
		for (int i = TENSORS; i-- > 0 && !s->status;) {
			for (int k = 0; k < NUMEL; k++)
				grad[i][k] = gradient(rank, step, i * NUMEL + k);
			/* One bucket's, on one rank; then a sum that is not. */
			if (step == 3 && i == 2 && rank == 1)
				grad[i][5] = (float)NAN;
			if (step == 4 && i == 4)
				grad[i][7] = 3e38f;
			s->status = gradcomp_reducer_ready(r, (uint32_t)i, grad[i], &s->err);
		}
		if (!s->status)
			s->status = gradcomp_reducer_wait(r, &s->err);
		/* A NaN is a NaN. */
		for (int i = 0; i < TENSORS * NUMEL; i++)
			if (isnan(grad[i / NUMEL][i % NUMEL]))
				grad[i / NUMEL][i % NUMEL] = -1e30f;
		t->hash[0] = hash_of(t->hash[0], grad, sizeof grad);
		unsigned char *state = s->status ? NULL : arrays(r, &n, s);
		if (state && n >= sizeof grad)
			t->hash[1] = hash_of(t->hash[1], state + n - sizeof grad, sizeof grad);
		free(state);
	}
	s->finished = !s->status;
	gradcomp_reducer_free(r);
}

static void undisturbed(void)
{
	static const char *const compressors[] = {"topk:density=0.1", "block:bits=4",    "onebit",
	                                          "powersgd:rank=2",  "dgc:density=0.1", "block:bits=4,memory=i8"};
	for (size_t c = 0; c < sizeof compressors / sizeof *compressors; c++) {
		twin got[2][3];
		int fine = 1;
		twin_compressor = compressors[c];
		for (int how = 0; how < 2; how++) {
			const char *settings[] = {plugin_path_setting(),
			                          how ? "gradcomp.on_failure=shrink" : "gradcomp.on_failure=abort",
			                          "gradcomp.log=error", NULL};
			process_board *b = run_processes(3, settings, twin_steps, sizeof(seen));
			for (int r = 0; r < 3; r++) {
				const seen *s = process_room(b, r);
				if (!s->finished)
					printf("# rank %d: %s%s\n", r, s->err.text, b->slot[r].error.text);
				fine &= s->finished;
				memcpy(&got[how][r], s->w, sizeof got[how][r]);
			}
			end_processes(b);
		}
		for (int r = 0; r < 3; r++)
			fine &= got[0][r].hash[0] == got[1][r].hash[0] && got[0][r].hash[1] == got[1][r].hash[1];
		ok(fine, "%s: to be able to shrink changes no bit of averages and error memory", twin_compressor);
	}
}

static void alone(gradcomp_job *job, int rank, process_board *board, void *room)
{
	seen *s = room;
	(void)board;
	/* All have joined. */
	s->status = gradcomp_barrier(gradcomp_job_world(job), &s->err);
	if (rank == 1)
		raise(SIGKILL);
	while (!s->status)
		s->status = gradcomp_barrier(gradcomp_job_world(job), &s->err);
	s->wrong = s->status != GRADCOMP_ERR_PEER_LOST;
	s->status = gradcomp_job_shrink(job, NULL, &s->err);
}

/* Rank 1 dies where the others are in a call that is none of a step's. */
enum { SPLITS, SAVES, LOADS, BROADCASTS, CALLS };
static const char *const call_names[] = {"gradcomp_group_split", "gradcomp_reducer_save_shared",
                                         "gradcomp_reducer_load", "gradcomp_broadcast"};
static int in_call;

static gradcomp_status call(gradcomp_job *job, gradcomp_reducer *r, unsigned char *state, uint64_t bytes,
                            gradcomp_error *err)
{
	gradcomp_group *group = NULL;
	gradcomp_status st;
	uint64_t n = 0;
	switch (in_call) {
	case SPLITS:
		st = gradcomp_group_split(gradcomp_job_world(job), 0, 0, &group, err);
		gradcomp_group_free(group);
		return st;
	case SAVES:
		return gradcomp_reducer_save_shared(r, state, bytes, &n, err);
	case LOADS:
		return gradcomp_reducer_load(r, state, bytes, err);
	default:
		return gradcomp_broadcast(gradcomp_job_world(job), state, bytes, GRADCOMP_U8, 0, err);
	}
}

static void calling(gradcomp_job *job, int rank, process_board *board, void *room)
{
	seen *s = room;
	const uint64_t dims[1] = {NUMEL};
	gradcomp_tensor_desc desc = {.dims = dims, .ndim = 1};
	gradcomp_reducer_options o = {.struct_size = sizeof o, .compressor = "topk:density=0.1"};
	gradcomp_survivors who = {.struct_size = sizeof who};
	gradcomp_reducer *r = NULL;
	unsigned char *state = NULL;
	uint64_t bytes = 0;
	s->status = gradcomp_reducer_create(gradcomp_job_world(job), &desc, 1, &o, &r, &s->err);
	if (!s->status)
		s->status = gradcomp_reducer_save_shared(r, NULL, 0, &bytes, &s->err);
	state = malloc(bytes + 1);
	if (!s->status)
		s->status = gradcomp_reducer_save_shared(r, state, bytes, &bytes, &s->err);
	pthread_barrier_wait(&board->barrier);
	for (int k = 0; !s->status; k++) {
		if (rank == 1 && k == 3)
			raise(SIGKILL);
		s->status = call(job, r, state, bytes, &s->err);
	}
	s->wrong = s->status != GRADCOMP_ERR_PEER_LOST || !strstr(s->err.text, "rank 1 on ");
	if (!s->wrong)
		s->finished = !gradcomp_job_shrink(job, &who, &s->err) && who.nranks == 2 && who.lost[0] == 1 &&
		              !call(job, r, state, bytes, &s->err);
	gradcomp_reducer_free(r);
	free(state);
}

static void in_calls(void)
{
	const char *settings[] = {plugin_path_setting(), "gradcomp.on_failure=shrink", "gradcomp.log=error", NULL};
	for (in_call = 0; in_call < CALLS; in_call++) {
		process_board *b = run_processes(3, settings, calling, sizeof(seen));
		for (int r = 0; r < 3; r += 2) {
			const seen *s = process_room(b, r);
			ok(s->finished && !s->wrong,
			   "a rank is lost in %s: rank %d is told who, and goes on: status %d, %s", call_names[in_call],
			   r, s->status, s->err.text);
		}
		end_processes(b);
	}
}

static void too_few(void)
{
	const char *settings[] = {plugin_path_setting(), "gradcomp.on_failure=shrink", "gradcomp.min_ranks=3",
	                          "gradcomp.log=error", NULL};
	process_board *b = run_processes(3, settings, alone, sizeof(seen));
	for (int r = 0; r < 3; r += 2) {
		const seen *s = process_room(b, r);
		is_int(s->status, GRADCOMP_ERR_PEER, "fewer than gradcomp.min_ranks: rank %d ends", r);
		like(s->err.text, "2 ranks are left, gradcomp.min_ranks is 3", "and says why");
	}
	end_processes(b);
}

int main(void)
{
	const char *runs = getenv("TEST_RUNS"), *seed = getenv("TEST_SEED"), *ranks = getenv("TEST_RANKS");
	state = seed ? (unsigned)atoi(seed) : 20261123;
	if (ranks) {
		plan.steps = STEPS;
		plan.compressor = "topk:density=0.1";
		plan.collective = "ring";
		plan.victims = 1;
		plan.who[0] = atoi(ranks) / 2;
		plan.at[0] = 0.5;
		trial(atoi(ranks), "one of many ranks is killed");
		return done_testing();
	}
	for (int k = 0; k < (runs ? atoi(runs) : RUNS); k++)
		random_trial(k);
	stopped_trial(4, 2);
	stopped_trial(3, 0);
	undisturbed();
	refused();
	in_calls();
	too_few();
	return done_testing();
}
