/* The threads that reducers of a job share: two serve any number of reducers, whatever waits for
 * what meanwhile; work that is due begins though every thread is held up; each wake is followed by a
 * turn. Then with reducers: ranks that give those of several groups in opposite orders, and callbacks that wait
 * for another reducer. */
#include "tests/support/pace.h"
#include "tests/support/small_model.h"
#include "tests/support/test_random.h"

#include "reducer/progress.h"

#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <stdatomic.h>
#include <sys/syscall.h>

enum { MANY = 20 };

/* The kernel shows a thread for a moment after it has been joined. */
static int threads_here(void)
{
	int n = 0;
	DIR *d = opendir("/proc/self/task");
	while (d && readdir(d))
		n++;
	if (d)
		closedir(d);
	return n - 2;
}

static void nap(double seconds)
{
	struct timespec t = {(time_t)seconds, (long)((seconds - (double)(time_t)seconds) * 1e9)};
	nanosleep(&t, NULL);
}

/* Until *v is n, for so many seconds of an idle machine. */
static int comes_to(atomic_int *v, int n, double seconds)
{
	double began = clock_now(), limit = seconds;
	while (atomic_load(v) != n && (clock_now() - began < limit || clock_now() - began < (limit = seconds * pace())))
		nap(0.0002);
	return atomic_load(v) == n;
}

static int threads_come_to(int n)
{
	double began = clock_now();
	while (threads_here() != n && (clock_now() - began < 5 || clock_now() - began < 5 * pace()))
		nap(0.001);
	return threads_here() == n;
}

typedef struct held {
	progress_client client;
	atomic_int *inside, *open; /* all: turns begun; may end */
	atomic_int turns[PROGRESS_KINDS], at_once, most;
	atomic_int asked, seen; /* PROGRESS_EXCHANGE's */
} held;

static void turn(held *h, progress_kind kind)
{
	int at_once = atomic_fetch_add(&h->at_once, 1) + 1;
	/* One of each kind at most. */
	if (at_once > atomic_load(&h->most))
		atomic_store(&h->most, at_once);
	atomic_store(&h->seen, atomic_load(&h->asked));
	if (h->inside) {
		atomic_fetch_add(h->inside, 1);
		while (!atomic_load(h->open))
			nap(0.0005);
	}
	atomic_fetch_sub(&h->at_once, 1);
	atomic_fetch_add(&h->turns[kind], 1);
}

static void computes(void *ctx)
{
	turn(ctx, PROGRESS_COMPUTE);
}

static void exchanges(void *ctx)
{
	turn(ctx, PROGRESS_EXCHANGE);
}

static void join(held *h, gradcomp_job *job)
{
	gradcomp_error err = {0};
	h->client.turn[PROGRESS_COMPUTE] = computes;
	h->client.turn[PROGRESS_EXCHANGE] = exchanges;
	h->client.ctx = h;
	ok(!progress_join(&h->client, job, &err), "joins: %s", err.text);
}

/* Each waits until all have begun, of the one kind or of both. */
static void all_blocked(gradcomp_job *job, int first_kind)
{
	static held h[MANY];
	atomic_int inside = 0, open = 0;
	int before = threads_here(), kinds = PROGRESS_KINDS - first_kind;
	memset(h, 0, sizeof h);
	for (int i = 0; i < MANY; i++) {
		h[i].inside = &inside;
		h[i].open = &open;
		join(&h[i], job);
	}
	for (int k = first_kind; k < PROGRESS_KINDS; k++)
		for (int i = 0; i < MANY; i++)
			progress_wake(&h[i].client, (progress_kind)k);
	int all = comes_to(&inside, kinds * MANY, 20);
	ok(all, "%d turns of %d begin though none ends", atomic_load(&inside), kinds * MANY);
	atomic_store(&open, 1);
	for (int i = 0; i < MANY; i++)
		progress_leave(&h[i].client, job);
	ok(threads_come_to(before) && !job->progress, "and none of their threads is left");
}

static void one_at_a_time(gradcomp_job *job)
{
	static held h[MANY];
	int before = threads_here(), most = 0, lost = 0, overlap = 0;
	memset(h, 0, sizeof h);
	for (int i = 0; i < MANY; i++)
		join(&h[i], job);
	for (int step = 0; step < 50; step++)
		for (int i = 0; i < MANY; i++) {
			int n = atomic_load(&h[i].turns[PROGRESS_EXCHANGE]);

			atomic_fetch_add(&h[i].asked, 1);
			progress_wake(&h[i].client, PROGRESS_COMPUTE);
			progress_wake(&h[i].client, PROGRESS_EXCHANGE);
			lost += !comes_to(&h[i].turns[PROGRESS_EXCHANGE], n + 1, 10);
			if (threads_here() - before > most)
				most = threads_here() - before;
		}
	ok(!lost, "%d of %d wakes were followed by no turn", lost, 50 * MANY);
	/* The third looks whether two are held up, when others have work before they have come back. */
	ok(most == 2 || most == 3, "%d reducers that take turns have %d threads", MANY, most);
	/* They come as fast as they can: the last request is seen. */
	for (int n = 0; n < 20000; n++) {
		held *c = &h[draw_up_to(MANY) - 1];

		atomic_fetch_add(&c->asked, 1);
		progress_wake(&c->client, PROGRESS_EXCHANGE);
	}
	for (int i = 0; i < MANY; i++) {
		lost += !comes_to(&h[i].seen, atomic_load(&h[i].asked), 10);
		overlap += atomic_load(&h[i].most) > PROGRESS_KINDS;
	}
	ok(!lost && !overlap, "20,000 at random: %d lost, %d reducers had two turns of a kind", lost, overlap);
	for (int i = 0; i < MANY; i++)
		progress_leave(&h[i].client, job);
	ok(threads_come_to(before), "none is left");
}

static void by_the_clock(gradcomp_job *job)
{
	held h = {0};
	join(&h, job);
	double began = clock_now();
	progress_at(&h.client, began + 0.05);
	ok(comes_to(&h.turns[PROGRESS_EXCHANGE], 1, 10) && clock_now() - began >= 0.049,
	   "a turn at a time, not before it");
	nap(0.1);
	ok(atomic_load(&h.turns[PROGRESS_EXCHANGE]) == 1, "and once");
	progress_at(&h.client, clock_now() + 0.05);
	progress_at(&h.client, 0);
	nap(0.1);
	ok(atomic_load(&h.turns[PROGRESS_EXCHANGE]) == 1, "not when it was taken back");
	progress_at(&h.client, clock_now() + 0.05);
	progress_at(&h.client, clock_now() + 1000);
	ok(comes_to(&h.turns[PROGRESS_EXCHANGE], 2, 10), "at the earlier of two times");
	progress_leave(&h.client, job);
}

static void spares_end(gradcomp_job *job)
{
	held h[3] = {0};
	atomic_int inside = 0, open = 0;
	int before = threads_here();
	for (int i = 0; i < 3; i++) {
		h[i].inside = &inside;
		h[i].open = &open;
		join(&h[i], job);
		progress_wake(&h[i].client, PROGRESS_EXCHANGE);
	}
	ok(comes_to(&inside, 3, 20) && threads_here() - before >= 3,
	   "three that wait for each other have three threads");
	atomic_store(&open, 1);
	ok(threads_come_to(before + 2), "of which two stay");
	for (int i = 0; i < 3; i++)
		progress_leave(&h[i].client, job);
}

typedef struct ordered {
	gradcomp_group *group;
	gradcomp_reducer *reducer;
	float *x;
	atomic_int *wait_for; /* its callback waits until that is 1 */
	atomic_int done;
	int stuck;
} ordered;

enum { NUMBERS = 50000, ROUNDS = 4 };

static void told(void *ctx, uint32_t tensor, gradcomp_status status, const gradcomp_error *err)
{
	ordered *o = ctx;
	(void)tensor, (void)err;
	if (o->wait_for && !status && !comes_to(o->wait_for, 1, 30))
		o->stuck++;
	atomic_store(&o->done, 1);
}

typedef struct outcome {
	int failed[MAX_RANKS], wrong[MAX_RANKS], stuck[MAX_RANKS];
	int threads[2];
} outcome;

/* Every rank gives its reducers in an order of its own, each whole before the next: of the world and of pairs. */
static void opposite(gradcomp_job *job, int rank, int P, void *arg)
{
	outcome *out = arg;
	static const uint64_t dims[1] = {NUMBERS};
	ordered o[MANY] = {0};
	gradcomp_error err = {0};
	gradcomp_tensor_desc desc = {.name = "w", .dims = dims, .ndim = 1};
	gradcomp_status st = GRADCOMP_OK;
	for (int i = 0; !st && i < MANY; i++) {
		gradcomp_reducer_options options = {
			.struct_size = sizeof options, .compressor = "none", .done = told, .ctx = &o[i]};
		int half = i % 3 == 2;

		if (half)
			st = gradcomp_group_split(gradcomp_job_world(job), rank * 2 / P, rank, &o[i].group, &err);
		if (!st)
			st = gradcomp_reducer_create(half ? o[i].group : gradcomp_job_world(job), &desc, 1, &options,
			                             &o[i].reducer, &err);
		o[i].x = calloc(NUMBERS, sizeof(float));
		ranks_wait();
		if (!rank && (!i || i == MANY - 1))
			out->threads[!!i] = threads_here();
		ranks_wait();
	}
	for (int step = 0; !st && step < ROUNDS; step++) {
		/* The first told waits for the last. */
		int first = (rank * 7 + step) % MANY, forward = rank % 2;

		for (int i = 0; i < MANY; i++) {
			atomic_store(&o[i].done, 0);
			o[i].wait_for = NULL;
			for (int k = 0; k < NUMBERS; k++)
				o[i].x[k] = (float)(rank + step * i);
		}
		o[first].wait_for = &o[(first + 1) % MANY].done;
		for (int k = 0; !st && k < MANY; k++) {
			int i = forward ? (first + k) % MANY : (first + MANY - k) % MANY;

			st = gradcomp_reducer_ready(o[i].reducer, 0, o[i].x, &err);
		}
		for (int i = 0; !st && i < MANY; i++) {
			int low = 0, high = P;

			st = gradcomp_reducer_wait(o[i].reducer, &err);
			if (o[i].group) {
				low = rank * 2 / P ? (P + 1) / 2 : 0;
				high = rank * 2 / P ? P : (P + 1) / 2;
			}
			for (int k = 0; !st && k < NUMBERS; k += 997)
				out->wrong[rank] += o[i].x[k] != (float)(low + high - 1) / 2 + (float)(step * i);
		}
	}
	if (st)
		printf("# rank %d: %s\n", rank, err.text);
	out->failed[rank] = st;
	for (int i = 0; i < MANY; i++) {
		out->stuck[rank] += o[i].stuck;
		gradcomp_reducer_free(o[i].reducer);
		gradcomp_group_free(o[i].group);
		free(o[i].x);
	}
}

static void orders(int P)
{
	const char *settings[] = {plugin_path_setting(), NULL};
	outcome out = {0};
	int failed = 0, wrong = 0, stuck = 0;
	run_ranks(P, settings, opposite, &out);
	for (int r = 0; r < P; r++) {
		failed += out.failed[r] != GRADCOMP_OK;
		wrong += out.wrong[r];
		stuck += out.stuck[r];
	}
	ok(!failed && !wrong && !stuck,
	   "%d ranks, %d reducers of three groups in orders of their own: %d failed, %d wrong, %d callbacks stuck", P,
	   MANY, failed, wrong, stuck);
	ok(out.threads[0] == out.threads[1], "%d threads with one reducer a rank, %d with %d", out.threads[0],
	   out.threads[1], MANY);
}

/* The spare thread waits in its pthread_cond_timedwait() for `spare_goes`, and then has been idle for long. */
static _Thread_local bool spare, idle_for_long;
static atomic_int spare_waits, spare_goes, joined_itself;

int pthread_cond_timedwait(pthread_cond_t *cond, pthread_mutex_t *lock, const struct timespec *until)
{
	static int (*real)(pthread_cond_t *, pthread_mutex_t *, const struct timespec *);
	if (!real)
		*(void **)&real = dlsym(RTLD_NEXT, "pthread_cond_timedwait");
	if (!spare)
		return real(cond, lock, until);
	pthread_mutex_unlock(lock);
	atomic_store(&spare_waits, 1);
	while (!atomic_load(&spare_goes))
		nap(0.0005);
	pthread_mutex_lock(lock);
	spare = false;
	idle_for_long = true;
	return ETIMEDOUT;
}

int clock_gettime(clockid_t id, struct timespec *ts)
{
	int rc = (int)syscall(SYS_clock_gettime, id, ts);
	ts->tv_sec += idle_for_long ? 60 : 0;
	idle_for_long = false;
	return rc;
}

int pthread_join(pthread_t thread, void **out)
{
	static int (*real)(pthread_t, void **);
	if (pthread_equal(thread, pthread_self())) {
		atomic_fetch_add(&joined_itself, 1);
		return EDEADLK;
	}
	if (!real)
		*(void **)&real = dlsym(RTLD_NEXT, "pthread_join");
	return real(thread, out);
}

static void becomes_spare(void *ctx)
{
	spare = true;
	computes(ctx);
}

static void ends_at_work(gradcomp_job *job)
{
	static held h[2];
	atomic_int inside = 0, open = 0;
	held *other = &h[1];
	memset(h, 0, sizeof h);
	h[0].inside = &inside;
	h[0].open = &open;
	join(&h[0], job);
	join(other, job);
	other->client.turn[PROGRESS_COMPUTE] = becomes_spare;
	progress_wake(&h[0].client, PROGRESS_COMPUTE);
	progress_wake(&h[0].client, PROGRESS_EXCHANGE);
	int held_up = comes_to(&inside, 2, 20);
	progress_wake(&other->client, PROGRESS_COMPUTE);
	ok(held_up && comes_to(&spare_waits, 1, 20), "two threads are held up, and a third has nothing more to do");
	other->client.turn[PROGRESS_COMPUTE] = computes;
	atomic_store(&open, 1);
	ok(comes_to(&h[0].at_once, 0, 20), "the two go on");
	atomic_store(&open, 0);
	progress_wake(&h[0].client, PROGRESS_EXCHANGE);
	held_up = comes_to(&inside, 3, 20);
	progress_wake(&h[0].client, PROGRESS_COMPUTE);
	held_up = held_up && comes_to(&inside, 4, 20);
	/* It is to begin when the turn under way has been so for a while. */
	progress_wake(&other->client, PROGRESS_COMPUTE);
	atomic_store(&spare_goes, 1);
	ok(held_up && comes_to(&other->turns[PROGRESS_COMPUTE], 2, 20), "what comes when the third ends is done");
	is_int(atomic_load(&joined_itself), 0, "and no thread joins itself");
	atomic_store(&open, 1);
	progress_leave(&h[0].client, job);
	progress_leave(&other->client, job);
}

int main(void)
{
	gradcomp_job job = {0};
	pthread_mutex_init(&job.lock, NULL);
	/* A sanitizer's thread comes with the first one, before threads are counted. */
	by_the_clock(&job);
	one_at_a_time(&job);
	all_blocked(&job, PROGRESS_EXCHANGE);
	all_blocked(&job, PROGRESS_COMPUTE);
	spares_end(&job);
	ends_at_work(&job);
	pthread_mutex_destroy(&job.lock);
	orders(2);
	orders(4);
	return done_testing();
}
