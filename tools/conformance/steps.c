/* Steps on all models and sizes of jobs: conservation, agreement, bytes. Buckets are
 * rebuilt between the steps. */
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tools/conformance/kit.h"

#define CHOICE_MOST 60 /* characters */

typedef struct tally {
	double worst; /* relative to the largest sum of |u| of a bucket so far */
	long steps, agreed;
	double sent, dense;
	long conserved;
	int rebuild; /* buckets change between steps; they did not before, and all was well */
} tally;

/* sum of u = P a + sum of e', bucket by bucket. */
static bool conserved(kit *k, const ranks *s, float **a, const double *sum, const double *mag, const char *where,
                     tally *n)
{
	const fixture *t = &k->fixture;

	for (uint32_t b = 0; b < s->nbuckets; b++) {
		uint64_t from = s->buckets[b].offset, to = from + s->buckets[b].numel;
		double scale = 0;
		for (uint64_t i = from; i < to; i++)
			scale = fmax(scale, mag[i]);
		for (uint64_t i = from; i < to; i++) {
			double got = (double)s->P * a[0][i], room;
			for (int w = 0; kit_memory(t, s, w) && w < s->P; w++)
				got += kit_memory(t, s, w)[i];
			room = s->P * (t->relative * scale + t->absolute * s->P) + 1e-42;
			if (!(fabs(got - sum[i]) <= room)) {
				kit_fail(k, n->rebuild && s->step > 1 ? RULE_TENSORS : RULE_CONSERVATION,
				         "%s, bucket %u, number %llu: %.9g went in, %.9g is accounted for", where, b,
				         (unsigned long long)(i - from), sum[i], got);
				return false;
			}
			if (scale > 1e-30)
				n->worst = fmax(n->worst, fabs(got - sum[i]) / scale);
		}
	}
	return true;
}

static bool agreed(kit *k, const ranks *s, float **g, const char *where)
{
	for (int w = 1; w < s->P; w++)
		for (uint64_t i = 0; i < s->layout[0].numel; i++)
			if (memcmp(&g[w][i], &g[0][i], sizeof(float))) {
				kit_fail(k, RULE_AGREEMENT, "%s, number %llu: rank 0 has %.9g, rank %d has %.9g", where,
				         (unsigned long long)i, (double)g[0][i], w, (double)g[w][i]);
				return false;
			}
	return true;
}

/* The figures of cost() for the buckets of this step, with a header per round. *fixed: every
 * payload has a length that was planned. */
static double said(ranks *s, double *headers, int *fixed)
{
	double bytes = 0;

	*headers = 0;
	*fixed = 1;
	for (uint32_t b = 0; b < s->nbuckets; b++) {
		gradcomp_plan plan = {.struct_size = sizeof plan};
		gradcomp_cost cost = {.struct_size = sizeof cost};
		if (ranks_call(s, &(call){.which = CALL_PLAN, .bucket = &s->buckets[b], .plan = &plan}) ||
		    (s->plugin->cost && ranks_call(s, &(call){.which = CALL_COST, .bucket = &s->buckets[b], .cost = &cost})))
			return -1;
		for (uint32_t r = 0; r < plan.nrounds; r++)
			*fixed &= plan.rounds[r].pattern != GRADCOMP_CODED &&
			          (plan.rounds[r].pattern != GRADCOMP_GATHERED || plan.rounds[r].flags & GRADCOMP_ROUND_FIXED);
		bytes += cost.wire_bytes;
		*headers += 64.0 * plan.nrounds * (1 + s->buckets[b].ntensors);
	}
	return s->plugin->cost ? bytes : -1;
}

static bool honest(kit *k, const ranks *s, double want, double headers, int fixed, const char *where)
{
	const fixture *t = &k->fixture;
	double dense = 4.0 * (double)s->layout[0].numel, sent = (double)s->sent;

	if (t->bytes && s->sent != t->bytes(t->values, s)) {
		kit_fail(k, RULE_BYTES, "%s: rank 0 sent %.0f bytes, the method's formula gives %llu", where, sent,
		         (unsigned long long)t->bytes(t->values, s));
		return false;
	}
	for (int w = 0; w < s->P; w++) {
		sent = (double)s->sent_of[w];
		if (sent > 2 * dense + headers) {
			kit_fail(k, RULE_BYTES, "%s: rank %d sent %.0f bytes, the gradient itself has %.0f", where, w, sent,
			         dense);
			return false;
		}
		if (want >= 0 && !(s->P == 1 && !sent) &&
		    (sent > want * (fixed ? 1 : 1.25) + headers || (fixed && sent < want - headers))) {
			kit_fail(k, RULE_BYTES, "%s: rank %d sent %.0f bytes, cost() says %.0f", where, w, sent, want);
			return false;
		}
	}
	return true;
}

/* An unbiased plugin may keep no memory, or only when it is asked to: then it must
 * hold what is missing. */
static bool keeps_nothing(const fixture *t, const ranks *s)
{
	if (!(t->plugin->traits & GRADCOMP_TRAIT_UNBIASED))
		return false;
	for (int w = 0; kit_memory(t, s, w) && w < s->P; w++)
		for (uint64_t i = 0; i < s->layout[0].numel; i++)
			if (kit_memory(t, s, w)[i] != 0)
				return false;
	return true;
}

/* What the report is to print. */
static void choices(kit *k, const ranks *s)
{
	for (uint32_t i = 0; s->plugin->choice && i < s->layout[0].ntensors; i++) {
		const char *text;

		call_begin(CALL_CHOICE, 0, s->P, 0);
		text = s->plugin->choice(s->instance[0], i);
		call_end();
		if (!text || !*text || strlen(text) > CHOICE_MOST || text[strcspn(text, "\n\t\r\033")])
			kit_fail(k, RULE_DESCRIPTOR, "choice() of tensor %u gives %s: a word or two are right", i,
			         !text ? "NULL" : !*text ? "no text" : "a text that is long, or not one line");
	}
}

/* Some steps with fresh gradients. Returns whether all was well. */
static int steps_of(kit *k, int P, model *m, int kind, int steps, tally *n)
{
	const fixture *t = &k->fixture;
	float *g[RANKS_MAX];
	char where[160];
	ranks s;

	if (!kit_open(k, &s, P, m))
		return 0;
	choices(k, &s);
	uint64_t d = s.layout[0].numel;
	double *sum = calloc(2 * d + 1, sizeof *sum), *mag = sum + d;
	fixture_gradients_new(&s, g);
	for (int step = 0; sum && step < steps; step++) {
		double want, headers;
		int fixed;
		fixture_fill(t, &s, g, kind);
		for (uint64_t i = 0; i < d; i++) {
			double all = 0;
			sum[i] = 0;
			for (int w = 0; w < P; w++) {
				float u = kit_memory(t, &s, w) ? g[w][i] + kit_memory(t, &s, w)[i] : g[w][i];
				sum[i] += u;
				all += fabsf(u);
			}
			/* Earlier steps count too: a plugin may send differences from what it remembers. */
			mag[i] = fmax(mag[i], all);
		}
		ranks_plan(&s, !n->rebuild ? 3000 : step % 2 ? 1 + check_random() % (d + 1) : UINT64_MAX);
		snprintf(where, sizeof where, "%d ranks, %s, %s gradients, step %d in %u buckets", P, m->name,
		         fixture_kind_names[kind], step, s.nbuckets);
		want = said(&s, &headers, &fixed);
		if (!kit_step(k, &s, g, step & 1) || !(keeps_nothing(t, &s) || conserved(k, &s, g, sum, mag, where, n)) ||
		    !agreed(k, &s, g, where) || !honest(k, &s, want, headers, fixed, where))
			break;
		n->steps++;
		n->conserved += !keeps_nothing(t, &s);
		n->agreed += P > 1;
		n->sent += (double)s.sent;
		n->dense += 4.0 * (double)d;
	}
	int whole = s.step == (uint64_t)steps;
	free(sum);
	fixture_gradients_free(&s, g);
	ranks_close(&s);
	return whole;
}

/* ---- what is left in payloads of the memory that they are made in ---- */

enum { BEFORE = 0x5a, BEFORE_TOO = 0xc3 };
static unsigned char first_made[1 << 18];
static uint64_t made_bytes, unwritten;
static uint32_t unwritten_round;

static void look_at_payload(ranks *s, const gradcomp_bucket *bucket, uint32_t round, int rank, gradcomp_payload *p)
{
	const unsigned char *now = p->data;

	(void)bucket, (void)rank;
	for (uint64_t i = 0; i < p->bytes && made_bytes < sizeof first_made; i++, made_bytes++)
		if (s->stale == BEFORE) {
			first_made[made_bytes] = now[i];
		} else if (first_made[made_bytes] == BEFORE && now[i] == BEFORE_TOO) {
			unwritten++;
			unwritten_round = round;
		}
}

/* Two runs of the same, in memory that holds other bytes before. */
static void written(kit *k)
{
	const fixture *t = &k->fixture;
	const uint64_t seed = check_random();
	float *g[RANKS_MAX];
	ranks s;

	unwritten = 0;
	for (int run = 0; run < 2; run++) {
		if (ranks_open(&s, t->plugin, t->op, t->values, 2, fixture_models[6].n, fixture_models[6].dims, seed))
			return;
		s.stale = run ? BEFORE_TOO : BEFORE;
		s.made = look_at_payload;
		made_bytes = 0;
		fixture_gradients_new(&s, g);
		for (int step = 0; step < 2; step++) {
			for (int w = 0; w < s.P; w++)
				for (uint64_t i = 0; i < s.layout[0].numel; i++)
					g[w][i] = (float)((i * 7919 + (uint64_t)(w + step) * 31) % 1009) * 0.001f - 0.5f;
			if (ranks_step(&s, g, 0))
				break;
		}
		fixture_gradients_free(&s, g);
		ranks_close(&s);
	}
	if (unwritten)
		kit_fail(k, RULE_BYTES,
		         "%llu bytes of payloads of round %u hold what was in memory before: encode() has not written them",
		         (unsigned long long)unwritten, unwritten_round);
}

void group_steps(kit *k)
{
	const kit_options *o = k->options;
	tally n = {.worst = 0};
	const gradcomp_value *values = k->fixture.values;

	if (k->fixture.plain)
		k->fixture.values = k->fixture.plain;
	n.rebuild = steps_of(k, o->ranks_max < 2 ? 1 : 2, &fixture_models[6], KIND_NORMAL, 4, &n);
	for (int m = 0; m < MODELS; m++)
		for (int P = o->ranks_min; P <= o->ranks_max; P++) {
			steps_of(k, P, &fixture_models[m], KIND_NORMAL, 4, &n);
			for (int kind = 1; kind < KINDS_ALL && (P == 1 || P == 3 || o->thorough); kind++)
				steps_of(k, P, &fixture_models[m], kind, 4, &n);
		}
	k->fixture.values = values;
	written(k);
	if (n.conserved || !n.steps)
		kit_ok(k, RULE_CONSERVATION, "off by at most %.1e of the sum of |u|, in %ld steps%s", n.worst, n.conserved,
		       k->fixture.plain ? ", without momentum and clipping" : "");
	else
		kit_skip(k, RULE_CONSERVATION, "unbiased, without error memory");
	if (n.agreed)
		kit_ok(k, RULE_AGREEMENT, "equal bits on %d to %d ranks, in %ld steps", o->ranks_min, o->ranks_max,
		       n.agreed);
	else
		kit_skip(k, RULE_AGREEMENT, "one rank");
	kit_ok(k, RULE_BYTES, "%.3f of the gradient's bytes on average%s", n.dense > 0 ? n.sent / n.dense : 0.0,
	       k->fixture.plugin->cost ? ", as cost() says" : "; there is no cost() to compare with");
	kit_ok(k, RULE_BOUNDS, "walls behind all buffers, inputs read-only: untouched in %ld steps", n.steps);
	kit_ok(k, RULE_TENSORS, "buckets rebuilt between %ld steps", n.steps);
	if (ranks_planned(k->fixture.plugin) & GRADCOMP_PATTERN_BIT(GRADCOMP_CODED))
		kit_ok(k, RULE_CODE, "code_bound() holds%s", k->fixture.plugin->traits & GRADCOMP_TRAIT_LOSSLESS
		                                                     ? ", what is decoded is what was coded"
		                                                     : "");
	else
		kit_skip(k, RULE_CODE, "pattern CODED is not there");
}

void group_large(kit *k)
{
	const struct gradcomp_compressor_v1 *plugin = k->fixture.plugin;
	const gradcomp_value *values = k->fixture.values;
	tally n = {.worst = 0};

	if (k->fixture.plain)
		k->fixture.values = k->fixture.plain;
	for (int m = 0; k->options->large && m < LARGE_MODELS; m++)
		if (!plugin->max_bucket || plugin->max_bucket >= 1 << 20)
			steps_of(k, k->options->ranks_max < 2 ? 1 : 2, &fixture_large_models[m], KIND_NORMAL, 2, &n);
	k->fixture.values = values;
}
