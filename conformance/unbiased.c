/* E[a] = mean u: the same gradients under many seeds. And what one rank draws another must not
 * draw, or errors add up where they should cancel. */
#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "conformance/kit.h"

enum { NUMBERS = 96, RANKS = 2 };

typedef struct averages {
	float u[RANKS][NUMBERS];
	double want[NUMBERS], size[NUMBERS], sum[NUMBERS],
		squares[NUMBERS]; /* size: of what a draw may add or leave out */
	int times;
	bool remembers;
} averages;

/* False: a step has failed, which has been said, or no instance can be had. */
static bool averages_more(kit *k, averages *d, int times)
{
	static model vector = {"96 numbers", 1, {{NUMBERS, 0}}};
	const fixture *t = &k->fixture;
	float *g[RANKS_MAX];
	bool going = true;
	for (int n = 0; going && n < times; n++, d->times++) {
		ranks s;
		if (!kit_open(k, &s, RANKS, &vector))
			return false;
		s.step = n % 2 ? kit_some_step() : 0;
		fixture_gradients_new(&s, g);
		for (int w = 0; w < RANKS; w++)
			memcpy(g[w], d->u[w], sizeof d->u[w]);
		going = kit_step(k, &s, g, 0);
		for (int i = 0; i < NUMBERS; i++) {
			d->sum[i] += g[0][i];
			d->squares[i] += (double)g[0][i] * g[0][i];
		}
		for (int i = 0; kit_memory(t, &s, 0) && i < NUMBERS; i++)
			d->remembers |= kit_memory(t, &s, 0)[i] != 0;
		fixture_gradients_free(&s, g);
		ranks_close(&s);
	}
	return going;
}

/* How many standard errors number i's mean is away from what is right. */
static double averages_off(const averages *d, int i)
{
	double mean = d->sum[i] / d->times, var = fmax(d->squares[i] / d->times - mean * mean, 0);
	return fabs(mean - d->want[i]) / (sqrt(var / d->times) + 1e-6);
}

/* Allows for what comes so seldom that it was not seen yet, which is in no standard error; once in times/20 draws
 * it is seen but for e^-20. */
static double averages_unseen(const averages *d, int i)
{
	return 20.0 / d->times * d->size[i];
}

void unbiased_group(kit *k)
{
	fixture *t = &k->fixture;
	const gradcomp_value *values = t->values;
	int times = k->options->thorough ? 4000 : 600;
	averages d = {.times = 0};
	double worst = 0;
	bool going;
	if (!(t->plugin->traits & GRADCOMP_TRAIT_UNBIASED)) {
		kit_skip(k, RULE_UNBIASED, "trait UNBIASED is not there");
		return;
	}
	if (t->plain)
		t->values = t->plain;
	for (int w = 0; w < RANKS; w++)
		for (int i = 0; i < NUMBERS; i++) {
			d.u[w][i] = random_check_normal();
			d.want[i] += d.u[w][i] / (double)RANKS;
			d.size[i] += (double)fabsf(d.u[w][i]) / RANKS;
		}
	going = averages_more(k, &d, times);
	for (int i = 0; i < NUMBERS; i++)
		worst = fmax(worst, averages_off(&d, i));
	if (going && !d.remembers && worst > 6) /* or something seldom has not come yet */
		averages_more(k, &d, 9 * times);
	t->values = values;
	if (!d.times)
		return;
	if (d.remembers) {
		kit_skip(k, RULE_UNBIASED, "with these parameters error memory makes up for the bias");
		return;
	}
	worst = 0;
	for (int i = 0; i < NUMBERS; i++) {
		double mean = d.sum[i] / d.times, z = averages_off(&d, i);
		bool seen = fabs(mean - d.want[i]) > averages_unseen(&d, i);
		if (seen)
			worst = fmax(worst, z);
		if (z > 6 && seen) {
			kit_fail(k, RULE_UNBIASED,
			         "number %d: %.6g on average of %d runs, %.6g is right, %.1f standard errors "
			         "away\n%s",
			         i, mean, d.times, d.want[i], z,
			         fabs(mean) < fabs(d.want[i])
			                 ? "too small: it is clipped, or rounded towards 0"
			                 : "too large, or of the other sign: rounded to nearest, or scaled by "
			                   "something that is not the number's chance to be sent");
			return;
		}
	}
	kit_ok(k, RULE_UNBIASED, "%d numbers under %d seeds: within %.1f standard errors of the mean", NUMBERS, d.times,
	       worst);
}

enum { NOISE_NUMBERS = 999 };

/* Keeps what ranks 0 and 1 make of the same numbers in two steps: payloads of a round, or codes of two runs. */
typedef struct drawn {
	uint64_t bytes[2];
	unsigned char made[2][4 * NOISE_NUMBERS + NOISE_NUMBERS / 64 + 64];
} drawn;
static drawn draws[2][2], *drawing; /* by seed and step */

static void keep_payload(ranks *s, const gradcomp_bucket *bucket, uint32_t round, int rank, gradcomp_payload *p)
{
	uint64_t room = sizeof drawing->made[0];
	(void)s, (void)bucket;
	if (round && drawing->bytes[rank])
		return;
	drawing->bytes[rank] = p->bytes < room ? p->bytes : room;
	memcpy(drawing->made[rank], p->data, drawing->bytes[rank]);
}

static bool draw_step(kit *k, ranks *s, uint64_t step, drawn *d)
{
	const fixture *t = &k->fixture;
	float *g[RANKS_MAX];
	gradcomp_error err;
	bool well = true;
	drawing = d;
	fixture_gradients_new(s, g);
	for (int w = 0; w < 2; w++) {
		memset(s->error[w], 0, s->numel * sizeof(float));
		memset(s->state[w], 0, s->numel * t->plugin->state_arrays * sizeof(float));
		for (int i = 0; i < NOISE_NUMBERS; i++)
			g[w][i] = (float)((i * 7919) % 1009) * 0.001f;
	}
	if (!(s->patterns & GRADCOMP_PATTERN_BIT(GRADCOMP_CODED)))
		well = !ranks_step(s, g, 0) && d->bytes[0] > 0;
	else if (t->plugin->code_bound(s->instance[0], NOISE_NUMBERS) <= sizeof d->made[0])
		for (int w = 0; w < 2; w++)
			well &= !t->plugin->code(s->instance[w], g[w], NOISE_NUMBERS, 1 + step, d->made[w],
			                         &d->bytes[w], &err);
	fixture_gradients_free(s, g);
	return well;
}

static bool draw(kit *k, model *m, uint64_t seed, drawn d[2])
{
	const fixture *t = &k->fixture;
	bool well;
	ranks s;
	if (ranks_open(&s, t->plugin, t->op, t->values, 2, m->n, m->dims, seed))
		return false;
	s.made = keep_payload;
	well = draw_step(k, &s, 0, &d[0]) && draw_step(k, &s, 1, &d[1]);
	ranks_close(&s);
	return well;
}

static bool equal(const drawn *a, int w, const drawn *b, int v)
{
	return a->bytes[w] == b->bytes[v] && !memcmp(a->made[w], b->made[v], a->bytes[w]);
}

void unbiased_noise_group(kit *k)
{
	static model vector = {"999 numbers", 1, {{NOISE_NUMBERS, 0}}};
	const uint32_t patterns = ranks_planned(k->fixture.plugin), traits = k->fixture.plugin->traits;
	const bool codes = patterns & GRADCOMP_PATTERN_BIT(GRADCOMP_CODED);
	const bool own =
		codes || (patterns & GRADCOMP_PATTERN_BIT(GRADCOMP_GATHERED) && traits & GRADCOMP_TRAIT_UNBIASED);
	if (!own && !(traits & GRADCOMP_TRAIT_STOCHASTIC))
		kit_skip(k, RULE_NOISE, "of what is gathered without bias, of codes, and of trait STOCHASTIC");
	else if (!draw(k, &vector, 1, draws[0]) || !draw(k, &vector, 2, draws[1]) ||
	         equal(&draws[0][0], 0, &draws[1][0], 0))
		kit_skip(k, RULE_NOISE, "another seed makes no difference");
	else if (equal(&draws[0][0], 0, &draws[0][1], 0))
		kit_fail(k, RULE_NOISE,
		         "rank 0 makes the same %llu bytes of the same numbers in two %s, another seed makes "
		         "others\n"
		         "the seed lacks %s: errors add up where they should cancel",
		         (unsigned long long)draws[0][0].bytes[0], codes ? "runs" : "steps",
		         codes ? "the counter" : "the step");
	else if (own && equal(&draws[0][0], 0, &draws[0][0], 1))
		kit_fail(k, RULE_NOISE,
		         "ranks 0 and 1 make the same %llu bytes of the same numbers, another seed makes others\n"
		         "the seed lacks the rank: layout->seed is equal on all ranks",
		         (unsigned long long)draws[0][0].bytes[0]);
	else
		kit_ok(k, RULE_NOISE, "%s draw differently", own ? "two ranks, and two steps," : "two steps");
}
