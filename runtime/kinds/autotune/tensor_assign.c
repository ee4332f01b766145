/* Finds what each tensor is best off with. Messages are left out first: each tensor goes where its bytes and the
 * work on them are cheapest. Then a part of the tensors must save more than the exchange that it adds to every
 * step, or others take them. */
#include "kinds/autotune/exchange_cost.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Holds what is compared: candidates that may be used; the one of `keep` is never left. */
typedef struct field {
	const tuner *c;
	uint32_t keep;
	uint8_t may[TUNER_CANDIDATES];
	double *seconds; /* for each tensor of the layout with each candidate, but without messages */
} field;

static double seconds(const field *f, uint32_t k, uint32_t i)
{
	return f->seconds[(size_t)k * f->c->ntensors + i];
}

static int fill_in(field *f, const exchange_cost *w)
{
	uint32_t n = f->c->ntensors;
	exchange_cost bytes_only = *w;
	bytes_only.message = 0;
	f->seconds = calloc((size_t)n * f->c->config.n, sizeof *f->seconds);
	if (!f->seconds)
		return -1;
	for (uint32_t k = 0; k < f->c->config.n; k++) {
		const candidate *of = &f->c->config.candidate[k];
		for (uint32_t i = 0; f->may[k] && i < n; i++) {
			uint64_t numel = f->c->layout.tensors[i].numel;
			f->seconds[(size_t)k * n + i] = exchange_cost_seconds(of, &bytes_only, &of->load[i], numel) +
			                                (of->cost.encode.b + of->cost.decode.b) * (double)numel;
		}
	}
	return 0;
}

/* The cheapest that may be used but for `without`; of equals `keep`, else the first. */
static uint32_t cheapest(const field *f, uint32_t i, uint32_t without)
{
	uint32_t best = TUNER_NONE;
	double least = INFINITY;
	for (uint32_t k = 0; k < f->c->config.n; k++) {
		double s;
		if (!f->may[k] || k == without)
			continue;
		s = seconds(f, k, i);
		if (best == TUNER_NONE || s < least || (s <= least && k == f->keep)) {
			best = k;
			least = s;
		}
	}
	return best;
}

/* Returns the part that saves least against the others; *saves: seconds. */
static uint32_t least_useful(const field *f, const uint8_t *of, uint32_t *parts, double *saves)
{
	uint32_t n = f->c->ntensors, least = TUNER_NONE;
	*parts = 0;
	*saves = INFINITY;
	for (uint32_t k = 0; k < f->c->config.n; k++) {
		double saved = 0;
		if (!f->may[k])
			continue;
		if (!memchr(of, (int)k, n))
			continue;
		++*parts;
		for (uint32_t i = 0; i < n && k != f->keep; i++) {
			uint32_t other = of[n - 1 - i] == k ? cheapest(f, i, k) : TUNER_NONE;
			if (other != TUNER_NONE)
				saved += seconds(f, other, i) - seconds(f, k, i);
		}
		if (k != f->keep && saved < *saves) {
			*saves = saved;
			least = k;
		}
	}
	return least;
}

static void to_the_cheapest(field *f, uint8_t *of)
{
	uint32_t n = f->c->ntensors;
	for (uint32_t i = 0; i < n; i++)
		of[n - 1 - i] = (uint8_t)cheapest(f, i, TUNER_NONE);
}

/* Drops parts until every one is worth its exchange. */
static uint32_t settle(field *f, double exchange, uint8_t *of)
{
	uint32_t parts, least;
	double saves;
	to_the_cheapest(f, of);
	for (;;) {
		least = least_useful(f, of, &parts, &saves);
		if (parts < 2 || least == TUNER_NONE || (parts <= TUNER_PARTS && saves > exchange))
			return parts;
		f->may[least] = 0;
		to_the_cheapest(f, of);
	}
}

/* Returns 1 when a candidate by itself, or with the base for the rest, is the same. */
static int known(const tuner *c, const uint8_t *of)
{
	for (uint32_t k = 0; k < c->config.n; k++)
		if (!c->config.candidate[k].mixed &&
		    !memcmp(c->choice.policy.of + (size_t)k * c->ntensors, of, c->ntensors))
			return 1;
	return 0;
}

int tensor_assign(const tuner *c, uint32_t k, const exchange_cost *w, uint8_t *of)
{
	const candidate *all = c->config.candidate;
	field f = {.c = c, .keep = all[k].mixed ? TUNER_NONE : k};
	uint32_t parts = 0;
	for (uint32_t i = 0; i < c->config.n; i++)
		f.may[i] = all[k].mixed ? all[i].load && !all[i].unusable && !c->choice.policy.banned[i]
		                        : i == k || (i == 0 && !all[k].dense);
	memset(of, 0, c->ntensors);
	if (!fill_in(&f, w))
		parts = settle(&f, exchange_cost_base(c, w), of);
	free(f.seconds);
	if (all[k].mixed)
		return parts > 1 && !known(c, of);
	if (!memchr(of, (int)k, c->ntensors))
		memset(of, (int)k, c->ntensors);
	return 1;
}
