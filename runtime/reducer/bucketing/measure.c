#include "reducer/bucketing/measure.h"

#include "base/error.h"
#include "base/fit.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static int usable(const profile_row *row, uint32_t ntensors)
{
	return !row->dropped && !row->awaited && row->given == ntensors;
}

/* Some thirty years. */
#define MOST_SECONDS 1e9
#define MOST_NANOSECONDS 1000000000000000000

static int64_t nanoseconds(double s)
{
	return s > 0 ? (s < MOST_SECONDS ? (int64_t)(s * 1e9) : MOST_NANOSECONDS) : 0;
}

/* Returns the seconds before a bucket's first exchange, or after it. */
static double computed(const profile_bucket *b, int before)
{
	double s = 0;
	for (int k = 0; k < COMPUTE_KINDS; k++)
		if ((k == COMPUTE_BEGIN || k == COMPUTE_ENTER || k == COMPUTE_ENCODE) == before)
			s += (double)b->compute[k];
	return s;
}

/* Columns of the table of steps. */
typedef double column(const profile_row *row, uint32_t which);

static double step_of(const profile_row *row, uint32_t which)
{
	(void)which;
	return row->step;
}

static double computed_of(const profile_row *row, uint32_t before)
{
	double s = 0;
	for (uint32_t b = 0; b < row->nbuckets; b++)
		s += computed(&row->buckets[b], (int)before);
	return s;
}

/* Returns the seconds from the start of the step to when tensor `i` came; those to the last one. */
static double came_of(const profile_row *row, uint32_t i)
{
	return row->gap + row->ready[i] - row->first;
}

static double last_of(const profile_row *row, uint32_t which)
{
	(void)which;
	return row->gap + row->last - row->first;
}

static double beside_of(const profile_row *row, uint32_t which)
{
	double pass = row->last - row->first;
	return pass > 0 ? row->beside[which] / pass : 0;
}

/* Returns the median of a column, and *n steps in order of it in v. */
static double middle(const profile *p, const measure *m, column *of, uint32_t which, double *v, uint32_t *n)
{
	*n = 0;
	for (uint64_t at = m->from; at < m->to; at++)
		if (usable(profile_row_of(p, at), p->ntensors))
			v[(*n)++] = of(profile_row_of(p, at), which);
	return fit_median(v, *n);
}

void measure_beside(reducer *r, double share[PROFILE_BESIDE])
{
	const profile *p = r->profile;
	double *v = calloc(p->kept + 1, sizeof *v);
	uint32_t n;
	pthread_mutex_lock(&r->lock);
	const measure all = {.from = profile_oldest(p), .to = p->at};
	for (uint32_t k = 0; k < PROFILE_BESIDE; k++) {
		share[k] = v ? middle(p, &all, beside_of, k, v, &n) : 0;
		share[k] = share[k] < 1 ? share[k] : 1;
	}
	pthread_mutex_unlock(&r->lock);
	free(v);
}

/* The median of the latest, and how far it may be off: what lies between the quartiles, over the root of their
 * number. */
static double latest(const profile_trials *t, const double *column, double *off)
{
	double v[TRIALS_KEPT], middle;
	size_t n = t->n < TRIALS_KEPT ? t->n : TRIALS_KEPT;
	memcpy(v, column, n * sizeof *v);
	middle = fit_median(v, n);
	*off = fit_spread(v, n) / sqrt((double)n);
	return middle;
}

/* Returns how many times as long a pass takes beside something, which is `alone` by itself and was beside it for
 * that share of `pass`; 0: not known, where the lengths are so far `off` that it cannot be told from a quarter more
 * or less. */
static double times_as_long(double alone, double pass, double share, double off)
{
	double lost = share > 0 ? (1 - alone / pass) / share : 0;
	if (share < 0.05 || off / pass > 0.25 * share)
		return 0;
	return lost > 0 ? 1 / (1 - (lost < 0.9 ? lost : 0.9)) : 1;
}

void measure_slower(reducer *r, double times[PROFILE_BESIDE])
{
	const profile_trials *all, *exchanges, *nothing, *t;
	double alone, pass, share, off[3], ignored;
	times[PROFILE_EXCHANGING] = times[PROFILE_COMPRESSING] = 0;
	pthread_mutex_lock(&r->lock);
	t = r->profile->trials;
	all = t ? &t[TRIAL_ALL] : NULL, exchanges = t ? &t[TRIAL_EXCHANGES] : NULL, nothing = t;
	if (t && all->n >= TRIALS_LEAST && exchanges->n >= TRIALS_LEAST && nothing->n >= TRIALS_LEAST) {
		alone = latest(all, all->pass, &off[0]);
		pass = latest(exchanges, exchanges->pass, &off[1]);
		share = latest(exchanges, exchanges->share[PROFILE_COMPRESSING], &ignored);
		times[PROFILE_COMPRESSING] = times_as_long(alone, pass, share, off[0] + off[1]);
		/* Without what compressing costs, where that is known, exchanges explain the rest. */
		pass = latest(nothing, nothing->pass, &off[2]);
		share = latest(nothing, nothing->share[PROFILE_COMPRESSING], &ignored);
		if (times[PROFILE_COMPRESSING] > 1)
			pass *= 1 - fmin(share, 1) * (1 - 1 / times[PROFILE_COMPRESSING]);
		share = latest(nothing, nothing->share[PROFILE_EXCHANGING], &ignored);
		times[PROFILE_EXCHANGING] = times_as_long(alone, pass, share, off[0] + off[2]);
	}
	pthread_mutex_unlock(&r->lock);
}

static void put_head(const reducer *r, measure *m, double *v)
{
	const profile *p = r->profile;
	uint32_t n;
	double step = middle(p, m, step_of, 0, v, &n), last, noise;
	m->words[MEASURE_STEP] = nanoseconds(step);
	for (int before = 0; before < 2; before++)
		m->computed[before] = middle(p, m, computed_of, (uint32_t)before, v, &n);
	m->words[MEASURE_DECODE] = nanoseconds(m->computed[0]);
	m->words[MEASURE_ENCODE] = nanoseconds(m->computed[1]);
	for (uint32_t i = 0; i < p->ntensors; i++)
		m->words[MEASURE_HEAD + i] = nanoseconds(middle(p, m, came_of, i, v, &n));
	last = middle(p, m, last_of, 0, v, &n);
	noise = step > 0 ? fit_spread(v, n) / step : 0;
	int64_t us = (int64_t)(last < 1e6 ? last * 1e6 : 1e12), rank = r->eng.layout.rank;
	m->words[MEASURE_SLOWEST] = us << 20 | rank;
	m->words[MEASURE_FASTEST] = (MEASURE_LIMIT - us) << 20 | rank;
	m->words[MEASURE_FEWEST] = -(int64_t)n;
	m->words[MEASURE_NOISE] = (int64_t)(noise < 1e6 ? noise * 1e6 : 1e12);
	m->words[MEASURE_EACH] = p->each_layer;
	m->usable = n;
}

static int64_t *put_bucket(int64_t *w, const profile_bucket *b)
{
	const double took[3] = {b->exchange, b->reduce, b->spread};
	for (int k = 0; k < 3; k++)
		*w++ = took[k] > 0 && !b->bad ? -nanoseconds(took[k]) : MEASURE_NONE;
	return w;
}

gradcomp_status measure_take(const reducer *r, uint64_t from, measure *m, gradcomp_error *err)
{
	const profile *p = r->profile;
	uint64_t oldest = profile_oldest(p);
	double *v = calloc(p->kept + 1, sizeof *v);
	int64_t *w;
	*m = (measure){.from = from > oldest ? from : oldest, .to = p->at, .n = MEASURE_HEAD + (size_t)p->ntensors};
	for (uint64_t at = m->from; at < m->to; at++) {
		const profile_row *row = profile_row_of(p, at);
		if (!usable(row, p->ntensors))
			continue;
		if (!row->nbuckets) {
			free(v);
			return error_set(err, GRADCOMP_ERR_NOMEM, "no memory to measure %u buckets",
			                 r->eng.list.nbuckets);
		}
		m->n += 3 * (size_t)row->nbuckets;
	}
	m->words = calloc(m->n, sizeof *m->words);
	if (!v || !m->words) {
		free(v);
		return error_set(err, GRADCOMP_ERR_NOMEM, "no memory for %zu measurements", m->n);
	}
	put_head(r, m, v);
	w = m->words + MEASURE_HEAD + p->ntensors;
	for (uint64_t at = m->from; at < m->to; at++) {
		const profile_row *row = profile_row_of(p, at);
		for (uint32_t b = 0; usable(row, p->ntensors) && b < row->nbuckets; b++)
			w = put_bucket(w, &row->buckets[b]);
	}
	free(v);
	return GRADCOMP_OK;
}

void measure_clear(measure *m)
{
	free(m->words);
	*m = (measure){0};
}

static double seconds(int64_t ns)
{
	return ns > 0 && ns <= MOST_NANOSECONDS ? (double)ns * 1e-9 : 0;
}

/* Gradients that come within so much of each other have come together. */
static double together(const fit *f)
{
	return 20e-6 + (f->arrival[f->ntensors - 1] - f->arrival[0]) / 1000;
}

static void share_out(const reducer *r, fit *f)
{
	double near = together(f), before = f->arrival[0];
	for (uint32_t i = 0, end; i < f->ntensors; i = end) {
		uint64_t numel = 0;
		for (end = i; end < f->ntensors && f->arrival[end] - f->arrival[i] < near; end++)
			numel += r->eng.layout.tensors[end].numel;
		double took = f->arrival[end - 1] - before;
		for (uint32_t k = i; k < end; k++)
			f->backward[k] = numel ? took * (double)r->eng.layout.tensors[k].numel / (double)numel
			                       : took / (end - i);
		before = f->arrival[end - 1];
	}
}

static void fit_passes(const reducer *r, const measure *m, fit *f)
{
	int64_t rank = ((int64_t)1 << 20) - 1;
	double latest = 0;
	for (uint32_t i = 0; i < f->ntensors; i++) {
		double at = seconds(m->words[MEASURE_HEAD + i]);
		f->arrival[i] = latest = at > latest ? at : latest;
	}
	share_out(r, f);
	f->forward = f->arrival[0];
	f->step = seconds(m->words[MEASURE_STEP]);
	f->noise = (double)m->words[MEASURE_NOISE] * 1e-6;
	f->steps = m->words[MEASURE_FEWEST] < 0 && m->words[MEASURE_FEWEST] > -INT32_MAX
	                   ? (uint32_t)-m->words[MEASURE_FEWEST]
	                   : 0;
	f->each_layer = m->words[MEASURE_EACH] != 0;
	f->slowest = (int)(m->words[MEASURE_SLOWEST] & rank);
	f->slowest_s = (double)(m->words[MEASURE_SLOWEST] >> 20) * 1e-6;
	f->fastest = (int)(m->words[MEASURE_FASTEST] & rank);
	f->fastest_s = (double)(MEASURE_LIMIT - (m->words[MEASURE_FASTEST] >> 20)) * 1e-6;
}

static void fit_exchanges(const reducer *r, const measure *m, fit *f, fit_point *pt)
{
	const profile *p = r->profile;
	linear *const lines[3] = {&f->exchange, &f->reduce, &f->spread};
	double buckets = 0, rounds = 0, bytes = 0, numel = 0;
	for (int k = 0; k < 3; k++) {
		const int64_t *w = m->words + MEASURE_HEAD + f->ntensors;
		size_t n = 0;
		for (uint64_t at = m->from; at < m->to; at++) {
			const profile_row *row = profile_row_of(p, at);
			for (uint32_t b = 0; usable(row, f->ntensors) && b < row->nbuckets; b++, w += 3) {
				const profile_bucket *in = &row->buckets[b];
				if (w[k] == MEASURE_NONE || (k == 0 && (!in->rounds || in->bad)))
					continue;
				pt[n++] = (fit_point){k ? 1 : in->rounds, k ? in->numel : in->bytes, seconds(-w[k])};
				if (k)
					continue;
				buckets++;
				rounds += in->rounds;
				bytes += in->bytes;
				numel += in->numel;
			}
		}
		double error = fit_line(pt, n, &lines[k]->a, &lines[k]->b);
		if (k == 0)
			f->error = error;
	}
	f->rounds = buckets > 0 ? rounds / buckets : 0;
	f->bytes = numel > 0 ? bytes / numel : 0;
}

/* This rank's lines, to which the slowest one's total is laid. */
static void fit_compute(const reducer *r, const measure *m, fit *f, fit_point *pt)
{
	const profile *p = r->profile;
	double scale[2] = {1, 1}; /* after the first exchange; before it */
	for (int before = 0; before < 2; before++) {
		double most = seconds(m->words[before ? MEASURE_ENCODE : MEASURE_DECODE]);
		scale[before] = m->computed[before] > 0 && most > m->computed[before] ? most / m->computed[before] : 1;
	}
	for (int k = 0; k < COMPUTE_KINDS; k++) {
		int before = k == COMPUTE_BEGIN || k == COMPUTE_ENTER || k == COMPUTE_ENCODE;
		linear *sum = before ? &f->encode : &f->decode, *line = &f->compute[k];
		size_t n = 0;
		for (uint64_t at = m->from; at < m->to; at++) {
			const profile_row *row = profile_row_of(p, at);
			for (uint32_t b = 0; usable(row, f->ntensors) && b < row->nbuckets; b++)
				if (row->buckets[b].compute[k] > 0 && !row->buckets[b].bad)
					pt[n++] = (fit_point){1, row->buckets[b].numel,
					                      (double)row->buckets[b].compute[k]};
		}
		fit_line(pt, n, &line->a, &line->b);
		line->a *= scale[before];
		line->b *= scale[before];
		sum->a += line->a;
		sum->b += line->b;
	}
}

gradcomp_status measure_fit(const reducer *r, const measure *m, fit *f, gradcomp_error *err)
{
	uint32_t n = r->eng.layout.ntensors;
	fit_point *pt = calloc(m->n, sizeof *pt);
	*f = (fit){.ntensors = n,
	           .error = -1,
	           .arrival = calloc(n, sizeof *f->arrival),
	           .backward = calloc(n, sizeof *f->backward)};
	if (!pt || !f->arrival || !f->backward) {
		free(pt);
		measure_fit_clear(f);
		return error_set(err, GRADCOMP_ERR_NOMEM, "no memory to fit %zu measurements", m->n);
	}
	fit_passes(r, m, f);
	fit_exchanges(r, m, f, pt);
	fit_compute(r, m, f, pt);
	free(pt);
	return GRADCOMP_OK;
}

void measure_fit_clear(fit *f)
{
	free(f->arrival);
	free(f->backward);
	*f = (fit){0};
}

static void summarise(profile *p, const fit *f, uint32_t agreed)
{
	memcpy(p->backward, f->backward, p->ntensors * sizeof *p->backward);
	p->summary = (profile_summary){.ntensors = p->ntensors,
	                               .steps = f->steps,
	                               .backward = p->backward,
	                               .forward = f->forward,
	                               .step = f->step,
	                               .exchange = f->exchange,
	                               .encode = f->encode,
	                               .decode = f->decode,
	                               .noise = f->noise,
	                               .each_layer = (uint32_t)f->each_layer,
	                               .agreed = agreed};
}

void measure_summarise(reducer *r)
{
	measure m;
	fit f;
	gradcomp_error ignored;
	if (!measure_take(r, 0, &m, &ignored) && !measure_fit(r, &m, &f, &ignored)) {
		summarise(r->profile, &f, 0);
		measure_fit_clear(&f);
	}
	measure_clear(&m);
}

void measure_agreed(reducer *r, const fit *f)
{
	pthread_mutex_lock(&r->lock);
	summarise(r->profile, f, 1);
	pthread_mutex_unlock(&r->lock);
}
