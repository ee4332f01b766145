/* Which rank holds up the others, and by what: from generated steps of many jobs. Those without a cause, whatever their
 * noise, name nobody; a cause at any rank is found. Then records of totals, as ranks send them. */
#include "base/clock.h"
#include "job/rank_times.h"
#include "job/slow_history.h"
#include "tests/support/tap.h"
#include "tests/support/test_random.h"
#include "transport/wire/wire.h"

#include <math.h>
#include <stdlib.h>

enum { RANKS_MOST = 32 };

/* A step takes as long as the longest own part, and the exchange. */
typedef struct job_case {
	int ranks, steps, noise, cause, slow;
} job_case;

enum {
	NOISE_LITTLE,
	NOISE_MORE,
	NOISE_TAILS,
	NOISE_DRIFT,
	NOISE_COMMON,
	NOISE_PAUSES,
	NOISE_LENGTHS,
	NOISE_LOADING,
	NOISES
};
enum {
	CAUSE_NONE,
	CAUSE_CLOCK,
	CAUSE_NEIGHBOUR,
	CAUSE_SAMPLES,
	CAUSE_WAITS,
	CAUSE_LENGTH,
	CAUSE_LOADER,
	CAUSE_STALLS,
	CAUSE_PAUSES,
	CAUSE_LINK,
	CAUSES
};

static const struct {
	const char *name;
	slow_kind kind;
} causes[CAUSES] = {
	[CAUSE_CLOCK] = {"a processor at half speed", SLOW_CLOCK},
	[CAUSE_NEIGHBOUR] = {"a neighbour that computes", SLOW_SHARED},
	[CAUSE_WAITS] = {"a loader of another library", SLOW_IDLE},
	[CAUSE_SAMPLES] = {"twice the samples", SLOW_WORK},
	[CAUSE_LENGTH] = {"longer samples", SLOW_WORK},
	[CAUSE_LOADER] = {"a slow loader", SLOW_DATA},
	[CAUSE_STALLS] = {"a loader that stalls", SLOW_DATA},
	[CAUSE_PAUSES] = {"pauses", SLOW_PAUSES},
	[CAUSE_LINK] = {"a link at a tenth", SLOW_LINK},
};

static double normal(void)
{
	double u = draw();
	return sqrt(-2 * log(u > 0 ? u : 1e-12)) * cos(6.283185307179586 * draw());
}

/* How long the own part of a step takes, as a share of the usual length. */
static double noisy(int noise, double *drift, double common)
{
	switch (noise) {
	case NOISE_LITTLE:
		return 1 + 0.02 * normal();
	case NOISE_MORE:
		return fmax(0.3, 1 + 0.12 * normal());
	case NOISE_TAILS:
		return exp(0.4 * normal());
	case NOISE_DRIFT:
		*drift = 0.95 * *drift + 0.015 * normal();
		return fmax(0.3, 1 + *drift);
	case NOISE_COMMON:
		return common * (1 + 0.02 * normal());
	case NOISE_PAUSES:
		return draw() < 0.01 ? 6 : 1 + 0.03 * normal();
	case NOISE_LENGTHS:
		return draw() < 0.5 ? 0.8 : 1.2;
	default:
		return 1 + 0.05 * normal();
	}
}

static void run_case(const job_case *c, rank_times t[RANKS_MOST])
{
	times_keeper *k[RANKS_MOST];
	double drift[RANKS_MOST] = {0}, cores[RANKS_MOST], own[RANKS_MOST], load[RANKS_MOST];
	const double usual = 0.04, exchange = 0.01 * (c->cause == CAUSE_LINK ? 6 : 1);
	for (int r = 0; r < c->ranks; r++) {
		k[r] = rank_times_open();
		cores[r] = 1.5 + 0.1 * draw();
	}
	for (int s = 0; s < c->steps; s++) {
		double latest = 0, common = exp(0.3 * normal());

		for (int r = 0; r < c->ranks; r++) {
			bool slow = c->cause && r == c->slow;

			own[r] = usual * noisy(c->noise, &drift[r], common);
			load[r] = c->noise == NOISE_LOADING ? 0.004 * draw() : 0.0005;
			if (slow && (c->cause == CAUSE_CLOCK || c->cause == CAUSE_SAMPLES))
				own[r] *= 2;
			if (slow &&
			    (c->cause == CAUSE_NEIGHBOUR || c->cause == CAUSE_WAITS || c->cause == CAUSE_LENGTH))
				own[r] *= 1.6;
			if (slow && c->cause == CAUSE_LOADER)
				load[r] += 0.025;
			if (slow && c->cause == CAUSE_STALLS && s % 3 == 2)
				load[r] += 0.12;
			if (slow && c->cause == CAUSE_PAUSES && s % 4 == 3)
				own[r] += 0.25;
			own[r] += load[r];
			latest = fmax(latest, own[r]);
		}
		for (int r = 0; r < c->ranks; r++) {
			bool slow = c->cause && r == c->slow;
			double wait = latest - own[r] + exchange,
			       share = slow && (c->cause == CAUSE_NEIGHBOUR || c->cause == CAUSE_WAITS) ? 1 / 1.6 : 1;
			const step_times step = {.step = latest + exchange,
			                         .own = own[r],
			                         .wait = wait,
			                         .code_total = 0.001 * (s + 1),
			                         .exchange_total = (s + 1) * exchange,
			                         .cpu = s % 4 ? -1 : (own[r] - load[r]) * cores[r] * share};

			rank_times_add(k[r], &step, load[r],
			               c->cause == CAUSE_LENGTH            ? 0
			               : slow && c->cause == CAUSE_SAMPLES ? 64
			                                                   : 32);
		}
	}
	for (int r = 0; r < c->ranks; r++) {
		bool slow = c->cause && r == c->slow;

		rank_times_get(k[r], &t[r]);
		t[r].speed_s = 13e-6 * (1 + 0.05 * draw()) * (slow && c->cause == CAUSE_CLOCK ? 2 : 1);
		t[r].queue_s = t[r].own_s * (0.01 * draw() + (slow && c->cause == CAUSE_NEIGHBOUR ? 0.375 : 0));
		t[r].link_rate = 1e9 * exp(0.2 * normal()) / (slow && c->cause == CAUSE_LINK ? 10 : 1);
		t[r].link_bytes = 5e6 * c->steps;
		t[r].link_s = t[r].link_bytes / t[r].link_rate * (1.1 + 0.3 * draw());
		t[r].link_peer = (r + 1) % c->ranks + 1;
		t[r].link_full = draw() < 0.8 || c->cause == CAUSE_LINK;
		rank_times_close(k[r]);
	}
}

static const int sizes[] = {2, 3, 4, 8, 16, 32}, lengths[] = {20, 60, 300};
#define COUNT(a) (sizeof(a) / sizeof *(a))

static void nobody(void)
{
	int named = 0, jobs = 0;
	for (size_t p = 0; p < COUNT(sizes); p++)
		for (size_t n = 0; n < COUNT(lengths); n++)
			for (int i = 0; i < 4 * NOISES; i++) {
				const job_case c = {.ranks = sizes[p], .steps = lengths[n], .noise = i % NOISES};
				rank_times t[RANKS_MOST];
				slow_rank found;
				char why[256];

				run_case(&c, t);
				jobs++;
				bool any = slow_rank_find(t, c.ranks, &found);
				named += any;
				slow_rank_evidence(&found, why, sizeof why);
				case_of("a job without a cause names nobody", !any,
				        "noise %d, %d ranks, %d steps: rank %d, %s, %.1f %%: %s", c.noise, c.ranks,
				        c.steps, found.rank, slow_rank_kind(found.kind), found.share * 100, why);
			}
	printf("# %d of %d jobs without a cause name a rank\n", named, jobs);
}

static void somebody(void)
{
	static const int noise[] = {NOISE_LITTLE, NOISE_MORE, NOISE_COMMON, NOISE_LOADING};
	int early = 0, early_jobs = 0, all = 0, jobs = 0;
	for (int cause = CAUSE_NONE + 1; cause < CAUSES; cause++) {
		int found_here = 0, here = 0;
		for (size_t p = 0; p < COUNT(sizes); p++)
			for (size_t n = 0; n < COUNT(lengths); n++)
				for (size_t i = 0; i < COUNT(noise); i++) {
					job_case c = {.ranks = sizes[p],
					              .steps = lengths[n],
					              .noise = noise[i],
					              .cause = cause};
					rank_times t[RANKS_MOST];
					slow_rank found;
					c.slow = (int)draw_up_to((uint32_t)c.ranks) - 1;
					run_case(&c, t);
					bool any = slow_rank_find(t, c.ranks, &found);
					bool right = any && found.rank == c.slow && found.kind == causes[cause].kind;
					*(n ? &jobs : &early_jobs) += 1;
					*(n ? &all : &early) += right;
					here++;
					found_here += right;
					case_of("who is named is the one, for what it is", right || !any,
					        "%s at rank %d of %d, noise %d, %d steps: rank %d, %s",
					        causes[cause].name, c.slow, c.ranks, c.noise, c.steps, found.rank,
					        slow_rank_kind(found.kind));
				}
		printf("# %s: %d of %d are named\n", causes[cause].name, found_here, here);
	}
	printf("# %d of %d within 20 steps, %d of %d within 60 or 300\n", early, early_jobs, all, jobs);
	ok(early >= 0.75 * early_jobs, "most causes are found in 20 steps: %d of %d", early, early_jobs);
	ok(all >= 0.99 * jobs, "and nearly all in 60: %d of %d", all, jobs);
}

static void edges(void)
{
	const job_case c = {.ranks = 4, .steps = 60, .cause = CAUSE_CLOCK, .slow = 2};
	rank_times t[RANKS_MOST];
	slow_rank s;
	char line[640];
	run_case(&c, t);
	ok(slow_rank_find(t, 4, &s) && s.share > 0.3 && s.share < 0.6, "it costs %.2f of a step", s.share);
	slow_rank_line(&s, "n2", line, sizeof line);
	like(line, "rank 2 on n2 costs ", "the line names it");
	like(line, " % of a step by slow computing: its own part of a step takes ", "and the kind");
	like(line, ", and its processor takes ", "and what speaks for it");
	like(line, slow_rank_advice(SLOW_CLOCK), "and says what to do");
	ok(!slow_rank_find(t, 0, &s) && !slow_rank_find(t, 1, &s) && s.kind == SLOW_NOTHING, "alone nobody is slow");
	for (int r = 0; r < 4; r++)
		t[r].steps = r == 3 ? t[r].steps : 7;
	ok(!slow_rank_find(t, 4, &s), "most have too few steps");
	run_case(&c, t);
	t[1] = t[3] = (rank_times){0};
	ok(!slow_rank_find(t, 4, &s), "half of the ranks have said nothing");
	run_case(&c, t);
	for (int r = 0; r < 4; r++)
		t[r].wait_s = 0;
	ok(!slow_rank_find(t, 4, &s), "what nobody waits for costs nothing");
	memset(t, 0, sizeof t);
	ok(!slow_rank_find(t, 4, &s), "nothing is known");
	for (int k = 0; k < SLOW_KINDS; k++)
		ok(slow_rank_kind((slow_kind)k) && slow_rank_advice((slow_kind)k) &&
		           slow_rank_family((slow_kind)k) <= (slow_kind)k,
		   "kind %d has a name", k);
}

/* A record as it was first sent: it is read for ever. */
static void records(void)
{
	unsigned char first[8 + 8 * 21] = "GCT1", longer[8 + 8 * 25] = "GCT1", own[RANK_TIMES_BYTES];
	rank_times t, again;
	double field[21];
	put32(first + 4, 21);
	put32(longer + 4, 25);
	for (int i = 0; i < 25; i++) {
		double v = i + 0.5;
		uint64_t bits;

		memcpy(&bits, &v, sizeof bits);
		put64(longer + 8 + 8 * i, bits);
		if (i < 21) {
			put64(first + 8 + 8 * i, bits);
			field[i] = v;
		}
	}
	ok(rank_times_read(first, sizeof first, &t) && t.steps == 0.5 && t.own_s == 2.5 && t.pauses == 9.5 &&
	           t.link_peer == 19.5 && t.link_full == 20.5 && !memcmp(&t, field, sizeof field),
	   "a record of the first version");
	ok(rank_times_read(longer, sizeof longer, &again) && !memcmp(&t, &again, sizeof field),
	   "of one with more fields those that are known");
	put32(longer + 4, 3);
	ok(rank_times_read(longer, 8 + 8 * 3, &again) && again.own_s == 2.5 && again.load_s == 0,
	   "what one with fewer does not say is 0");
	rank_times_write(&t, own);
	ok(rank_times_read(own, sizeof own, &again) && !memcmp(&t, &again, sizeof t), "what is written is read");
	static const double bad[] = {-1, 1e19, NAN, INFINITY};
	for (size_t i = 0; i < COUNT(bad); i++) {
		t.wait_s = bad[i];
		rank_times_write(&t, own);
		ok(!rank_times_read(own, sizeof own, &again), "%g seconds are none", bad[i]);
	}
	for (size_t n = 0; n < sizeof first; n++)
		case_of("a record that is cut is none", !rank_times_read(first, n, &again), "%zu bytes", n);
	put32(first + 4, 1u << 30);
	ok(!rank_times_read(first, sizeof first, &again), "nor one that says it had more");
	put32(first + 4, 21);
	first[3] = '2';
	ok(!rank_times_read(first, sizeof first, &again), "nor one of another kind");
}

static void add_up(rank_times *to, const rank_times *more)
{
	double a[RANK_TIMES_FIELDS], b[RANK_TIMES_FIELDS];
	rank_times sum;
	memcpy(a, to, sizeof a);
	memcpy(b, more, sizeof b);
	for (size_t i = 0; i < RANK_TIMES_FIELDS; i++)
		a[i] += b[i];
	memcpy(&sum, a, sizeof sum);
	sum.usual_s = more->usual_s;
	sum.off_s = more->off_s * 2;
	sum.speed_s = more->speed_s;
	sum.link_rate = more->link_rate;
	sum.link_peer = more->link_peer;
	sum.link_full = more->link_full;
	*to = sum;
}

/* A job of stretches, in some of which a cause is there. */
static bool stretches(const int *cause, int n, bool latest, slow_rank *s)
{
	rank_times all[RANKS_MOST] = {{0}}, t[RANKS_MOST];
	slow_history *h = slow_history_open(4);
	for (int i = 0; h && i < n; i++) {
		const job_case c = {.ranks = 4, .steps = 800, .cause = cause[i], .slow = 1};

		run_case(&c, t);
		for (int r = 0; r < 4; r++)
			add_up(&all[r], &t[r]);
		if (slow_history_is_due(h, &all[0]))
			slow_history_add(h, all);
	}
	bool found = h && (latest ? slow_history_latest(h, all, s) : slow_history_worst(h, all, s));
	slow_history_close(h);
	return found;
}

static void history(void)
{
	static const int never[4] = {0}, gone[4] = {CAUSE_NONE, CAUSE_NEIGHBOUR, CAUSE_NONE, CAUSE_NONE},
			 came[4] = {CAUSE_NONE, CAUSE_NONE, CAUSE_NONE, CAUSE_LOADER};
	slow_rank s;
	ok(!stretches(never, 4, true, &s) && !stretches(never, 4, false, &s), "no cause in four stretches");
	bool found = stretches(gone, 4, false, &s);
	ok(found && s.rank == 1 && s.kind == SLOW_SHARED && s.share > 0.05 && s.share < 0.2,
	   "one that has gone is told at the end: %.3f of all steps", s.share);
	ok(!stretches(gone, 4, true, &s), "and is not there any more");
	found = stretches(came, 4, true, &s);
	ok(found && s.rank == 1 && s.kind == SLOW_DATA && s.share > 0.2, "one that has come is there: %.3f of a step",
	   s.share);
	found = stretches(came, 4, false, &s);
	ok(found && s.kind == SLOW_DATA && s.share > 0.05 && s.share < 0.2, "and is told at the end: %.3f", s.share);
	ok(!stretches(came, 3, true, &s), "before that nobody was");
}

/* What rank 0 does with the records of many ranks. */
static void many(void)
{
	static const int ranks[] = {10, 1000, 100000};
	rank_times *t = calloc(100000, sizeof *t);
	const job_case c = {.ranks = 10, .steps = 60, .noise = NOISE_MORE};
	unsigned char record[RANK_TIMES_BYTES];
	slow_rank s;
	for (size_t i = 0; t && i < COUNT(ranks); i++) {
		rank_times some[RANKS_MOST];
		double begun, took;
		bool read = true;

		run_case(&c, some);
		begun = clock_now();
		for (int r = 0; r < ranks[i]; r++) {
			rank_times_write(&some[r % 10], record);
			read &= rank_times_read(record, sizeof record, &t[r]);
		}
		took = clock_now() - begun;
		t[ranks[i] / 2].own_s *= 2;
		t[ranks[i] / 2].usual_s *= 2;
		for (int r = 0; r < ranks[i]; r++)
			if (r != ranks[i] / 2)
				t[r].wait_s += t[r].own_s;
		begun = clock_now();
		bool any = slow_rank_find(t, ranks[i], &s);
		printf("# %d ranks: records of %zu bytes; all are written and read in %.3f ms, and looked at in %.3f ms\n",
		       ranks[i], sizeof record, took * 1e3, (clock_now() - begun) * 1e3);
		ok(read && any && s.rank == ranks[i] / 2, "one of %d is found", ranks[i]);
	}
	free(t);
}

/* What counting adds to a step. */
static void cost(void)
{
	enum { STEPS = 100000 };
	times_keeper *k = rank_times_open();
	rank_times t = {0};
	double begun = clock_now();
	for (int s = 0; k && s < STEPS; s++)
		rank_times_add(k,
		               &(step_times){
				       .step = 0.05, .own = 0.04 + 1e-4 * (s * 7919 % 100), .wait = 0.01, .cpu = 0.05},
		               0.001, 32);
	printf("# a step is counted in %.0f ns\n", (clock_now() - begun) / STEPS * 1e9);
	if (k)
		rank_times_get(k, &t);
	ok(k && t.steps == STEPS && fabs(t.step_s - 0.05 * STEPS) < 1e-6 && t.pauses == 0, "all steps count");
	rank_times_close(k);
}

int main(void)
{
	draw_state = 31;
	nobody();
	tap_cases("without a cause");
	somebody();
	tap_cases("with a cause");
	edges();
	records();
	history();
	tap_cases("records");
	many();
	cost();
	return done_testing();
}
