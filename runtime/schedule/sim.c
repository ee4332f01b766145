/* The clocks of all ranks, from exchange to exchange; sim_rank.c is one of them. */
#include "schedule/sim_internal.h"

#include "base/error.h"

#include <math.h>
#include <stdbool.h>
#include <stdlib.h>

static bool is_time(double seconds)
{
	return isfinite(seconds) && seconds >= 0;
}

static bool is_share(double share)
{
	return share > 0 && share <= 1;
}

static gradcomp_status check_bucket(const sim_bucket *b, uint32_t index, gradcomp_error *err)
{
	uint32_t exchanges = 0;
	for (uint32_t t = 0; t < b->ntasks; t++) {
		exchanges += (uint32_t)task_exchanges(b->tasks[t].kind);
		if (!is_time(b->seconds[t]))
			return error_set(err, GRADCOMP_ERR_INVALID, "task %u of bucket %u takes %g seconds", t, index,
			                 b->seconds[t]);
	}
	if (b->ntasks < 3 || b->tasks[0].kind != TASK_BEGIN || b->tasks[b->ntasks - 1].kind != TASK_FINISH ||
	    !exchanges)
		return error_set(err, GRADCOMP_ERR_INVALID, "bucket %u does not begin, exchange and finish", index);
	return GRADCOMP_OK;
}

static gradcomp_status check(const sim_input *in, gradcomp_error *err)
{
	gradcomp_status st;
	if (!in->n || !in->window || !in->steps || !is_time(in->io) || !is_time(in->copy) || !is_time(in->update) ||
	    !is_share(in->beside_application) || !is_share(in->beside_exchange) || !is_time(in->slowed_by_exchange) ||
	    !is_time(in->slowed_by_compute) || (in->classes && !in->nclasses))
		return error_set(
			err, GRADCOMP_ERR_INVALID,
			"a simulation of %u tensors, %u steps, a window of %u, io %g, copy %g, update %g, shares %g and %g, "
			"slowed by %g and %g",
			in->n, in->steps, in->window, in->io, in->copy, in->update, in->beside_application,
			in->beside_exchange, in->slowed_by_exchange, in->slowed_by_compute);
	st = step_plan_check(in->plan, in->n, err);
	for (uint32_t i = 0; !st && i < in->n; i++)
		if (!is_time(in->forward[i]) || !is_time(in->backward[i]))
			st = error_set(err, GRADCOMP_ERR_INVALID, "tensor %u takes %g and %g seconds", i,
			               in->forward[i], in->backward[i]);
	for (uint32_t b = 0; !st && b < in->plan->nbuckets; b++)
		st = check_bucket(&in->buckets[b], b, err);
	for (uint32_t c = 0; !st && in->classes && c < in->nclasses; c++)
		if (!(in->classes[c].speed > 0) || !isfinite(in->classes[c].speed))
			st = error_set(err, GRADCOMP_ERR_INVALID, "class %u has a speed of %g", c,
			               in->classes[c].speed);
	return st;
}

/* Prepares what all ranks share: where each task's run of work ends, which bucket a tensor is in. */
static int prepare(sim *m)
{
	const sim_input *in = m->in;
	uint32_t tasks = 0;
	for (uint32_t b = 0; b < in->plan->nbuckets; b++)
		tasks += in->buckets[b].ntasks;
	m->parts = calloc(tasks, sizeof *m->parts);
	m->part_of = calloc(in->plan->nbuckets, sizeof *m->part_of);
	m->tensors = calloc(in->plan->nbuckets, sizeof *m->tensors);
	m->bucket_of = calloc(in->n, sizeof *m->bucket_of);
	m->backward = calloc(in->plan->nbuckets, sizeof *m->backward);
	if (!m->parts || !m->part_of || !m->tensors || !m->bucket_of || !m->backward)
		return -1;
	for (uint32_t b = 0, first = 0, at = 0; b < in->plan->nbuckets; first = in->plan->end[b++]) {
		const sim_bucket *s = &in->buckets[b];

		m->tensors[b] = in->plan->end[b] - first;
		for (uint32_t i = first; i < in->plan->end[b]; i++) {
			m->bucket_of[i] = b;
			m->backward[b] += in->backward[i];
		}
		m->part_of[b] = m->parts + at;
		at += s->ntasks;
		for (uint32_t t = s->ntasks; t-- > 0;) {
			sim_part *p = &m->part_of[b][t], *next = p + 1;
			int whole = t + 1 == s->ntasks || task_exchanges(s->tasks[t + 1].kind);

			p->left = task_list_stages(s->tasks, (int)s->ntasks, (int)t);
			p->end = whole ? t + 1 : next->end;
			p->work = s->seconds[t] + (whole ? 0 : next->work);
			m->exchanges += (uint64_t)task_exchanges(s->tasks[t].kind);
		}
	}
	for (uint32_t i = 0; i < in->n; i++)
		m->forward += in->forward[i];
	return 0;
}

/* One exchange of all: the latest rank begins it. */
static gradcomp_status exchange(sim *m, uint32_t nclasses, gradcomp_error *err)
{
	uint32_t bucket = SCHEDULE_NONE;
	double start = 0, seconds;
	for (uint32_t c = 0; c < nclasses; c++) {
		sim_rank *r = &m->ranks[c];
		uint32_t b = sim_advance(m, r);

		if (c == 0)
			bucket = b;
		if (b == SCHEDULE_NONE || b != bucket)
			return error_set(err, GRADCOMP_ERR_INTERNAL,
			                 "simulated rank %u is at bucket %d where rank 0 is at %d", c, (int)b,
			                 (int)bucket);
		if (r->now > start)
			start = r->now;
	}
	seconds = m->in->buckets[bucket].seconds[sim_next_task(m, &m->ranks[0], bucket)];
	for (uint32_t c = 0; c < nclasses; c++) {
		m->ranks[c].moves_from = start;
		m->ranks[c].moves_to = start + seconds;
	}
	return GRADCOMP_OK;
}

static void release(sim *m, uint32_t nclasses)
{
	for (uint32_t c = 0; m->ranks && c < nclasses; c++) {
		schedule_free(&m->ranks[c].s);
		free(m->ranks[c].next);
	}
	free(m->ranks);
	free(m->parts);
	free(m->part_of);
	free(m->tensors);
	free(m->bucket_of);
	free(m->backward);
	free(m->events);
}

static gradcomp_status run(sim *m, uint32_t nclasses, sim_output *out, gradcomp_error *err)
{
	const sim_input *in = m->in;
	gradcomp_status st = GRADCOMP_OK;
	for (uint64_t k = 0; !st && k < m->exchanges * in->steps; k++)
		st = exchange(m, nclasses, err);
	if (st)
		return st;
	*out = (sim_output){0};
	for (uint32_t c = 0; c < nclasses; c++) {
		double step;

		if (sim_advance(m, &m->ranks[c]) != SCHEDULE_NONE || m->ranks[c].doing != SIM_DONE)
			return error_set(err, GRADCOMP_ERR_INTERNAL, "simulated rank %u does not end its steps", c);
		step = m->ranks[c].ended - m->ranks[c].ended_before;
		/* Nobody has seen the batch of the first step being read. */
		if (in->steps == 1 && step < in->io + in->copy)
			step = in->io + in->copy;
		if (step > out->step)
			out->step = step;
	}
	if (m->failed)
		return error_set(err, GRADCOMP_ERR_NOMEM, "no memory for the events of a simulation");
	out->exposed = m->ranks[0].exposed;
	out->compute = m->compute;
	out->exchange = m->exchange;
	for (uint32_t i = 0; i < m->nevents; i++) {
		m->events[i].start -= m->origin;
		m->events[i].end -= m->origin;
	}
	out->events = m->events;
	out->nevents = m->nevents;
	m->events = NULL;
	return GRADCOMP_OK;
}

gradcomp_status sim_run(const sim_input *in, int with_events, sim_output *out, gradcomp_error *err)
{
	const sim_class one = {1, 1};
	uint32_t nclasses = in->classes ? in->nclasses : 1;
	sim m = {.in = in, .with_events = with_events};
	gradcomp_status st = check(in, err);
	if (st)
		return st;
	m.ranks = calloc(nclasses, sizeof *m.ranks);
	st = m.ranks && !prepare(&m) ? GRADCOMP_OK : GRADCOMP_ERR_NOMEM;
	for (uint32_t c = 0; !st && c < nclasses; c++)
		if (sim_rank_make(&m, &m.ranks[c], in->classes ? &in->classes[c] : &one))
			st = GRADCOMP_ERR_NOMEM;
	if (st)
		error_set(err, st, "no memory to simulate %u ranks with %u buckets", nclasses, in->plan->nbuckets);
	else
		st = run(&m, nclasses, out, err);
	release(&m, nclasses);
	return st;
}
