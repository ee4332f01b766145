/* A simulated rank: the reducer's two threads, and when what happens next. */
#include "schedule/sim_internal.h"

#include <math.h>
#include <stdlib.h>

static uint32_t *next_of(const sim *m, const sim_rank *r, uint32_t bucket)
{
	return &r->next[r->s.bucket[bucket].position % m->in->window];
}

uint32_t sim_next_task(const sim *m, const sim_rank *r, uint32_t bucket)
{
	return *next_of(m, r, bucket);
}

int sim_rank_make(sim *m, sim_rank *r, const sim_class *c)
{
	r->speed = c->speed;
	r->slowed = 1;
	r->computing = r->exchanging = SCHEDULE_NONE;
	r->next = calloc(m->in->window, sizeof *r->next);
	return schedule_make(&r->s, m->in->plan->nbuckets, m->tensors, m->in->plan->position, m->in->window,
	                     m->in->plan->lag) ||
	                       !r->next
	               ? -1
	               : 0;
}

void sim_tell(sim *m, const char *what, int thread, uint32_t index, uint32_t round, double start, double end)
{
	if (m->nevents == m->room) {
		uint32_t room = m->room ? 2 * m->room : 256;
		sim_event *more = reallocarray(m->events, room, sizeof *more);

		if (!more) {
			m->failed = 1;
			return;
		}
		m->events = more;
		m->room = room;
	}
	m->events[m->nevents++] = (sim_event){what, thread, index, round, start, end};
}

void sim_admit(const sim *m, sim_rank *r)
{
	for (uint32_t b; (b = schedule_admit(&r->s)) != SCHEDULE_NONE;)
		*next_of(m, r, b) = 0;
}

static void begin_work(sim *m, sim_rank *r)
{
	uint32_t next = *next_of(m, r, r->computing);
	const sim_part *p = &m->part_of[r->computing][next];
	r->work = sim_told(m, r) ? m->in->buckets[r->computing].seconds[next] : p->work;
	r->computes_since = r->now;
}

static void take_bucket(sim *m, sim_rank *r)
{
	uint32_t b = schedule_compute(&r->s);
	if (b == SCHEDULE_NONE)
		return;
	r->computing = b;
	if (!*next_of(m, r, b))
		schedule_begun(&r->s, b, m->part_of[b][0].left);
	begin_work(m, r);
}

static void bucket_ended(sim *m, sim_rank *r, uint32_t b)
{
	if (schedule_ended(&r->s, b)) {
		r->exposed = r->now - r->given;
		r->n_ended++;
		if (sim_by_layers(m)) {
			r->ended_before = r->ended;
			r->ended = r->now;
		}
	}
	sim_admit(m, r);
	sim_look_up(m, r);
}

static void computed(sim *m, sim_rank *r)
{
	uint32_t b = r->computing, *next = next_of(m, r, b);
	const sim_bucket *s = &m->in->buckets[b];
	if (sim_told(m, r)) {
		if (sim_last_step(m, r->n_ended))
			sim_tell(m, task_name(s->tasks[*next].kind), SIM_COMPUTE, b, s->tasks[*next].round,
			         r->computes_since, r->now);
		++*next;
		if (*next < m->part_of[b][*next - 1].end) {
			begin_work(m, r);
			return;
		}
	} else {
		*next = m->part_of[b][*next].end;
	}
	r->computing = SCHEDULE_NONE;
	if (*next == s->ntasks) {
		bucket_ended(m, r, b);
	} else {
		schedule_reached(&r->s, b, m->part_of[b][*next].left);
		r->look = 1;
	}
}

static void exchanged(sim *m, sim_rank *r)
{
	uint32_t b = r->exchanging, *next = next_of(m, r, b);
	const sim_bucket *s = &m->in->buckets[b];
	if (r == m->ranks && sim_last_step(m, r->n_ended)) {
		m->exchange += r->moves_to - r->moves_from;
		if (m->with_events)
			sim_tell(m, task_name(s->tasks[*next].kind), SIM_EXCHANGE, b, s->tasks[*next].round,
			         r->moves_from, r->moves_to);
	}
	++*next;
	r->exchanging = SCHEDULE_NONE;
	r->look = 1;
	schedule_exchanged(&r->s, b, m->part_of[b][*next].left);
}

static int moves(const sim_rank *r)
{
	return r->exchanging != SCHEDULE_NONE && r->now >= r->moves_from && r->now < r->moves_to;
}

static double rate(const sim *m, const sim_rank *r)
{
	double share = r->busy ? m->in->beside_application : 1;
	return moves(r) ? share * m->in->beside_exchange : share;
}

/* Makes what the application has left take longer or shorter, when one of the others has begun or stopped. */
static void slow_down(const sim *m, sim_rank *r)
{
	double slowed = 1;
	if (!r->busy)
		return;
	if (moves(r))
		slowed += m->in->slowed_by_exchange;
	if (r->computing != SCHEDULE_NONE)
		slowed *= 1 + m->in->slowed_by_compute;
	if (slowed == r->slowed)
		return;
	r->until = r->now + (r->until - r->now) * slowed / r->slowed;
	r->slowed = slowed;
}

/* Moves all three threads, by the next event of theirs. */
uint32_t sim_advance(sim *m, sim_rank *r)
{
	for (;;) {
		int computes = r->computing != SCHEDULE_NONE, exchanges = r->exchanging != SCHEDULE_NONE;
		double speed = rate(m, r), done = computes ? r->now + r->work / speed : INFINITY, t;

		slow_down(m, r);
		if (r->look && !exchanges) {
			uint32_t b = schedule_exchange(&r->s);

			r->look = 0;
			if (b != SCHEDULE_NONE) {
				r->exchanging = b;
				r->moves_from = r->moves_to = INFINITY;
				return b;
			}
		}
		t = r->until < done ? r->until : done;
		if (exchanges) {
			double moves = r->now < r->moves_from ? r->moves_from : r->moves_to;

			t = moves < t ? moves : t;
		}
		if (isinf(t))
			return SCHEDULE_NONE;
		if (computes) {
			r->work -= (t - r->now) * speed;
			if (r == m->ranks && sim_last_step(m, r->n_ended))
				m->compute += t - r->now;
		}
		r->now = t;
		if (t >= r->until)
			sim_application(m, r);
		if (exchanges && t >= r->moves_to)
			exchanged(m, r);
		if (computes && t >= done)
			computed(m, r);
		if (r->computing == SCHEDULE_NONE)
			take_bucket(m, r);
	}
}
