/* Steps as they are measured. */
#include "reducer/bucketing/measure.h"
#include "step/bucket.h"
#include "reducer/bucketing/profile_internal.h"

#include "base/error.h"
#include "job/rank_times.h"

#include <stdlib.h>
#include <string.h>

#define CPU_EVERY 4 /* steps, of which one has its processor time taken: two system calls */

gradcomp_status profile_open(reducer *r, uint32_t rows, gradcomp_error *err)
{
	uint32_t n = r->eng.layout.ntensors;
	profile *p = calloc(1, sizeof *p);
	double *ready = calloc((size_t)(rows + 1) * n, sizeof *ready);
	r->profile = p;
	if (p) {
		p->ntensors = n;
		p->kept = rows;
		p->rows = calloc(rows + 1, sizeof *p->rows);
		p->backward = calloc(n, sizeof *p->backward);
		p->cpu_from = p->cpu = -1;
	}
	if (!p || !ready || !p->rows || !p->backward) {
		free(ready);
		return error_set(err, GRADCOMP_ERR_NOMEM, "no memory to measure %u tensors in %u steps", n, rows);
	}
	for (uint32_t k = 0; k <= rows; k++)
		p->rows[k].ready = ready + (size_t)k * n;
	p->rows[0].dropped = 1;
	return GRADCOMP_OK;
}

void profile_close(reducer *r)
{
	profile *p = r->profile;
	if (!p)
		return;
	if (p->rows)
		free(p->rows[0].ready);
	for (uint32_t k = 0; p->rows && k <= p->kept; k++)
		free(p->rows[k].buckets);
	free(p->rows);
	free(p->backward);
	free(p->trials);
	free(p);
	r->profile = NULL;
}

static profile_row *current(const profile *p)
{
	return &p->rows[p->at % (p->kept + 1)];
}

/* The seconds that all threads of the process have computed. */
static double cpu_now(void)
{
	struct timespec t;
	clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
	return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

void profile_ready(reducer *r, uint32_t tensor, double now)
{
	profile *p = r->profile;
	profile_row *row = current(p);
	if (!row->given++) {
		row->first = now;
		row->gap = p->waited ? now - p->last - p->blocked : now - p->ended;
		if (!p->at || row->gap < 0)
			row->gap = 0;
	}
	row->ready[tensor] = row->last = now;
	if (row->given == p->ntensors) {
		p->blocked = 0;
		p->waited = 0;
		if (p->cpu_from >= 0)
			p->cpu = cpu_now() - p->cpu_from;
	}
}

void profile_waited(reducer *r, double seconds, int layer)
{
	profile *p = r->profile;
	p->blocked += seconds;
	p->waited = 1;
	p->each_layer |= layer;
}

/* All rows at once: steps after the first of a plan allocate nothing. */
static int room_for(profile *p, uint32_t n)
{
	for (uint32_t k = 0; k <= p->kept; k++) {
		profile_row *row = &p->rows[k];
		if (row->room >= n)
			continue;
		profile_bucket *more = realloc(row->buckets, n * sizeof *more);
		if (!more)
			return 0;
		row->buckets = more;
		row->room = n;
	}
	return 1;
}

/* Buckets may be others than in the step before. Without memory they are not measured. */
static profile_bucket *bucket_in(profile *p, profile_row *row, uint32_t n, uint32_t index)
{
	if (row->nbuckets != n) {
		if (row->room < n && !room_for(p, n))
			return NULL;
		memset(row->buckets, 0, n * sizeof *row->buckets);
		row->nbuckets = n;
	}
	return &row->buckets[index];
}

static void count(profile *p, profile_row *row, const profile_timed *b, const task *t, double took)
{
	profile_bucket *in = bucket_in(p, row, b->nbuckets, b->bucket);
	if (!in)
		return;
	in->numel = b->numel;
	in->bad |= (uint32_t)b->bad;
	switch (t->kind) {
	case TASK_EXCHANGE:
		in->exchange += took;
		in->bytes += b->bytes;
		in->rounds++;
		break;
	case TASK_REDUCE_LOCAL:
		in->reduce += took;
		break;
	case TASK_ALLGATHER_LOCAL:
		in->spread += took;
		break;
	default: /* a GPU's tasks come more than once */
		in->compute[compute_kind(t)] += (float)took;
	}
}

/* While not all gradients have come, the pass goes on. */
static void beside(const profile *p, profile_row *row, const task *t, double start, double end)
{
	if (row->given == p->ntensors && end > row->last)
		end = row->last;
	if (start < row->first)
		start = row->first;
	if (row->given && end > start)
		row->beside[task_exchanges(t->kind) ? PROFILE_EXCHANGING : PROFILE_COMPRESSING] += end - start;
}

void profile_task(reducer *r, const bucket *b, const task *t, double start, double end)
{
	const gradcomp_plan *plan = bucket_plan(b);
	profile_timed timed = {
		.nbuckets = r->eng.list.nbuckets, .bucket = b->pub.index, .numel = (double)b->pub.numel, .bad = b->bad};
	for (const bucket *part = b->part; part; part = part->beside)
		timed.bad |= part->bad;
	if (t->kind == TASK_EXCHANGE && t->round < plan->nrounds)
		timed.bytes = bucket_round_bytes(b, t->round);
	count(r->profile, current(r->profile), &timed, t, end - start);
	beside(r->profile, current(r->profile), t, start, end);
}

/* A whole step, for who looks for the slowest rank. What a device did is no processor time of the process. */
static void tell_times(reducer *r, const profile_row *row, double cpu)
{
	const gradcomp_reducer_stats *s = &r->eng.stats;
	if (!row->dropped && row->given == r->profile->ntensors && profile_of_world(r))
		rank_times_step(r->eng.job, r,
		                &(step_times){.step = row->step,
		                              .own = row->gap + row->last - row->first,
		                              .wait = row->ended - row->last,
		                              .code_total = s->encode_s + s->decode_s,
		                              .exchange_total = s->exchange_s,
		                              .cpu = cpu});
}

/* NULL: it is not kept any more. */
static profile_row *told_row(const profile *p, uint64_t k)
{
	return k + p->kept < p->at ? NULL : &p->rows[k % (p->kept + 1)];
}

uint64_t profile_row_now(reducer *r)
{
	current(r->profile)->awaited = 1;
	return r->profile->at;
}

void profile_task_of(reducer *r, uint64_t k, const profile_timed *b, const task *t, double took)
{
	profile_row *row = told_row(r->profile, k);
	if (row)
		count(r->profile, row, b, t, took);
}

void profile_ready_of(reducer *r, uint64_t k, uint32_t tensor, double at)
{
	profile_row *row = told_row(r->profile, k);
	if (row)
		row->ready[tensor] = at;
}

void profile_step_of(reducer *r, uint64_t k, double first, double last, double over)
{
	profile *p = r->profile;
	profile_row *row = told_row(p, k);
	if (row) {
		row->first = first;
		row->last = last;
		row->ended = over;
		row->gap = p->over > 0 && first > p->over ? first - p->over : 0;
		row->step = p->over > 0 ? over - p->over : 0;
		row->awaited = 0;
		tell_times(r, row, -1);
	}
	p->over = over;
}

void profile_try(reducer *r)
{
	/* Without memory it is not known, as in a job that is too short. */
	r->profile->trials = calloc(TRIALS, sizeof *r->profile->trials);
}

static int trial_of(const profile *p)
{
	switch (p->at % TRIAL_PERIOD) {
	case TRIAL_PERIOD / 2 - 1:
		return TRIAL_EXCHANGES;
	case TRIAL_PERIOD - 1:
		return TRIAL_ALL;
	default:
		return TRIAL_NOTHING;
	}
}

int profile_holds(const reducer *r, int which)
{
	const profile *p = r->profile;
	uint32_t given = current(p)->given;
	int trial;
	if (!p->trials || p->let_go || !given || given == p->ntensors)
		return 0;
	trial = trial_of(p);
	return trial == TRIAL_ALL || (trial == TRIAL_EXCHANGES && which == PROFILE_EXCHANGING);
}

int profile_held(const reducer *r)
{
	const profile *p = r->profile;
	return p->trials && !p->let_go && current(p)->given == p->ntensors && trial_of(p) != TRIAL_NOTHING;
}

void profile_try_no_more(reducer *r)
{
	free(r->profile->trials);
	r->profile->trials = NULL;
}

int profile_let_go(reducer *r)
{
	int held = profile_holds(r, PROFILE_EXCHANGING);
	r->profile->let_go |= held;
	return held;
}

static void note_trial(profile *p, const profile_row *row)
{
	profile_trials *t = p->trials ? &p->trials[trial_of(p)] : NULL;
	double pass = row->last - row->first;
	if (!t || p->let_go || row->dropped || row->given != p->ntensors || !(pass > 0))
		return;
	t->pass[t->n % TRIALS_KEPT] = pass;
	for (int k = 0; k < PROFILE_BESIDE; k++)
		t->share[k][t->n % TRIALS_KEPT] = row->beside[k] / pass;
	t->n++;
}

void profile_step(reducer *r, double now)
{
	profile *p = r->profile;
	profile_row *row = current(p);
	note_trial(p, row);
	p->let_go = 0;
	row->ended = now;
	row->step = p->at ? now - p->ended : 0;
	p->ended = now;
	p->last = row->last;
	if (!row->awaited) {
		tell_times(r, row, p->cpu);
		p->cpu_from = p->at % CPU_EVERY ? -1 : cpu_now();
	}
	p->cpu = -1;
	p->at++;
	row = current(p);
	row->given = row->nbuckets = 0;
	row->dropped = row->awaited = 0;
	memset(row->beside, 0, sizeof row->beside);
}

void profile_drop(reducer *r)
{
	current(r->profile)->dropped = 1;
}

const profile_summary *profile_get(reducer *r)
{
	profile *p = r->profile;
	pthread_mutex_lock(&r->lock);
	if (!p->summary.agreed && p->made != p->at) {
		measure_summarise(r);
		p->made = p->at;
	}
	pthread_mutex_unlock(&r->lock);
	return &p->summary;
}
