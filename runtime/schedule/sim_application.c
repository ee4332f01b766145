/* The application's thread of a simulated rank. */
#include "schedule/sim_internal.h"

#include <math.h>

static void does(sim_rank *r, sim_doing what, double seconds)
{
	r->doing = what;
	r->busy = seconds > 0 && isfinite(seconds);
	r->since = r->now;
	r->slowed = 1;
	r->until = r->now + seconds;
}

static void waits(sim_rank *r, sim_doing what)
{
	does(r, what, INFINITY);
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
	if (!sim_by_layers(m) && !sim_told(m, r)) {
		r->tensor = 0;
		seconds = m->forward / r->speed;
	}
	if (sim_by_layers(m) && r->step)
		seconds += m->in->update / m->in->n;
	does(r, SIM_FORWARD, seconds);
}

/* Begins the backward pass to the end of the bucket: until then nobody looks at single tensors. */
static void begin_backward(sim *m, sim_rank *r)
{
	does(r, SIM_BACKWARD,
	     (sim_told(m, r) ? m->in->backward[r->tensor] : m->backward[m->bucket_of[r->tensor]]) / r->speed);
}

static void give(sim *m, sim_rank *r)
{
	uint32_t b = m->bucket_of[r->tensor], end = sim_told(m, r) ? r->tensor + 1 : m->in->plan->end[b];
	while (r->tensor < end) {
		schedule_given(&r->s, b);
		r->tensor++;
	}
	sim_admit(m, r);
}

static int bucket_ended(const sim *m, const sim_rank *r)
{
	return r->n_ended >= r->step || r->s.bucket[m->bucket_of[r->tensor]].state == SCHEDULE_ENDED;
}

static void begin_layer(sim *m, sim_rank *r)
{
	if (sim_by_layers(m) && !bucket_ended(m, r))
		waits(r, SIM_LAYER);
	else
		begin_forward(m, r);
}

static void step_ended(sim *m, sim_rank *r)
{
	r->ended_before = r->ended;
	r->ended = r->now;
	if (sim_last_step(m, r->step++))
		waits(r, SIM_DONE);
	else
		begin_input(r);
}

/* All gradients of the step are given. */
static void end_passes(sim *m, sim_rank *r)
{
	r->given = r->now;
	if (!sim_by_layers(m) || sim_last_step(m, r->step)) {
		waits(r, SIM_STEP);
		return;
	}
	r->step++;
	begin_input(r);
}

/* Goes on with what waits for buckets, when one has ended. */
void sim_look_up(sim *m, sim_rank *r)
{
	if (r->doing == SIM_LAYER && bucket_ended(m, r))
		begin_forward(m, r);
	else if (r->doing == SIM_STEP && r->n_ended > r->step && !sim_by_layers(m))
		does(r, SIM_UPDATE, m->in->update);
	else if (r->doing == SIM_STEP && r->n_ended > r->step)
		waits(r, SIM_DONE);
}

void sim_application(sim *m, sim_rank *r)
{
	static const char *const names[] = {
		[SIM_FORWARD] = "forward", [SIM_BACKWARD] = "backward", [SIM_UPDATE] = "update"};
	if (sim_told(m, r) && sim_last_step(m, r->step) && r->doing != SIM_INPUT)
		sim_tell(m, names[r->doing], SIM_APPLICATION, r->doing == SIM_UPDATE ? 0 : r->tensor, 0, r->since,
		         r->now);
	switch (r->doing) {
	case SIM_INPUT:
		if (sim_last_step(m, r->step) && r == m->ranks)
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
			begin_backward(m, r);
		}
		break;
	case SIM_BACKWARD:
		give(m, r);
		if (r->tensor < m->in->n) {
			begin_backward(m, r);
		} else {
			r->tensor = 0;
			end_passes(m, r);
		}
		break;
	default: /* UPDATE: the others wait */
		step_ended(m, r);
	}
}
