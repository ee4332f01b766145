/* How fast ranks add and copy when all of a node are at it, and how much slower they are while
 * their program computes, or bytes move: threads may share cores. */
#include "tools/probe.h"

#include "tools/bench.h"
#include "gradcomp/plugin.h"

#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

/* More than fits a cache, so that memory counts; pieces for what is done beside others. */
enum { NUMBERS = 4 << 20, PIECE = 256 << 10, MESSAGE = 256 << 10 };

typedef struct speeds {
	probe *p;
	float *x, *y;
	const gradcomp_links *links; /* the world's; NULL: one rank */
	char *room;                  /* two messages */
	atomic_int stop;
	void (*work)(struct speeds *); /* whose pace is taken */
	int rounds;
	gradcomp_status status; /* the exchanges' status */
	gradcomp_error error;
} speeds;

static void add(speeds *s, uint64_t n)
{
	gradcomp_host_operators()->reduce(NULL, s->x, s->y, n, GRADCOMP_F32, GRADCOMP_SUM);
}

static void copy(speeds *s, uint64_t n)
{
	memcpy(s->x, s->y, n * sizeof(float));
	/* Or it would not be done. */
	__asm__ volatile("" : : "r"(s->x) : "memory");
}

/* Seconds a byte. */
static gradcomp_status rate(speeds *s, void (*what)(speeds *, uint64_t), double seconds, double *out,
                            gradcomp_error *err)
{
	probe_samples t = {.most = seconds};
	gradcomp_status st = GRADCOMP_OK;
	what(s, NUMBERS);
	while (!st && probe_wants(&t)) {
		st = probe_barrier(s->p, err);
		double start = clock_now();
		what(s, NUMBERS);
		double took = clock_now() - start;
		if (!st)
			st = probe_slowest(s->p, &took, err);
		probe_add(&t, took);
	}
	*out = probe_median(&t) / (NUMBERS * sizeof(float));
	return st;
}

/* Runs a piece of a compressor's work, and of a program's. */
static void add_piece(speeds *s)
{
	add(s, PIECE);
}

static void compute_piece(speeds *s)
{
	volatile double x = 1;
	(void)s;
	for (int i = 0; i < 1000; i++)
		x = x * 1.0000001 + 1e-9;
}

static void *compute(void *ctx)
{
	speeds *s = ctx;
	while (!atomic_load_explicit(&s->stop, memory_order_relaxed))
		compute_piece(s);
	return NULL;
}

static void *compress(void *ctx)
{
	/* Numbers of its own: nobody waits for these. */
	speeds own = {.x = calloc(2, PIECE * sizeof(float))}, *s = ctx;
	own.y = own.x ? own.x + PIECE : NULL;
	while (own.x && !atomic_load_explicit(&s->stop, memory_order_relaxed))
		add_piece(&own);
	free(own.x);
	return NULL;
}

static void *exchange(void *ctx)
{
	speeds *s = ctx;
	const gradcomp_links *l = s->links;
	int P = l->nranks;
	for (int i = 0; !s->status && i < s->rounds; i++) {
		gradcomp_request came, went;
		s->status = l->recv(l->ctx, (l->rank + P - 1) % P, s->room + MESSAGE, MESSAGE, &came, &s->error);
		if (!s->status)
			s->status = l->send(l->ctx, (l->rank + 1) % P, s->room, MESSAGE, &went, &s->error);
		if (!s->status)
			s->status = l->wait(l->ctx, &came, &s->error);
		if (!s->status)
			s->status = l->wait(l->ctx, &went, &s->error);
	}
	atomic_store(&s->stop, 1);
	return NULL;
}

/* Pieces a second of this thread, for so long or until the other one stops. */
static double pace(speeds *s, double seconds)
{
	double start = clock_now(), now;
	long pieces = 0;
	do {
		s->work(s);
		pieces++;
		now = clock_now();
	} while (!atomic_load(&s->stop) && now - start < seconds);
	return (double)pieces / (now - start);
}

/* The same beside a thread that runs `other` (NULL: none), the mean over ranks. */
static gradcomp_status beside(speeds *s, void *(*other)(void *), double seconds, double *out, gradcomp_error *err)
{
	pthread_t thread;
	gradcomp_status st = probe_barrier(s->p, err);
	atomic_store(&s->stop, 0);
	if (!st && other && pthread_create(&thread, NULL, other, s)) {
		probe_nomem(err, "a thread");
		return GRADCOMP_ERR_NOMEM;
	}
	if (st)
		return st;
	*out = pace(s, other == exchange ? 10 * seconds : seconds);
	if (other) {
		atomic_store(&s->stop, 1);
		pthread_join(thread, NULL);
	}
	if (other == exchange && s->status) {
		*err = s->error;
		return s->status;
	}
	st = gradcomp_allreduce(s->p->world, out, 1, GRADCOMP_F64, GRADCOMP_SUM, err);
	*out /= s->p->nranks;
	return st;
}

static double share(double beside_it, double by_itself)
{
	double s = by_itself > 0 ? beside_it / by_itself : 1;
	return fmin(1, fmax(s, 0.01));
}

/* Returns what is lost of the speed, as a share of the time. */
static double slowed(double beside_it, double by_itself)
{
	return 1 / share(beside_it, by_itself) - 1;
}

/* Measures the program's own pace: beside a thread that compresses, and beside one that exchanges. */
static gradcomp_status slow_downs(speeds *s, double seconds, gradcomp_error *err)
{
	machine_file *m = s->p->m;
	double by_itself = 0, other = 0;
	gradcomp_status st;
	s->work = compute_piece;
	st = beside(s, NULL, seconds, &by_itself, err);
	if (!st)
		st = beside(s, compress, seconds, &other, err);
	if (st)
		return st;
	m->slowed_by_compute = slowed(other, by_itself);
	if (!s->links)
		return GRADCOMP_OK;
	st = beside(s, exchange, seconds, &other, err);
	m->slowed_by_exchange = st ? 0 : slowed(other, by_itself);
	return st;
}

static gradcomp_status measure(speeds *s, double seconds, gradcomp_error *err)
{
	machine_file *m = s->p->m;
	double by_itself = 0, other = 0, trip;
	gradcomp_status st = rate(s, add, seconds / 6, &m->reduce, err);
	if (!st)
		st = rate(s, copy, seconds / 6, &m->memory, err);
	if (!st)
		st = beside(s, NULL, seconds / 6, &by_itself, err);
	if (!st && !s->p->sleeping) {
		st = beside(s, compute, seconds / 6, &other, err);
		m->beside_application = st ? 1 : share(other, by_itself);
	}
	if (!st && !s->links)
		return s->p->sleeping ? st : slow_downs(s, seconds / 9, err);
	if (st)
		return st;
	trip = fmax(m->level[0].a + m->level[0].b * MESSAGE, m->level[1].a + m->level[1].b * MESSAGE);
	s->rounds = (int)fmin(10000, 2 + seconds / 6 / fmax(trip, 1e-6));
	st = beside(s, exchange, seconds / 6, &other, err);
	m->beside_exchange = st ? 1 : share(other, by_itself);
	if (!st && !s->p->sleeping)
		st = slow_downs(s, seconds / 9, err);
	return st;
}

gradcomp_status probe_speeds(probe *p, double seconds, gradcomp_error *err)
{
	speeds s = {.p = p,
	            .work = add_piece,
	            .x = calloc(NUMBERS, sizeof(float)),
	            .y = calloc(NUMBERS, sizeof(float)),
	            .room = calloc(2, MESSAGE)};
	gradcomp_status st = GRADCOMP_OK;
	p->m->beside_application = p->m->beside_exchange = 1;
	if (!s.x || !s.y || !s.room) {
		probe_nomem(err, "numbers to add");
		st = GRADCOMP_ERR_NOMEM;
	}
	if (!st && p->nranks > 1)
		st = gradcomp_links_open(p->world, &s.links, err);
	if (!st)
		st = measure(&s, seconds, err);
	gradcomp_links_close(p->world, s.links);
	free(s.room);
	free(s.y);
	free(s.x);
	return st;
}
