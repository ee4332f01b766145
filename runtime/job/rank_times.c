#include "job/rank_times.h"

#include "base/fit.h"
#include "job/slow_history.h"
#include "transport/wire/wire.h"

#include <fcntl.h>
#include <math.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MAGIC 0x31544347u /* "GCT1" */
#define NUMBER_MOST 1e18  /* bytes, or more seconds than there have been */
/* Rank 0 takes at most so many records a second, and of fewer ranks one a second each. */
#define RECORDS_A_SECOND 200
#define FIRST_RECORD 8 /* steps; in smaller jobs another one each time they have doubled */
#define BLOCKS 32      /* each is of steps in a row, and they grow with the job */
#define ALIKE_MOST 0.9 /* the largest correlation of neighbours that is believed */
#define OWN_KEPT 31    /* own parts, whose median is the usual one */
#define OWN_LEAST 8
#define PAUSE_TIMES 2.0 /* the usual own part */
#define PAUSE_SECONDS 1e-3
#define LOOKS 4          /* the latest of the processor's speed and of the link */
#define ARITHMETIC 10000 /* steps of it; some ten microseconds */
#define END_SECONDS 1.0  /* that rank 0 waits for the last records */

/* The latest of something that is looked at now and then. */
typedef struct looks {
	double of[LOOKS];
	unsigned n;
} looks;

struct times_keeper {
	pthread_mutex_t lock;
	rank_times t;
	const void *of, *other; /* the reducer that is counted; one that has had the latest step in its place */
	double code_total, exchange_total;
	double block[BLOCKS], in_block;
	unsigned nblocks, steps_in_block, block_steps;
	double own[OWN_KEPT];
	looks speed, rate;
	double queued; /* before the first step that counts */
	double next;   /* when a record is due */
	atomic_bool wants_link;
	atomic_uint_fast64_t load_ns, samples; /* that no step has counted yet */
	slow_history *history;                 /* rank 0's, once a record was due; NULL: none */
};

void rank_times_write(const rank_times *t, unsigned char out[RANK_TIMES_BYTES])
{
	double field[RANK_TIMES_FIELDS];
	uint64_t bits;
	memcpy(field, t, sizeof field);
	put32(out, MAGIC);
	put32(out + 4, RANK_TIMES_FIELDS);
	for (size_t i = 0; i < RANK_TIMES_FIELDS; i++) {
		memcpy(&bits, &field[i], sizeof bits);
		put64(out + 8 + 8 * i, bits);
	}
}

bool rank_times_read(const unsigned char *in, size_t bytes, rank_times *out)
{
	double field[RANK_TIMES_FIELDS] = {0};
	size_t n = bytes < 8 ? 0 : get32(in + 4);
	if (bytes < 8 || get32(in) != MAGIC || n > TALLY_BYTES_MAX / 8 || bytes != 8 + 8 * n)
		return false;
	for (size_t i = 0; i < n && i < RANK_TIMES_FIELDS; i++) {
		uint64_t bits = get64(in + 8 + 8 * i);

		memcpy(&field[i], &bits, sizeof bits);
		if (!(field[i] >= 0 && field[i] <= NUMBER_MOST))
			return false;
	}
	memcpy(out, field, sizeof field);
	return true;
}

times_keeper *rank_times_open(void)
{
	times_keeper *k = calloc(1, sizeof *k);
	if (!k)
		return NULL;
	pthread_mutex_init(&k->lock, NULL);
	k->block_steps = 1;
	atomic_init(&k->wants_link, true);
	return k;
}

void rank_times_close(times_keeper *k)
{
	if (!k)
		return;
	pthread_mutex_destroy(&k->lock);
	slow_history_close(k->history);
	free(k);
}

/* Adds a step's own part to its block. When there is no room for another block, two neighbours become one. */
static void add_block(times_keeper *k, double own)
{
	k->in_block += own;
	if (++k->steps_in_block < k->block_steps)
		return;
	k->block[k->nblocks++] = k->in_block / k->block_steps;
	k->in_block = 0;
	k->steps_in_block = 0;
	if (k->nblocks < BLOCKS)
		return;
	for (unsigned i = 0; i < BLOCKS / 2; i++)
		k->block[i] = (k->block[2 * i] + k->block[2 * i + 1]) / 2;
	k->nblocks = BLOCKS / 2;
	k->block_steps *= 2;
}

static void count_pause(times_keeper *k, double own)
{
	double usual = k->t.usual_s;
	if (own <= PAUSE_TIMES * usual || own <= usual + PAUSE_SECONDS)
		return;
	k->t.pauses++;
	k->t.pause_s += own - usual;
}

/* A step that takes far longer than usual had a pause. The usual length follows what a job does. */
static void add_pause(times_keeper *k, double own)
{
	uint64_t n = (uint64_t)k->t.steps;
	double v[OWN_KEPT];
	size_t kept = n < OWN_KEPT ? (size_t)n : OWN_KEPT;
	k->own[(n - 1) % OWN_KEPT] = own;
	if (n > OWN_LEAST)
		count_pause(k, own);
	if (n > OWN_KEPT && n % 8)
		return;
	memcpy(v, k->own, kept * sizeof *v);
	k->t.usual_s = fit_median(v, kept);
	/* The first ones are compared when it is known what is usual. */
	for (size_t i = 0; n == OWN_LEAST && i < OWN_LEAST; i++)
		count_pause(k, k->own[i]);
}

void rank_times_add(times_keeper *k, const step_times *s, double load, double samples)
{
	double own = fmax(s->own, 0);
	k->t.steps++;
	k->t.step_s += s->step;
	k->t.own_s += own;
	k->t.load_s += fmin(load, own);
	k->t.samples += samples;
	k->t.wait_s += fmax(s->wait, 0);
	k->t.code_s += fmax(s->code_total - k->code_total, 0);
	k->t.exchange_s += fmax(s->exchange_total - k->exchange_total, 0);
	k->code_total = s->code_total;
	k->exchange_total = s->exchange_total;
	if (s->cpu >= 0) {
		k->t.cpu_s += s->cpu;
		k->t.cpu_own_s += own;
	}
	add_block(k, own);
	add_pause(k, own);
}

/* Returns the standard error of the mean of blocks, whose neighbours may be alike. */
static double error_of(const double *block, unsigned n)
{
	double mean = 0, all = 0, next = 0, alike;
	for (unsigned i = 0; i < n; i++)
		mean += block[i] / n;
	for (unsigned i = 0; i < n; i++) {
		all += (block[i] - mean) * (block[i] - mean);
		if (i)
			next += (block[i] - mean) * (block[i - 1] - mean);
	}
	alike = all > 0 ? fmin(fmax(next / all, 0), ALIKE_MOST) : 0;
	return n > 1 ? sqrt(all / n / (n - 1) * (1 + alike) / (1 - alike)) : 0;
}

void rank_times_get(times_keeper *k, rank_times *out)
{
	*out = k->t;
	out->off_s = error_of(k->block, k->nblocks);
}

/* Returns the seconds that a fixed piece of arithmetic takes on this thread's processor, but for what others use of it:
 * the shortest of three. */
static double arithmetic(void)
{
	static _Atomic uint64_t result; /* used, so that it is computed */
	double least = INFINITY;
	for (int i = 0; i < 3; i++) {
		struct timespec from, to;
		uint64_t x = atomic_load_explicit(&result, memory_order_relaxed);

		clock_gettime(CLOCK_THREAD_CPUTIME_ID, &from);
		for (int s = 0; s < ARITHMETIC; s++)
			x = x * 6364136223846793005u + 1442695040888963407u;
		clock_gettime(CLOCK_THREAD_CPUTIME_ID, &to);
		atomic_store_explicit(&result, x, memory_order_relaxed);
		least = fmin(least, (double)(to.tv_sec - from.tv_sec) + 1e-9 * (double)(to.tv_nsec - from.tv_nsec));
	}
	return least;
}

/* Returns the seconds that the process's first thread was ready to run and had no processor; 0: not known. */
static double queued(void)
{
	/* Without stdio, which allocates: a step does not. */
	unsigned long long ran, waited;
	char text[80];
	int fd = open("/proc/self/schedstat", O_RDONLY | O_CLOEXEC);
	ssize_t n = fd < 0 ? -1 : read(fd, text, sizeof text - 1);
	if (fd >= 0)
		close(fd);
	text[n > 0 ? n : 0] = '\0';
	return sscanf(text, "%llu %llu", &ran, &waited) == 2 ? 1e-9 * (double)waited : 0;
}

static void look_at_speed(times_keeper *k)
{
	looks *at = &k->speed;
	at->of[at->n++ % LOOKS] = arithmetic();
	k->t.speed_s = INFINITY;
	for (unsigned i = 0; i < LOOKS && i < at->n; i++)
		k->t.speed_s = fmin(k->t.speed_s, at->of[i]);
}

rank_times *rank_times_table(gradcomp_job *job)
{
	rank_times *t = job->times && job->nranks > 1 ? calloc((size_t)job->nranks, sizeof *t) : NULL;
	unsigned char record[TALLY_BYTES_MAX];
	bool any = false;
	for (int r = 0; t && r < job->nranks; r++)
		any |= rank_times_read(record, transport_told(job->transport, r, record), &t[r]) && t[r].steps > 0;
	if (any)
		return t;
	free(t);
	return NULL;
}

/* Called with the lock held. After ranks are lost there are others, of whom nothing is known yet. */
static slow_history *history_of(gradcomp_job *job)
{
	times_keeper *k = job->times;
	if (k->history && slow_history_ranks(k->history) != job->nranks) {
		slow_history_close(k->history);
		k->history = NULL;
	}
	if (!k->history)
		k->history = slow_history_open(job->nranks);
	return k->history;
}

/* Called with the lock held, on rank 0. */
static void look_back(gradcomp_job *job)
{
	slow_history *h = history_of(job);
	if (!h || !slow_history_is_due(h, &job->times->t))
		return;
	rank_times *now = rank_times_table(job);
	if (now)
		slow_history_add(h, now);
	free(now);
}

/* Called with the lock held. */
static void tell(gradcomp_job *job, bool last)
{
	times_keeper *k = job->times;
	unsigned char record[RANK_TIMES_BYTES];
	rank_times now;
	if (k->t.steps > 0) {
		look_at_speed(k);
		k->t.queue_s = fmax(queued() - k->queued, 0);
	}
	rank_times_get(k, &now);
	rank_times_write(&now, record);
	transport_tally(job->transport, record, sizeof record, last);
	if (!job->rank && !last)
		look_back(job);
	atomic_store_explicit(&k->wants_link, true, memory_order_relaxed);
}

static bool is_due(times_keeper *k, const gradcomp_job *job)
{
	uint64_t n = (uint64_t)k->t.steps;
	double now = clock_now(), every = fmax(1, (double)job->nranks / RECORDS_A_SECOND);
	bool doubled = job->nranks <= RECORDS_A_SECOND && n >= FIRST_RECORD && !(n & (n - 1));
	/* Rank 0 makes room for all records at once: later steps allocate nothing. */
	doubled |= n == 1 && !job->rank;
	/* Ranks of a large job take turns. */
	if (k->next <= 0)
		k->next = now + every * (1 + (double)job->rank / job->nranks);
	if (now < k->next && !doubled)
		return false;
	if (now >= k->next)
		k->next += every * (1 + floor((now - k->next) / every));
	return true;
}

/* Returns true when the step counts: those of one reducer do, until another one has two in a row. */
static bool is_counted(times_keeper *k, const void *of, const step_times *s)
{
	bool counts = of == k->of;
	if (!counts && (of == k->other || !k->of)) {
		k->of = of;
		k->code_total = s->code_total;
		k->exchange_total = s->exchange_total;
		if (k->t.steps <= 0)
			k->queued = queued();
	}
	k->other = counts ? NULL : of;
	return counts;
}

void rank_times_step(gradcomp_job *job, const void *of, const step_times *s)
{
	times_keeper *k = job->times;
	if (!k || job->nranks < 2)
		return;
	pthread_mutex_lock(&k->lock);
	double load = 1e-9 * (double)atomic_exchange(&k->load_ns, 0);
	double samples = (double)atomic_exchange(&k->samples, 0);
	if (is_counted(k, of, s) && s->step > 0) {
		rank_times_add(k, s, load, samples);
		if (is_due(k, job))
			tell(job, false);
	}
	pthread_mutex_unlock(&k->lock);
}

void rank_times_load(gradcomp_job *job, double seconds, uint64_t samples)
{
	times_keeper *k = job->times;
	if (!k)
		return;
	atomic_fetch_add_explicit(&k->load_ns, seconds > 0 ? (uint64_t)(seconds * 1e9) : 0, memory_order_relaxed);
	atomic_fetch_add_explicit(&k->samples, samples, memory_order_relaxed);
}

bool rank_times_wants_link(gradcomp_job *job)
{
	times_keeper *k = job->times;
	return k && atomic_load_explicit(&k->wants_link, memory_order_relaxed) &&
	       atomic_exchange(&k->wants_link, false);
}

void rank_times_link(gradcomp_job *job, const link_load *l)
{
	times_keeper *k = job->times;
	pthread_mutex_lock(&k->lock);
	if (k->t.link_peer != l->rank + 1)
		k->rate.n = 0;
	k->rate.of[k->rate.n++ % LOOKS] = l->rate;
	k->t.link_peer = l->rank + 1;
	k->t.link_bytes = (double)l->bytes;
	k->t.link_s = fmax(l->busy_s, 0);
	k->t.link_full = l->full;
	k->t.link_rate = 0;
	for (unsigned i = 0; i < LOOKS && i < k->rate.n; i++)
		k->t.link_rate = fmax(k->t.link_rate, k->rate.of[i]);
	pthread_mutex_unlock(&k->lock);
}

void rank_times_end(gradcomp_job *job)
{
	times_keeper *k = job->times;
	if (!k || job->nranks < 2)
		return;
	pthread_mutex_lock(&k->lock);
	tell(job, true);
	bool any = k->t.steps > 0;
	pthread_mutex_unlock(&k->lock);
	if (any && !job->rank)
		transport_await_tallies(job->transport, END_SECONDS);
}

bool rank_times_slowest(gradcomp_job *job, const rank_times *now, bool lately, slow_rank *out)
{
	times_keeper *k = job->times;
	pthread_mutex_lock(&k->lock);
	const slow_history *h = history_of(job);
	bool found = !h       ? slow_rank_find(now, job->nranks, out)
	             : lately ? slow_history_latest(h, now, out)
	                      : slow_history_worst(h, now, out);
	pthread_mutex_unlock(&k->lock);
	return found;
}
