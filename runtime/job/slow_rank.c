#include "job/slow_rank.h"

#include "base/fit.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define STEPS_LEAST 8.0 /* with fewer a rank does not count */
#define EXPLAINS 0.6    /* a cause is the one when it explains so much of what the rank takes longer */
#define CONFIRMED 0.5   /* the others must have waited for so much of it */
#define CLOCKS_DIFFER 1.15
#define COMPUTES 0.2 /* processors work for more than this share of the time where it is computing that takes it */
#define CHANCE 1e-3  /* pauses that chance would deal to one rank so rarely are no chance */
#define WHILE_STEPS 1.0
#define PAUSES_MOST 10000 /* more are counted as that many */
#define LINK_SLOW (1 / 3.0)
#define LIKE_NORMAL 1.4826 /* from a median deviation to a standard deviation */

/* The rank that is looked at, beside the others. Seconds a step. */
typedef struct evidence {
	const rank_times *t; /* all ranks */
	double *room;        /* for a column of them */
	int n, rank;
	double step;         /* the median */
	double own, usual;   /* own parts: its own, and the others' median */
	double excess, cost; /* it takes so much longer, and the others wait for so much of that */
	bool steady, rare;   /* the excess is beyond noise; its pauses are */
} evidence;

typedef double column(const rank_times *t);

static double a_step(const rank_times *t, double total)
{
	return total / t->steps;
}

static double step_of(const rank_times *t)
{
	return a_step(t, t->step_s);
}
static double own_of(const rank_times *t)
{
	return a_step(t, t->own_s);
}
static double load_of(const rank_times *t)
{
	return a_step(t, t->load_s);
}
static double wait_of(const rank_times *t)
{
	return a_step(t, t->wait_s);
}
static double pause_of(const rank_times *t)
{
	return a_step(t, t->pause_s);
}
static double samples_of(const rank_times *t)
{
	return a_step(t, t->samples);
}
static double speed_of(const rank_times *t)
{
	return t->speed_s;
}
static double queue_of(const rank_times *t)
{
	return a_step(t, t->queue_s);
}
/* Ranks that send over no such link have no say. */
static double rate_of(const rank_times *t)
{
	return t->link_rate > 0 && t->link_s > 0 ? t->link_rate : -1;
}
/* Returns the processors' seconds in the own part. */
static double cpu_of(const rank_times *t)
{
	return t->cpu_own_s > 0 ? own_of(t) * t->cpu_s / t->cpu_own_s : 0;
}
static double median_of(const rank_times *t)
{
	return t->usual_s;
}
static double noise_of(const rank_times *t)
{
	return t->off_s;
}

static bool usable(const rank_times *t)
{
	return t->steps >= STEPS_LEAST && t->step_s > 0;
}

/* The median of a column over the ranks but one, and -1: over all. What is negative does not count. */
static double usual(const evidence *e, int but, column *of)
{
	size_t n = 0;
	for (int r = 0; r < e->n; r++)
		if (r != but && usable(&e->t[r]) && of(&e->t[r]) >= 0)
			e->room[n++] = of(&e->t[r]);
	return fit_median(e->room, n);
}

/* How far the others are from their median, as the standard deviation of what is normal. */
static double spread(const evidence *e, column *of, double middle)
{
	size_t n = 0;
	for (int r = 0; r < e->n; r++)
		if (r != e->rank && usable(&e->t[r]))
			e->room[n++] = fabs(of(&e->t[r]) - middle);
	return n > 2 ? LIKE_NORMAL * fit_median(e->room, n) : 0;
}

static int largest(const evidence *e, column *of)
{
	int most = -1;
	for (int r = 0; r < e->n; r++)
		if (usable(&e->t[r]) && (most < 0 || of(&e->t[r]) > of(&e->t[most])))
			most = r;
	return most;
}

/* How likely it is that of `all` pauses, dealt to n ranks by chance, so many or more are one's. */
static double chance(double mine, double all, int n)
{
	double p = 1.0 / n, sum = 0;
	if (mine < 1)
		return 1;
	if (all > PAUSES_MOST) {
		mine *= PAUSES_MOST / all;
		all = PAUSES_MOST;
	}
	for (double k = floor(mine); k <= all; k++)
		sum += exp(lgamma(all + 1) - lgamma(k + 1) - lgamma(all - k + 1) + k * log(p) + (all - k) * log1p(-p));
	return sum;
}

/* Its pauses are more than chance would give to any one of them. */
static bool pauses_stand_out(const evidence *e)
{
	double all = 0;
	int n = 0;
	for (int r = 0; r < e->n; r++)
		if (usable(&e->t[r])) {
			all += e->t[r].pauses;
			n++;
		}
	return n * chance(e->t[e->rank].pauses, all, n) < CHANCE;
}

/* Takes the rank whose own part is the longest. */
static bool look_at_own(evidence *e)
{
	const rank_times *t;
	double noise, waited;
	e->rank = largest(e, own_of);
	t = &e->t[e->rank];
	e->own = own_of(t);
	e->usual = usual(e, e->rank, own_of);
	e->excess = e->own - e->usual;
	/* The others have waited longer than it has, by as much as it is late: two clocks say the same. */
	waited = usual(e, e->rank, wait_of) - wait_of(t);
	e->cost = fmin(e->excess, waited);
	/* If it were like the others, it would vary as they do. Few steps know little of that, and few ranks. */
	noise = usual(e, e->rank, noise_of);
	noise = (5 + 30 / t->steps) * M_SQRT2 * (e->n > 3 ? noise : fmax(noise, noise_of(t)));
	e->steady = e->excess > noise && e->excess > 4 * spread(e, own_of, e->usual);
	e->rare = pauses_stand_out(e);
	return e->cost >= CONFIRMED * e->excess && (e->steady || e->rare);
}

/* Takes the rank whose busiest link is the slowest, where that link has been busy for as long as it then costs. */
double slow_rank_link(const rank_times *t)
{
	if (!(t->link_full > 0) || !(rate_of(t) > 0))
		return 0;
	/* The kernel remembers its best moment, with what a switch had saved up for it. */
	return fmin(rate_of(t), t->link_bytes / t->link_s);
}

static bool look_at_links(evidence *e)
{
	double busy, waited;
	e->rank = -1;
	for (int r = 0; r < e->n; r++)
		if (usable(&e->t[r]) && slow_rank_link(&e->t[r]) > 0 &&
		    (e->rank < 0 || rate_of(&e->t[r]) < rate_of(&e->t[e->rank])))
			e->rank = r;
	if (e->rank < 0)
		return false;
	const rank_times *t = &e->t[e->rank];
	e->usual = usual(e, e->rank, rate_of);
	if (!(rate_of(t) < LINK_SLOW * e->usual))
		return false;
	e->own = slow_rank_link(t);
	busy = a_step(t, t->link_s);
	waited = usual(e, -1, wait_of);
	e->excess = a_step(t, t->link_bytes) * (1 / e->own - 1 / e->usual);
	e->cost = fmin(fmin(e->excess, busy), waited);
	return e->cost >= CONFIRMED * e->excess;
}

/* The functions below say whether a kind explains what the rank takes longer, and how much of it: *part. */
typedef bool explanation(const evidence *e, double *part);

static double beyond(const evidence *e, column *of)
{
	return of(&e->t[e->rank]) - usual(e, e->rank, of);
}

/* How many times the others' the rank's is; 0: one of them is not known. */
static double times_usual(const evidence *e, column *of)
{
	double others = usual(e, e->rank, of), mine = of(&e->t[e->rank]);
	return others > 0 && mine > 0 ? mine / others : 0;
}

static bool late_data(const evidence *e, double *part)
{
	*part = beyond(e, load_of);
	return *part >= EXPLAINS * e->excess;
}

static bool pauses(const evidence *e, double *part)
{
	*part = beyond(e, pause_of);
	return e->rare && *part >= EXPLAINS * e->excess;
}

/* The rank is slow in most of its steps. */
static bool in_most_steps(const evidence *e)
{
	return e->steady && beyond(e, median_of) >= EXPLAINS * e->excess;
}

/* How many times as much as the others it computes; 0: not known, or computing is not what takes the time. */
static double cpu_beside(const evidence *e)
{
	return usual(e, e->rank, cpu_of) > COMPUTES * e->usual ? times_usual(e, cpu_of) : 0;
}

/* It takes as many samples more, or computes as much more, as it takes longer, on a processor that is not slower. */
static bool more_work(const evidence *e, double *part)
{
	double more = e->excess / e->usual, samples = times_usual(e, samples_of), cpu = cpu_beside(e);
	if (!in_most_steps(e) || times_usual(e, speed_of) > 1 + more / 3)
		return false;
	*part = samples;
	if (samples >= 1 + EXPLAINS * more)
		return true;
	*part = cpu;
	return times_usual(e, speed_of) > 0 && cpu >= 1 + EXPLAINS * more;
}

static bool slow_clock(const evidence *e, double *part)
{
	*part = times_usual(e, speed_of);
	return in_most_steps(e) && *part > fmax(1 + e->excess / e->usual / 3, CLOCKS_DIFFER);
}

static bool shared_processor(const evidence *e, double *part)
{
	*part = beyond(e, queue_of);
	return in_most_steps(e) && *part >= CONFIRMED * e->excess;
}

/* It takes longer, and computes no more. */
static bool idles(const evidence *e, double *part)
{
	double cpu = cpu_beside(e);
	*part = 1;
	return in_most_steps(e) && cpu > 0 && cpu < 1 + e->excess / e->usual / 3;
}

static bool slow_computing(const evidence *e, double *part)
{
	*part = 0;
	return in_most_steps(e);
}

static bool slow_link(const evidence *e, double *part)
{
	*part = e->own;
	return true;
}

/* Says in a sentence what the rank was found by. */
typedef void sentence(const slow_rank *s, char *out, size_t room);
static sentence say_own, say_link;

#define COMPUTING "slow computing"

/* The first of a look's that explains it is the one. What stands between the last two is `part` times `scale`; without a
 * scale the first stands alone. */
static const struct {
	bool (*look)(evidence *e);
	explanation *explains;
	sentence *say;
	const char *name, *advice;
	double scale;
	const char *before, *behind;
} kinds[SLOW_KINDS] = {
	[SLOW_NOTHING] = {.say = say_own, .name = "nothing", .advice = "", .before = ""},
	[SLOW_DATA] = {look_at_own, late_data, say_own, "late data",
                       "give its datasets more workers or prefetch, or stage the data on its node", 1e3,
                       ", and it waits ", " ms longer for data"},
	[SLOW_PAUSES] =
		{look_at_own, pauses, say_own, "pauses",
                 "let all ranks collect garbage and write checkpoints in the same step, and see whether the node swaps",
                 1e3, ", ", " ms of that in single steps"},
	[SLOW_WORK] = {look_at_own, more_work, say_own, "unequal work",
                       "give all ranks as many samples of the same length", 1, ", for ", " times as much work"},
	[SLOW_CLOCK] = {look_at_own, slow_clock, say_own, COMPUTING,
                        "look at the clocks, the power and the heat of its node", 1, ", and its processor takes ",
                        " times as long for the same"},
	[SLOW_SHARED] = {look_at_own, shared_processor, say_own, COMPUTING,
                         "look at what else runs on its node, and at --cpus-per-task", 1e3, ", and it waits ",
                         " ms longer for a processor"},
	[SLOW_IDLE] = {look_at_own, idles, say_own, COMPUTING,
                       "it waits for something: look at its loader, its file system and its locks", 0,
                       ", and it computes no more than they", NULL},
	[SLOW_COMPUTING] =
		{look_at_own, slow_computing, say_own, COMPUTING,
                 "look at what else runs on its node, at its clocks and at the processors that the rank may use", 0, "",
                 NULL},
	[SLOW_LINK] =
		{look_at_links, slow_link, say_link, "slow link",
                 "try gradcomp doctor, which measures all pairs of nodes, and look at the port, or name another network by transport.interface",
                 0, NULL, NULL},
};

static void say_own(const slow_rank *s, char *out, size_t room)
{
	char more[96];
	if (kinds[s->kind].scale > 0)
		snprintf(more, sizeof more, "%s%.1f%s", kinds[s->kind].before, s->part * kinds[s->kind].scale,
		         kinds[s->kind].behind);
	else
		snprintf(more, sizeof more, "%s", kinds[s->kind].before);
	snprintf(out, room, "its own part of a step takes %.1f ms, the others' %.1f ms%s", s->own * 1e3, s->usual * 1e3,
	         more);
}

static void say_link(const slow_rank *s, char *out, size_t room)
{
	snprintf(out, room, "its link to rank %d carries %.0f Mbit/s, the others' %.0f Mbit/s", s->peer, s->own * 8e-6,
	         s->usual * 8e-6);
}

const char *slow_rank_kind(slow_kind kind)
{
	return kinds[kind].name;
}

slow_kind slow_rank_family(slow_kind kind)
{
	int k = 0;
	while (strcmp(kinds[k].name, kinds[kind].name))
		k++;
	return (slow_kind)k;
}

const char *slow_rank_advice(slow_kind kind)
{
	return kinds[kind].advice;
}

/* Takes what costs more than what was found before. */
static void weigh(evidence *e, slow_kind kind, slow_rank *out)
{
	double share = e->cost / e->step, part, peer = e->t[e->rank].link_peer;
	/* A rank may be slow for a while by chance: of few steps it must be slower. */
	double least = SLOW_RANK_TOLD + WHILE_STEPS / e->t[e->rank].steps;
	if (share <= fmax(least, out->share) || !kinds[kind].explains(e, &part))
		return;
	*out = (slow_rank){.kind = kind,
	                   .rank = e->rank,
	                   .peer = kind == SLOW_LINK && peer <= e->n ? (int)peer - 1 : -1,
	                   .share = fmin(share, 1),
	                   .own = e->own,
	                   .usual = e->usual,
	                   .part = part};
}

bool slow_rank_find(const rank_times *t, int n, slow_rank *out)
{
	evidence e = {.t = t, .n = n};
	int counted = 0;
	*out = (slow_rank){.kind = SLOW_NOTHING, .rank = -1, .peer = -1};
	for (int r = 0; r < n; r++)
		counted += usable(&t[r]);
	/* Those that have said nothing may be the slow ones. */
	if (counted < 2 || 2 * counted <= n || !(e.room = calloc((size_t)n, sizeof *e.room)))
		return false;
	e.step = usual(&e, -1, step_of);
	bool (*looked)(evidence *) = NULL;
	bool seen = false;
	for (int k = SLOW_NOTHING + 1; k < SLOW_KINDS; k++) {
		if (kinds[k].look != looked)
			seen = kinds[k].look(&e);
		looked = kinds[k].look;
		if (seen)
			weigh(&e, (slow_kind)k, out);
	}
	free(e.room);
	return out->kind != SLOW_NOTHING;
}

void slow_rank_evidence(const slow_rank *s, char *out, size_t room)
{
	kinds[s->kind].say(s, out, room);
}

void slow_rank_line(const slow_rank *s, const char *host, char *out, size_t room)
{
	char why[256];
	slow_rank_evidence(s, why, sizeof why);
	snprintf(out, room, "rank %d on %s costs %.0f %% of a step by %s: %s; %s", s->rank, host, s->share * 100,
	         slow_rank_kind(s->kind), why, slow_rank_advice(s->kind));
}
