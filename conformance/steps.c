/* Steps on all models and sizes of jobs: conservation, agreement, bytes. Buckets are
 * rebuilt between the steps. */
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "conformance/kit.h"

enum {
	CHOICE_MOST = 60, /* characters */
	LIGHT_FROM = 8,   /* steps: of runs with more, all but every eighth have light guards */
};

typedef struct tally {
	double worst; /* relative to the largest sum of |u| of a bucket so far */
	long steps, agreed;
	double sent, dense;
	long conserved;
	bool rebuild; /* buckets change between steps */
} tally;

/* Says what is run: so many steps, the first of which has this number. */
typedef struct run {
	int P;
	model *m;
	int kind, steps;
	uint64_t from;
	bool far; /* see ranks_far */
} run;

/* The first bucket whose sums are wrong. */
typedef struct loss {
	bool found;
	uint64_t step;
	char text[600];
} loss;

/* Says what is off in a bucket, where, and by what factor. */
typedef struct damage {
	uint64_t off, first, last;
	double went_in, got; /* those of the first number */
	double least, most;  /* got / went_in */
} damage;

/* Says where to look, by what is off. */
static const char *suspect(const damage *d, uint64_t numel, int P, bool says)
{
	if (d->least > 1.99 && d->most < 2.01)
		return "all of it is counted twice: what was sent stays in the error memory, too";
	if (P > 1 && d->least > 0.99 * P && d->most < 1.01 * P)
		return "it is counted once for each rank: a sum is taken for a mean";
	if (P > 1 && d->least > 0.99 / P && d->most < 1.01 / P)
		return "it is divided by the number of ranks twice: a mean is taken for a sum";
	if (!says)
		return "if a parameter makes it forget or clip on purpose, .neutral says with what value it does "
		       "not; else error is computed "
		       "from something else than what was sent";
	if (d->first && d->last == numel - 1 && d->off == numel - d->first)
		return "the end of the bucket: a loop, a block or a count ends before it";
	if (d->off == 1)
		return "one number: an end of a loop, a tie, or an index that is written twice";
	if (d->least > -0.01 && d->most < 0.01)
		return "they are neither in the average nor in any error memory";
	return "error is computed from something else than what was sent, after rounding";
}

/* sum of u = P a + sum of e', bucket by bucket. */
static bool conserved(kit *k, const ranks *s, float **a, const double *sum, const double *mag, const char *where,
                      tally *n, loss *out)
{
	const fixture *t = &k->fixture;
	for (uint32_t b = 0; b < s->nbuckets; b++) {
		uint64_t from = s->buckets[b].offset - s->base, to = from + s->buckets[b].numel;
		damage d = {.least = INFINITY, .most = -INFINITY};
		double scale = 0;
		for (uint64_t i = from; i < to; i++)
			scale = fmax(scale, mag[i]);
		for (uint64_t i = from; i < to; i++) {
			double got = (double)s->P * a[0][i], room;
			for (int w = 0; kit_memory(t, s, w) && w < s->P; w++)
				got += kit_memory(t, s, w)[i];
			room = s->P * (t->relative * scale + t->absolute * s->P) + 1e-42;
			if (scale > 1e-30)
				n->worst = fmax(n->worst, fabs(got - sum[i]) / scale);
			if (fabs(got - sum[i]) <= room)
				continue;
			if (!d.off++)
				d.first = i - from, d.went_in = sum[i], d.got = got;
			d.last = i - from;
			d.least = fmin(d.least, got / sum[i]);
			d.most = fmax(d.most, got / sum[i]);
		}
		if (!d.off)
			continue;
		*out = (loss){.found = true, .step = s->step};
		snprintf(out->text, sizeof out->text,
		         "%s, bucket %u, number %llu: %.9g went in, %.9g is accounted for; so are %llu of %llu "
		         "numbers, up to %llu\n%s",
		         where, b, (unsigned long long)d.first, d.went_in, d.got, (unsigned long long)d.off,
		         (unsigned long long)s->buckets[b].numel, (unsigned long long)d.last,
		         suspect(&d, s->buckets[b].numel, s->P,
		                 t->plugin->neutral || !(t->plugin->traits & GRADCOMP_TRAIT_OWN_MOMENTUM)));
		return false;
	}
	return true;
}

static bool agreed(kit *k, const ranks *s, float **g, const char *where)
{
	for (int w = 1; w < s->P; w++)
		for (uint64_t i = 0; i < s->numel; i++)
			if (memcmp(&g[w][i], &g[0][i], sizeof(float))) {
				uint64_t off = 0, of = 0;
				for (uint64_t j = 0; j < s->numel; j++)
					off += memcmp(&g[w][j], &g[0][j], sizeof(float)) != 0;
				for (int v = 1; v < s->P; v++)
					of += memcmp(g[v], g[0], s->numel * sizeof(float)) != 0;
				kit_fail(k, RULE_AGREEMENT,
				         "%s, number %llu: rank 0 has %.9g, rank %d has %.9g; %llu of %llu numbers "
				         "differ, on %llu of %d ranks\n%s",
				         where, (unsigned long long)i, (double)g[0][i], w, (double)g[w][i],
				         (unsigned long long)off, (unsigned long long)s->numel, (unsigned long long)of,
				         s->P,
				         of == 1 && s->P > 2 ? "one rank is alone: something asks for "
				                               "layout->rank, or for what only it has"
				                             : "payloads are not added in rank order, or own "
				                               "numbers are taken that the others do not have");
				return false;
			}
	return true;
}

/* Adds up the figures of cost() for the buckets of this step, with a header per round. *fixed: every payload has a
 * length that was planned. */
static double said(ranks *s, double *headers, int *fixed)
{
	double bytes = 0;
	*headers = 0;
	*fixed = 1;
	for (uint32_t b = 0; b < s->nbuckets; b++) {
		gradcomp_plan plan = {.struct_size = sizeof plan};
		gradcomp_cost cost = {.struct_size = sizeof cost};
		if (ranks_call(s, &(call){.which = CALL_PLAN, .bucket = &s->buckets[b], .plan = &plan}) ||
		    (s->plugin->cost &&
		     ranks_call(s, &(call){.which = CALL_COST, .bucket = &s->buckets[b], .cost = &cost})))
			return -1;
		for (uint32_t r = 0; r < plan.nrounds; r++)
			*fixed &= plan.rounds[r].pattern != GRADCOMP_CODED &&
			          (plan.rounds[r].pattern != GRADCOMP_GATHERED ||
			           plan.rounds[r].flags & GRADCOMP_ROUND_FIXED);
		bytes += cost.wire_bytes;
		*headers += 64.0 * plan.nrounds;
		/* Each rank's run is coded by itself. */
		*headers += plan.rounds[0].pattern == GRADCOMP_CODED ? 16.0 * s->P : 0;
	}
	return s->plugin->cost ? bytes : -1;
}

/* Gradients of KIND_NORMAL are what cost() is asked for: zeros and ties may be coded in less. */
static bool honest(kit *k, const ranks *s, double want, double headers, int fixed, int kind, const char *where)
{
	const fixture *t = &k->fixture;
	const double least = fixed ? want : kind == KIND_NORMAL ? 0.75 * want : 0;
	double dense = 4.0 * (double)s->numel, sent = (double)s->sent;
	if (t->bytes && s->sent != t->bytes(t->values, s)) {
		kit_fail(k, RULE_BYTES, "%s: rank 0 sent %.0f bytes, the method's formula gives %llu", where, sent,
		         (unsigned long long)t->bytes(t->values, s));
		return false;
	}
	for (int w = 0; w < s->P; w++) {
		sent = (double)s->sent_of[w];
		if (sent > 2 * dense + headers) {
			kit_fail(k, RULE_BYTES, "%s: rank %d sent %.0f bytes, the gradient itself has %.0f", where, w,
			         sent, dense);
			return false;
		}
		if (want >= 0 && !(s->P == 1 && !sent) &&
		    (sent > want * (fixed ? 1 : 1.25) + headers || sent < least - headers)) {
			kit_fail(k, RULE_BYTES, "%s: rank %d sent %.0f bytes, cost() says %.0f\n%s", where, w, sent,
			         want,
			         fixed ? "out->bytes, the bound in plan() and cost() are three formulas that "
			                 "should be one"
			               : "what cost() expects of payloads that vary is to be right within a "
			                 "quarter");
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
		for (uint64_t i = 0; i < s->numel; i++)
			if (kit_memory(t, s, w)[i] != 0)
				return false;
	return true;
}

/* Returns true when rule 1 is asked of these ranks. */
static bool conserves(const fixture *t, int P)
{
	return P == 1 || !t->plugin->conserves || t->plugin->conserves(t->values);
}

/* Asks for what the report is to print. */
static void choices(kit *k, const ranks *s)
{
	for (uint32_t i = 0; s->plugin->choice && i < s->layout[0].ntensors; i++) {
		const char *text;

		call_begin(CALL_CHOICE, 0, s->P, 0);
		text = s->plugin->choice(s->instance[0], i);
		call_end();
		if (!text || !*text || strlen(text) > CHOICE_MOST || text[strcspn(text, "\n\t\r\033")])
			kit_fail(k, RULE_DESCRIPTOR, "choice() of tensor %u gives %s: a word or two are right", i,
			         !text    ? "NULL"
			         : !*text ? "no text"
			                  : "a text that is long, or not one line");
	}
}

/* Instances for a run; false: there are none, which has been said where it is a fault. */
static bool open_run(kit *k, ranks *s, const run *r)
{
	gradcomp_status st = kit_open_at(k, s, &(kit_place){r->P, r->m, UINT64_MAX, r->from, r->far}, random_check());
	if (st && !((r->far || r->P > 16) && kit_declined(s, st)))
		kit_fail(k, k->crash, "create() fails for %d ranks, %s: %s", r->P, r->m->name, s->err.text);
	return !st;
}

/* Draws gradients, sum and largest sum of |u| of every number. */
static void give(kit *k, ranks *s, float **g, int kind, double *sum, double *mag)
{
	const fixture *t = &k->fixture;
	fixture_fill(t, s, g, kind);
	for (uint64_t i = 0; i < s->numel; i++) {
		double all = 0;
		sum[i] = 0;
		for (int w = 0; w < s->P; w++) {
			float u = kit_memory(t, s, w) ? g[w][i] + kit_memory(t, s, w)[i] : g[w][i];
			sum[i] += u;
			all += fabsf(u);
		}
		/* Earlier steps count too: a plugin may send differences from what it remembers. */
		mag[i] = fmax(mag[i], all);
	}
}

/* Chooses how many numbers a bucket has at most: as often few as many. */
static uint64_t some_size(uint64_t numel)
{
	return (uint64_t)exp(random_check_uniform() * log((double)numel + 1));
}

/* Runs steps with fresh gradients, the same ones for the same seed. Returns whether all was well. */
static bool run_steps(kit *k, const run *r, uint64_t seed, bool rebuild, tally *n, loss *l)
{
	float *g[RANKS_MAX];
	const bool asked = conserves(&k->fixture, r->P);
	char where[200];
	bool well = true;
	ranks s;
	random_check_seed(seed);
	if (!open_run(k, &s, r))
		return true;
	choices(k, &s);
	s.light = r->steps > LIGHT_FROM;
	uint64_t d = s.numel;
	double *sum = calloc(2 * d + 1, sizeof *sum), *mag = sum + d;
	fixture_gradients_new(&s, g);
	for (int step = 0; sum && well && step < r->steps; step++) {
		const uint64_t most = some_size(d);
		double want, headers;
		int fixed;
		give(k, &s, g, r->kind, sum, mag);
		ranks_plan(&s, !rebuild ? 3000 : step % 2 ? UINT64_MAX : most);
		snprintf(where, sizeof where,
		         "%d ranks, %s%s, %s gradients, step %llu, the %d. of its run, in %u buckets", r->P, r->m->name,
		         r->far ? " behind 2^32 others" : "", fixture_kind_names[r->kind], (unsigned long long)s.step,
		         step + 1, s.nbuckets);
		want = said(&s, &headers, &fixed);
		well = kit_step(k, &s, g, step & 1) &&
		       (!asked || keeps_nothing(&k->fixture, &s) || conserved(k, &s, g, sum, mag, where, n, l)) &&
		       agreed(k, &s, g, where) && honest(k, &s, want, headers, fixed, r->kind, where);
		if (!well)
			break;
		n->steps++;
		n->conserved += asked && !keeps_nothing(&k->fixture, &s);
		n->agreed += r->P > 1;
		n->sent += (double)s.sent;
		n->dense += 4.0 * (double)d;
	}
	free(sum);
	fixture_gradients_free(&s, g);
	ranks_close(&s);
	return well;
}

/* Runs the steps. A loss when buckets are rebuilt, and only then, is a matter of state. */
static bool steps_of(kit *k, const run *r, tally *n)
{
	const uint64_t seed = random_check();
	const uint32_t since = k->since;
	loss l = {.found = false}, still = {.found = false};
	bool well;
	/* ABI 1 asked of runs from step 0 on. */
	k->since = r->from ? KIT_FURTHER : since;
	well = run_steps(k, r, seed, n->rebuild, n, &l);
	if (!l.found) {
		k->since = since;
		return well;
	}
	if (n->rebuild && l.step > r->from + 1) {
		tally apart = {.worst = 0};
		run_steps(k, r, seed, false, &apart, &still);
	} else {
		still.found = true;
	}
	if (still.found)
		kit_fail(k, RULE_CONSERVATION, "%s", l.text);
	else
		kit_fail(k, RULE_TENSORS,
		         "%.*s\nonly when buckets are rebuilt between steps: state is kept by bucket->index, or as "
		         "if a bucket "
		         "always had the same tensors",
		         (int)strcspn(l.text, "\n"), l.text);
	k->since = since;
	return false;
}

/* The functions below find memory that payloads were made in and that is left in them. */

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

/* Compares two runs of the same, in memory that holds other bytes before. */
static void written(kit *k)
{
	const fixture *t = &k->fixture;
	const uint64_t seed = random_check();
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
				for (uint64_t i = 0; i < s.numel; i++)
					g[w][i] =
						(float)((i * 7919 + (uint64_t)(w + step) * 31) % 1009) * 0.001f - 0.5f;
			if (ranks_step(&s, g, 0))
				break;
		}
		fixture_gradients_free(&s, g);
		ranks_close(&s);
	}
	if (unwritten)
		kit_fail(
			k, RULE_BYTES,
			"%llu bytes of payloads of round %u hold what was in memory before: encode() has not written them",
			(unsigned long long)unwritten, unwritten_round);
}

void steps_group(kit *k)
{
	const kit_options *o = k->options;
	tally n = {.worst = 0};
	const gradcomp_value *values = k->fixture.values;
	bool all;
	if (k->fixture.plain)
		k->fixture.values = k->fixture.plain;
	all = conserves(&k->fixture, 2);
	n.rebuild = steps_of(k, &(run){o->ranks_max < 2 ? 1 : 2, &fixture_models[6], KIND_NORMAL, 4, 0, false}, &n);
	for (int m = 0; m < MODELS; m++)
		for (int P = o->ranks_min; P <= o->ranks_max; P++) {
			steps_of(k, &(run){P, &fixture_models[m], KIND_NORMAL, 4, kit_some_step(), false}, &n);
			for (int kind = 1; kind < KINDS_ALL && (P == 1 || P == 3 || o->thorough); kind++)
				steps_of(k, &(run){P, &fixture_models[m], kind, 4, kit_some_step(), false}, &n);
		}
	k->fixture.values = values;
	written(k);
	if (n.conserved || !n.steps)
		kit_ok(k, RULE_CONSERVATION, "off by at most %.1e of the sum of |u|, in %ld steps%s%s%s%s", n.worst,
		       n.conserved, all ? "" : " of one rank: its average is no mean over all",
		       k->fixture.plain ? ", with " : "", k->fixture.plain ? k->fixture.neutral : "",
		       !k->fixture.plain || k->fixture.plugin->neutral
		               ? ""
		               : " (guessed by name: it is for .neutral to say)");
	else
		kit_skip(k, RULE_CONSERVATION,
		         all ? "unbiased, without error memory" : "more than one rank, whose mean the average is not");
	if (n.agreed)
		kit_ok(k, RULE_AGREEMENT, "equal bits on %d to %d, 17 and 33 ranks, in %ld steps, and in two processes",
		       o->ranks_min, o->ranks_max, n.agreed);
	else
		kit_skip(k, RULE_AGREEMENT, "one rank");
	kit_ok(k, RULE_BYTES, "%.3f of the gradient's bytes on average%s", n.dense > 0 ? n.sent / n.dense : 0.0,
	       k->fixture.plugin->cost ? ", as cost() says" : "; there is no cost() to compare with");
	kit_ok(k, RULE_BOUNDS, "walls behind all buffers, inputs read-only: untouched in %ld steps", n.steps);
	kit_ok(k, RULE_TENSORS, "buckets rebuilt between %ld steps", n.steps);
	if (ranks_planned(k->fixture.plugin) & GRADCOMP_PATTERN_BIT(GRADCOMP_CODED))
		kit_ok(k, RULE_CODE, "code_bound() holds%s",
		       k->fixture.plugin->traits & GRADCOMP_TRAIT_LOSSLESS ? ", what is decoded is what was coded"
		                                                           : "");
	else
		kit_skip(k, RULE_CODE, "pattern CODED is not there");
}

void steps_large_group(kit *k)
{
	const struct gradcomp_compressor_v1 *plugin = k->fixture.plugin;
	const gradcomp_value *values = k->fixture.values;
	tally n = {.worst = 0};
	if (k->fixture.plain)
		k->fixture.values = k->fixture.plain;
	for (int m = 0; k->options->large && m < LARGE_MODELS; m++)
		if (!plugin->max_bucket || plugin->max_bucket >= 1 << 21)
			steps_of(k,
			         &(run){k->options->ranks_max < 2 ? 1 : 2, fixture_large(m), KIND_NORMAL, 2,
			                kit_some_step(), false},
			         &n);
	k->fixture.values = values;
}

/* Large numbers of what there are few of elsewhere: the step, the offset, tensors, steps, ranks. */
void steps_reach_group(kit *k)
{
	const gradcomp_value *values = k->fixture.values;
	const int P = k->options->ranks_max < 2 ? 1 : 2;
	tally n = {.rebuild = true};
	/* A formula of the payloads knows nothing of the tensor that stands before them. */
	uint64_t (*bytes)(const gradcomp_value *, const ranks *) = k->fixture.bytes;
	if (!k->options->far)
		return;
	if (k->fixture.plain)
		k->fixture.values = k->fixture.plain;
	steps_of(k, &(run){P, &fixture_few, KIND_NORMAL, REACH_STEPS, 0, false}, &n);
	steps_of(k, &(run){P, fixture_many(), KIND_NORMAL, 40, kit_some_step(), false}, &n);
	for (int ranks = 17; P > 1 && ranks <= RANKS_MAX; ranks += 16)
		steps_of(k, &(run){ranks, &fixture_few, KIND_NORMAL, 5, kit_some_step(), false}, &n);
	k->fixture.bytes = NULL;
	steps_of(k, &(run){P, &fixture_models[6], KIND_NORMAL, 3, REACH_STEP, true}, &n);
	k->fixture.bytes = bytes;
	k->fixture.values = values;
}
