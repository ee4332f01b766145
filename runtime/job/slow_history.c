#include "job/slow_history.h"

#include <math.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#define CAUSES 16 /* ranks and kinds that are remembered, those that cost most */

typedef struct cause {
	slow_rank worst;
	double cost; /* seconds */
} cause;

struct slow_history {
	int n;
	bool any;         /* a stretch has ended */
	rank_times *base; /* the totals when the latest one did */
	slow_rank latest; /* what was found in it */
	cause cause[CAUSES];
};

slow_history *slow_history_open(int n)
{
	slow_history *h = calloc(1, sizeof *h);
	if (!h)
		return NULL;
	h->n = n;
	h->base = calloc((size_t)n, sizeof *h->base);
	if (h->base)
		return h;
	free(h);
	return NULL;
}

void slow_history_close(slow_history *h)
{
	if (!h)
		return;
	free(h->base);
	free(h);
}

int slow_history_ranks(const slow_history *h)
{
	return h->n;
}

bool slow_history_is_due(const slow_history *h, const rank_times *rank0)
{
	return rank0->step_s >= h->base[0].step_s + SLOW_STRETCH_SECONDS &&
	       rank0->steps >= h->base[0].steps + SLOW_STRETCH_STEPS;
}

/* Says which fields are no totals, but of the latest steps. */
static bool is_latest(size_t field)
{
	static const size_t latest[] = {offsetof(rank_times, usual_s),   offsetof(rank_times, off_s),
	                                offsetof(rank_times, speed_s),   offsetof(rank_times, link_rate),
	                                offsetof(rank_times, link_peer), offsetof(rank_times, link_full)};
	for (size_t i = 0; i < sizeof latest / sizeof *latest; i++)
		if (latest[i] == field * sizeof(double))
			return true;
	return false;
}

/* What has come since `then`: nothing where a rank has told nothing new, or less than before. */
static void since(const rank_times *now, const rank_times *then, rank_times *out)
{
	double a[RANK_TIMES_FIELDS], b[RANK_TIMES_FIELDS];
	*out = (rank_times){0};
	if (now->steps <= then->steps)
		return;
	memcpy(a, now, sizeof a);
	memcpy(b, then, sizeof b);
	for (size_t i = 0; i < RANK_TIMES_FIELDS; i++)
		if (!is_latest(i))
			a[i] = fmax(a[i] - b[i], 0);
	memcpy(out, a, sizeof a);
	/* Of fewer steps the mean may be further off. */
	out->off_s *= sqrt(now->steps / out->steps);
	if (out->link_bytes <= 0 || out->link_s <= 0)
		out->link_rate = 0;
}

/* Looks at what has come since the latest stretch ended. */
static bool find_since(const slow_history *h, const rank_times *now, slow_rank *out)
{
	rank_times *t = calloc((size_t)h->n, sizeof *t);
	bool found = false;
	*out = (slow_rank){.kind = SLOW_NOTHING, .rank = -1, .peer = -1};
	if (!t)
		return false;
	for (int r = 0; r < h->n; r++)
		since(&now[r], &h->base[r], &t[r]);
	found = slow_rank_find(t, h->n, out);
	free(t);
	return found;
}

/* The place of this rank and kind, or of what has cost the least. */
static cause *cause_of(cause c[CAUSES], const slow_rank *s)
{
	cause *least = c;
	for (int i = 0; i < CAUSES; i++) {
		if (c[i].cost > 0 && c[i].worst.rank == s->rank && c[i].worst.kind == s->kind)
			return &c[i];
		if (c[i].cost < least->cost)
			least = &c[i];
	}
	*least = (cause){.cost = 0};
	return least;
}

static void blame(cause c[CAUSES], const slow_rank *s, double seconds)
{
	cause *of = cause_of(c, s);
	of->cost += s->share * seconds;
	if (s->share > of->worst.share)
		of->worst = *s;
}

void slow_history_add(slow_history *h, const rank_times *now)
{
	if (find_since(h, now, &h->latest))
		blame(h->cause, &h->latest, now[0].step_s - h->base[0].step_s);
	memcpy(h->base, now, (size_t)h->n * sizeof *now);
	h->any = true;
}

bool slow_history_latest(const slow_history *h, const rank_times *now, slow_rank *out)
{
	if (!h->any)
		return slow_rank_find(now, h->n, out);
	*out = h->latest;
	return out->kind != SLOW_NOTHING;
}

bool slow_history_worst(const slow_history *h, const rank_times *now, slow_rank *out)
{
	cause c[CAUSES];
	slow_rank last;
	memcpy(c, h->cause, sizeof c);
	/* The stretch that has begun counts, too. */
	if (h->any && now[0].steps >= h->base[0].steps + SLOW_STRETCH_STEPS && find_since(h, now, &last))
		blame(c, &last, now[0].step_s - h->base[0].step_s);
	slow_rank_find(now, h->n, out);
	for (int i = 0; i < CAUSES; i++) {
		double share = c[i].cost / now[0].step_s;

		if (c[i].cost <= 0 || share <= fmax(SLOW_RANK_TOLD, out->share))
			continue;
		*out = c[i].worst;
		out->share = share;
	}
	return out->kind != SLOW_NOTHING;
}
