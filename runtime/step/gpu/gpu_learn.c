/* Lets the host learn of a step whose tasks were all enqueued, when the device has done it: what was not finite,
 * what peers damaged, norms, and how long tasks took, which timers on the streams say. It is read when a later step
 * needs the place, when somebody asks for counters, or when nothing is under way. */
#include "step/gpu/gpu.h"
#include "step/residual_norm.h"

#include "base/error.h"

#include <math.h>

void gpu_learn_begin(engine *eng, bucket *b)
{
	gpu_step *s = gpu_step_of(eng);
	gpu_slot *slot = &s->slots[s->nslots++];
	slot->bucket = b->pub.index;
	slot->first = b->pub.first;
	slot->ntensors = b->pub.ntensors;
	slot->numel = b->pub.numel;
	slot->ntasks = 0;
	b->slot = slot;
}

/* Returns the bytes of a rank's payload, and in *sent what a rank sends for it at least. */
static double payload(const engine *eng, const bucket *b, const task *t, double *sent)
{
	const gradcomp_round *rd = &b->plan.rounds[t->round];
	double P = eng->layout.nranks, bytes = (double)task_round_bytes(rd);
	if (rd->pattern == GRADCOMP_GATHERED)
		*sent = (P - 1) * bytes;
	else if (rd->pattern == GRADCOMP_CODED)
		*sent = 2 * (P - 1) / P * (double)eng->compressor->code_bound(eng->instance, b->pub.numel);
	else
		*sent = 2 * (P - 1) / P * bytes;
	return bytes;
}

/* Returns the bytes of a task of two levels: it is of a level within the node, or of this rank's shards. */
static double payload_of_levels(const bucket *b, const task *t, double *sent)
{
	const bucket *part = b->part;
	double bytes = 0, held = 0, more;
	*sent = 0;
	for (; part; part = part->beside) {
		held += (double)part->pub.numel * sizeof(float);
		if (t->kind != TASK_EXCHANGE || !part->pub.numel || t->round >= part->plan.nrounds)
			continue;
		bytes += payload(part->of, part, t, &more);
		*sent += more;
	}
	if (t->kind == TASK_EXCHANGE)
		return bytes;
	/* Around the node all but what this rank holds goes through it. */
	bytes = (double)b->pub.numel * sizeof(float);
	*sent = bytes - held;
	return bytes;
}

static void *stream_of(const gpu *g, const bucket *b, const task *t)
{
	return task_exchanges(t->kind) ? g->exchange : b->work.queue;
}

const char *gpu_learn_start(engine *eng, bucket *b, const task *t)
{
	const gpu *g = gpu_of(eng);
	gpu_timed *at = &b->slot->tasks[b->slot->ntasks];
	const char *why = at->start ? NULL : g->d->timer(&at->start);
	if (!why && !at->end)
		why = g->d->timer(&at->end);
	at->t = *t;
	at->before = task_exchanges(t->kind) ? gpu_step_of(eng)->sent : NULL;
	at->sent = 0;
	at->bytes = !task_exchanges(t->kind) ? (double)b->pub.numel * sizeof(float)
	            : b->part                ? payload_of_levels(b, t, &at->sent)
	                                     : payload(eng, b, t, &at->sent);
	return why ? why : g->d->record(at->start, stream_of(g, b, t));
}

const char *gpu_learn_end(engine *eng, bucket *b, const task *t)
{
	const gpu *g = gpu_of(eng);
	void *const end = b->slot->tasks[b->slot->ntasks++].end;
	if (task_exchanges(t->kind))
		gpu_step_of(eng)->sent = end;
	return g->d->record(end, stream_of(g, b, t));
}

void gpu_learn_close(engine *eng)
{
	gpu *g = gpu_of(eng);
	for (int k = 0; k < 2; k++) {
		gpu_step *s = &g->steps[k];
		for (uint32_t i = 0; s->ready && i < eng->layout.ntensors; i++)
			g->d->event_free(s->ready[i]);
		for (uint32_t i = 0; s->slots && g->device.enqueues && i < eng->layout.ntensors; i++)
			for (int n = 0; n < MAX_TASKS; n++) {
				g->d->event_free(s->slots[i].tasks[n].start);
				g->d->event_free(s->slots[i].tasks[n].end);
			}
		g->d->event_free(s->over);
		g->d->unpin(s->words);
	}
}

/* Returns when a timer came, on the host's clock, told from one that came at `then`. */
static double when(const gpu *g, void *timer, void *other, double then)
{
	double before = 0;
	return g->d->elapsed(timer, other, &before) ? then : then - before;
}

/* An exchange begins when the one before it is over, whichever stream that is on; it takes no time of its own where it
 * was over before that one. */
static double began(const gpu *g, const gpu_timed *at, void *other, double then)
{
	const double start = when(g, at->start, other, then);
	return at->before ? fmax(start, fmin(when(g, at->before, other, then), when(g, at->end, other, then))) : start;
}

static void tell_nonfinite(engine *eng, const gpu_step *s, const gpu_slot *slot, const gpu_found *found)
{
	const char *again = eng->warned == 4 ? " (not told again)" : "";
	int passes = !!(eng->compressor->traits & GRADCOMP_TRAIT_PASSES_NONFINITE), mine = 0;
	for (uint32_t i = slot->first; i < slot->first + slot->ntensors && eng->warned < 5; i++) {
		if (!found->tensors[i - slot->first])
			continue;
		mine = 1;
		eng->warned++;
		log_line(&eng->job->log, passes ? GRADCOMP_LOG_WARN : GRADCOMP_LOG_INFO,
		         "step %llu: the gradient of '%s' on rank %d is not finite%s%s%s", (unsigned long long)s->step,
		         eng->layout.tensors[i].name, eng->group->ranks[eng->layout.rank],
		         eng->arrays.error ? ", or overflows with the error memory" : "",
		         passes ? ""
		                : "; this bucket's result is NaN on all ranks and the error memory stays as it was",
		         again);
	}
	if (!mine && !passes && found->words[WORD_SUM] && !eng->layout.rank && eng->warned < 5) {
		eng->warned++;
		log_line(
			&eng->job->log, GRADCOMP_LOG_INFO,
			"step %llu: the sum of gradients in the bucket of '%s' is not finite; its result is NaN on all ranks%s",
			(unsigned long long)s->step, eng->layout.tensors[slot->first].name, again);
	}
}

void gpu_learn_norms(engine *eng, const gpu_found *found, uint32_t first, uint32_t n)
{
	for (uint32_t i = 0; eng->arrays.memory && i < n; i++) {
		eng->meter.norms[first + i].u = found->u[i];
		residual_norm_tensor(eng, first + i, found->e[i]);
	}
}

/* Learns what was found in this rank's shards of the bucket: norms, unless it was given up, and whether what peers
 * sent was damaged. */
static int learn_parts(engine *eng, const gpu_step *s, const gpu_slot *slot, int bad)
{
	int fault = 0;
	for (const bucket *part = eng->list.buckets[slot->bucket].part; part; part = part->beside) {
		engine *in = part->of;
		if (!part->pub.numel)
			continue;
		const gpu_step *of = &gpu_of(in)->steps[s - gpu_of(eng)->steps];
		const gpu_found found = gpu_found_of(of->words, part);
		const int *words = found.words;
		fault |= words[WORD_FAULT];
		if (!bad && (words[WORD_BAD] || words[WORD_SUM]) && eng->warned < 5) {
			eng->warned++;
			log_line(
				&eng->job->log, GRADCOMP_LOG_INFO,
				"step %llu: gradients are finite on every rank, but not their sum in the bucket of '%s'; its result is "
				"NaN in the shards concerned, on all ranks%s",
				(unsigned long long)s->step, eng->layout.tensors[slot->first].name,
				eng->warned == 5 ? " (not told again)" : "");
		}
		bad |= words[WORD_BAD] || words[WORD_SUM];
		gpu_learn_norms(in, &found, part->pub.first, bad ? 0 : part->pub.ntensors);
	}
	return fault;
}

static gradcomp_status learn_slot(engine *eng, gpu_step *s, const gpu_slot *slot, double over, const step_observer *to,
                                  gradcomp_error *err)
{
	gpu *g = gpu_of(eng);
	const gpu_found found = gpu_found_in(s->words, slot->bucket, slot->first, slot->ntensors);
	const int *words = found.words;
	int bad = words[WORD_BAD] || words[WORD_SUM];
	for (int i = 0; i < slot->ntasks; i++) {
		const gpu_timed *at = &slot->tasks[i];
		to->task(to->ctx, &(observed_task){.step = s->step,
		                                   .row = s->row,
		                                   .nbuckets = s->nbuckets,
		                                   .bucket = slot->bucket,
		                                   .numel = (double)slot->numel,
		                                   .bytes = at->bytes,
		                                   .bad = bad,
		                                   .t = at->t,
		                                   .start = began(g, at, s->over, over),
		                                   .end = when(g, at->end, s->over, over)});
		g->device.sent += at->sent;
	}
	tell_nonfinite(eng, s, slot, &found);
	int damaged = learn_parts(eng, s, slot, bad);
	if (words[WORD_FAULT] || s->words[gpu_code_word(eng)] || damaged)
		return error_set(err, GRADCOMP_ERR_MISMATCH,
		                 "compressor '%s': what a rank sent in step %llu for the bucket of '%s' is damaged",
		                 eng->compressor->info.name, (unsigned long long)s->step,
		                 eng->layout.tensors[slot->first].name);
	if (bad) {
		eng->stats.nonfinite_steps += !eng->step_bad;
		eng->step_bad = 1;
	}
	gpu_learn_norms(eng, &found, slot->first, bad ? 0 : slot->ntensors);
	return GRADCOMP_OK;
}

static gradcomp_status learn_step(engine *eng, gpu_step *s, const step_observer *to, gradcomp_error *err)
{
	gpu *g = gpu_of(eng);
	gradcomp_status st = GRADCOMP_OK;
	double since = 0, over, now = clock_now();
	observed_step step = {.step = s->step, .row = s->row};
	void *timer = s->over;
	uint32_t n = eng->layout.ntensors;
	s->pending = 0;
	over = g->d->elapsed(g->clock_event, s->over, &since) ? now : g->clock + since;
	/* The two clocks run apart a little, but nothing came before it was there. */
	step.over = over = over > now ? now : over;
	for (uint32_t i = 0; i < n; i++) {
		double at = when(g, s->ready[i], s->over, over);
		to->ready(to->ctx, s->row, i, at);
		step.first = !i || at < step.first ? at : step.first;
		step.last = !i || at > step.last ? at : step.last;
	}
	for (uint32_t i = 0; !st && i < s->nslots; i++)
		st = learn_slot(eng, s, &s->slots[i], over, to, err);
	to->over(to->ctx, &step);
	eng->step_bad = 0;
	s->over = g->clock_event;
	g->clock_event = timer;
	g->clock = over;
	return st;
}

gradcomp_status gpu_learn(engine *eng, const step_observer *to, gradcomp_error *err)
{
	gpu *g = gpu_of(eng);
	gradcomp_status st = GRADCOMP_OK;
	if (!g->device.enqueues)
		return GRADCOMP_OK;
	for (int k = 0; !st && k < 2; k++) {
		gpu_step *s = &g->steps[(eng->step + (uint64_t)k) % 2];
		int is = 0;
		if (!s->pending || s->step == eng->step)
			continue;
		if (g->d->test(s->over, &is) || !is)
			break;
		st = learn_step(eng, s, to, err);
	}
	return st;
}

/* The step's place is taken already. */
static bool is_placed(const engine *eng)
{
	return !eng->ways.device->enqueues || (gpu_step_of(eng)->pending && gpu_step_of(eng)->step == eng->step);
}

void *gpu_learn_full(const engine *eng)
{
	int is = 0;
	if (is_placed(eng))
		return NULL;
	const gpu_step *s = gpu_step_of(eng);
	return s->pending && (gpu_of(eng)->d->test(s->over, &is) || !is) ? s->over : NULL;
}

gradcomp_status gpu_learn_room(engine *eng, const step_observer *to, gradcomp_error *err)
{
	if (is_placed(eng))
		return GRADCOMP_OK;
	gradcomp_status st = gpu_learn(eng, to, err);
	gpu_step *s = gpu_step_of(eng);
	s->pending = 1;
	s->step = eng->step;
	s->row = to->row(to->ctx);
	s->nbuckets = eng->list.nbuckets;
	s->nslots = 0;
	s->sent = NULL;
	return st;
}
