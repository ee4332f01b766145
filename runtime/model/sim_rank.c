#include "sim_rank.h"

#include <math.h>
#include <stdlib.h>

static uint32_t *next_of(const sim *m, const sim_rank *r, uint32_t bucket)
{
	return &r->next[r->s.bucket[bucket].place % m->in->window];
}

uint32_t sim_next_task(const sim *m, const sim_rank *r, uint32_t bucket)
{
	return *next_of(m, r, bucket);
}

int sim_rank_make(sim *m, sim_rank *r, const sim_class *c)
{
	r->speed = c->speed;
	r->computing = r->exchanging = SCHEDULE_NONE;
	r->next = calloc(m->in->window, sizeof *r->next);
	return schedule_make(&r->s, m->in->plan->nbuckets, m->tensors, m->in->plan->place, m->in->window,
	                     m->in->plan->lag) || !r->next ? -1 : 0;
}

/* ---- what is told of rank 0 --------------------------------------------- */

static int last_step(const sim *m, uint32_t step)
{
	return step + 1 == m->in->steps;
}

static int told(const sim *m, const sim_rank *r)
{
	return m->with_events && r == m->ranks;
}

static void tell(sim *m, const char *what, int thread, uint32_t index, uint32_t round, double start, double end)
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

/* ---- the application's thread ------------------------------------------- */

static void does(sim_rank *r, sim_doing what, double seconds)
{
	r->doing = what;
	r->busy = seconds > 0 && isfinite(seconds);
	r->since = r->now;
	r->until = r->now + seconds;
}

static void waits(sim_rank *r, sim_doing what)
{
	does(r, what, INFINITY);
}

static int by_layers(const sim *m)
{
	return m->in->each_layer && m->in->steps > 1;
}

static void begin_input(sim_rank *r)
{
	does(r, SIM_INPUT, r->batch > r->now ? r->batch - r->now : 0);
	r->busy = 0;
}

static void begin_forward(sim *m, sim_rank *r)
{
	double seconds = m->in->forward[r->tensor] / r->speed;

	/* Nobody looks at single layers. */
	if (!by_layers(m) && !told(m, r)) {
		r->tensor = 0;
		seconds = m->forward / r->speed;
	}
	if (by_layers(m) && r->step)
		seconds += m->in->update / m->in->n;
	does(r, SIM_FORWARD, seconds);
}

static int bucket_over(const sim *m, const sim_rank *r)
{
	return r->over >= r->step || r->s.bucket[m->bucket_of[r->tensor]].state == SCHEDULE_ENDED;
}

static void begin_layer(sim *m, sim_rank *r)
{
	if (by_layers(m) && !bucket_over(m, r))
		waits(r, SIM_LAYER);
	else
		begin_forward(m, r);
}

static void admit(const sim *m, sim_rank *r)
{
	for (uint32_t b; (b = schedule_admit(&r->s)) != SCHEDULE_NONE;)
		*next_of(m, r, b) = 0;
}

static void step_ended(sim *m, sim_rank *r)
{
	r->ended_before = r->ended;
	r->ended = r->now;
	if (last_step(m, r->step++))
		waits(r, SIM_DONE);
	else
		begin_input(r);
}

/* All gradients of the step are given. */
static void passes_over(sim *m, sim_rank *r)
{
	r->given = r->now;
	if (!by_layers(m) || last_step(m, r->step)) {
		waits(r, SIM_STEP);
		return;
	}
	r->step++;
	begin_input(r);
}

/* What waits for buckets, when one has ended. */
static void look_up(sim *m, sim_rank *r)
{
	if (r->doing == SIM_LAYER && bucket_over(m, r))
		begin_forward(m, r);
	else if (r->doing == SIM_STEP && r->over > r->step && !by_layers(m))
		does(r, SIM_UPDATE, m->in->update);
	else if (r->doing == SIM_STEP && r->over > r->step)
		waits(r, SIM_DONE);
}

static void application(sim *m, sim_rank *r)
{
	static const char *const names[] = {[SIM_FORWARD] = "forward", [SIM_BACKWARD] = "backward", [SIM_UPDATE] = "update"};

	if (told(m, r) && last_step(m, r->step) && r->doing != SIM_INPUT)
		tell(m, names[r->doing], SIM_APPLICATION, r->doing == SIM_UPDATE ? 0 : r->tensor, 0, r->since, r->now);
	switch (r->doing) {
	case SIM_INPUT:
		if (last_step(m, r->step) && r == m->ranks)
			m->origin = r->now;
		r->batch = r->now + m->in->io + m->in->copy;
		r->tensor = m->in->n - 1;
		begin_layer(m, r);
		break;
	case SIM_FORWARD:
		if (r->tensor) {
			r->tensor--;
			begin_layer(m, r);
		} else {
			does(r, SIM_BACKWARD, m->in->backward[0] / r->speed);
		}
		break;
	case SIM_BACKWARD:
		schedule_given(&r->s, m->bucket_of[r->tensor]);
		admit(m, r);
		if (++r->tensor < m->in->n) {
			does(r, SIM_BACKWARD, m->in->backward[r->tensor] / r->speed);
		} else {
			r->tensor = 0;
			passes_over(m, r);
		}
		break;
	default: /* UPDATE: the others wait */
		step_ended(m, r);
	}
}

/* ---- the reducer's threads ---------------------------------------------- */

static void begin_work(sim *m, sim_rank *r)
{
	uint32_t next = *next_of(m, r, r->computing);
	const sim_part *p = &m->part_of[r->computing][next];

	r->work = told(m, r) ? m->in->buckets[r->computing].seconds[next] : p->work;
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
		r->over++;
		if (by_layers(m)) {
			r->ended_before = r->ended;
			r->ended = r->now;
		}
	}
	admit(m, r);
	look_up(m, r);
}

static void computed(sim *m, sim_rank *r)
{
	uint32_t b = r->computing, *next = next_of(m, r, b);
	const sim_bucket *s = &m->in->buckets[b];

	if (told(m, r)) {
		if (last_step(m, r->over))
			tell(m, compose_name(s->tasks[*next].kind), SIM_COMPUTE, b, s->tasks[*next].round, r->computes_since, r->now);
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

	if (r == m->ranks && last_step(m, r->over)) {
		m->exchange += r->moves_to - r->moves_from;
		if (m->with_events)
			tell(m, compose_name(s->tasks[*next].kind), SIM_EXCHANGE, b, s->tasks[*next].round, r->moves_from,
			     r->moves_to);
	}
	++*next;
	r->exchanging = SCHEDULE_NONE;
	r->look = 1;
	schedule_exchanged(&r->s, b, m->part_of[b][*next].left);
}

/* ---- all three ---------------------------------------------------------- */

static double rate(const sim *m, const sim_rank *r)
{
	double share = r->busy ? m->in->beside_application : 1;

	if (r->exchanging != SCHEDULE_NONE && r->now >= r->moves_from && r->now < r->moves_to)
		share *= m->in->beside_exchange;
	return share;
}

uint32_t sim_advance(sim *m, sim_rank *r)
{
	for (;;) {
		int computes = r->computing != SCHEDULE_NONE, exchanges = r->exchanging != SCHEDULE_NONE;
		double speed = rate(m, r), done = computes ? r->now + r->work / speed : INFINITY, t;

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
			if (r == m->ranks && last_step(m, r->over))
				m->compute += t - r->now;
		}
		r->now = t;
		if (t >= r->until)
			application(m, r);
		if (exchanges && t >= r->moves_to)
			exchanged(m, r);
		if (computes && t >= done)
			computed(m, r);
		if (r->computing == SCHEDULE_NONE)
			take_bucket(m, r);
	}
}
