/* Classes of ranks: what the slowest costs, and what giving it less work gains.
 *
 * A class computes at a speed of its own, and its node has a link of its own. A step ends with its slowest rank: classes
 * go into the simulation of the step, and an exchange goes at the slowest link of all. What that costs is the same
 * simulation with all ranks as the fastest, and with samples divided by speed. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/number.h"
#include "gradcomp/stage.h"
#include "tools/commands.h"
#include "tools/plan.h"

#define SPEED_LEAST 1e-3
#define SPEED_MOST 1e3
/* What changes a step by less than that share of it changes nothing. */
#define NOTHING 1e-3
/* A step has as many samples at most as a double counts. */
#define SAMPLES_MOST 0x1p53

/* These take the value of a key of a class. */
static bool take_speed(plan_class *c, const char *text)
{
	return number_float(text, &c->speed) == NUMBER_OK && c->speed >= SPEED_LEAST && c->speed <= SPEED_MOST;
}

static bool take_link(plan_class *c, const char *text)
{
	return plan_take_link(text, &c->link);
}

static const struct {
	const char *name, *want;
	bool (*take)(plan_class *c, const char *text);
} keys[] = {
	{"speed", "give the speed of computing relative to the model's, 0.001 to 1000, as 0.5 for half of it",
         take_speed},
	{"link", "give bits a second with a unit, 1K to 800T, as 100M or 100Mbit, with /50us behind it or without",
         take_link},
};
enum { KEYS = sizeof keys / sizeof *keys };

/* Takes "key=value,..." of --ranks; -1 to go on, or the exit status. */
static int take_keys(plan_class *c, const char *whole, char *text, const char *usage)
{
	unsigned given = 0;
	char *rest = NULL;
	for (char *key = strtok_r(text, ",", &rest); key; key = strtok_r(NULL, ",", &rest)) {
		char *value = strchr(key, '=');
		int k = 0;

		if (value)
			*value++ = '\0';
		while (k < KEYS && strcmp(keys[k].name, key))
			k++;
		if (k == KEYS)
			return command_usage_error(usage,
			                           "--ranks %s: there is no key '%s'; the keys are speed and link",
			                           whole, key);
		if (given & 1u << k)
			return command_usage_error(usage, "--ranks %s: %s is given twice; give it once", whole, key);
		given |= 1u << k;
		if (!value || !keys[k].take(c, value))
			return command_usage_error(usage, "--ranks %s: %s is '%s'; %s", whole, key, value ? value : "",
			                           keys[k].want);
	}
	return given ? -1 : command_usage_error(usage, "--ranks %s: give speed, link or both", whole);
}

int plan_take_class(plan *p, const char *text, const char *usage)
{
	plan_class c = {.speed = 1, .link = {.message = -1}};
	char copy[128], shown[128];
	const char *colon = strchr(text, ':');
	int64_t n;
	int status;
	gradcomp_printable(text, shown, sizeof shown);
	if (!colon || strlen(text) >= sizeof copy)
		return command_usage_value(usage, "--ranks", shown,
		                           "give COUNT:speed=0.5,link=100M, or one of the two");
	snprintf(copy, sizeof copy, "%s", shown);
	copy[strcspn(copy, ":")] = '\0';
	if (number_int(copy, &n) != NUMBER_OK || n < 1 || n > (int64_t)PLAN_NODES_MOST * PLAN_RANKS_MOST)
		return command_usage_error(usage, "--ranks %s: the count is '%s'; give the number of ranks, 1 at least",
		                           shown, copy);
	c.ranks = (uint32_t)n;
	status = take_keys(&c, shown, copy + strlen(copy) + 1, usage);
	if (status < 0)
		p->classes[p->nclasses++] = c;
	return status;
}

int plan_check_classes(const plan *p, const char *usage)
{
	const uint64_t ranks = (uint64_t)p->nodes[0] * p->ranks_per_node;
	uint64_t all = 0;
	for (int i = 0; i < p->nclasses; i++)
		all += p->classes[i].ranks;
	if (p->measured && all != ranks)
		return command_usage_error(
			usage,
			"--measured %s is of %llu ranks, and the plan is of %llu (%u x %u); give --nodes and "
			"--ranks-per-node of that job",
			p->measured, (unsigned long long)all, (unsigned long long)ranks, p->nodes[0],
			p->ranks_per_node);
	if (all > ranks)
		return command_usage_error(
			usage, "--ranks has %llu ranks in all, and the job has %llu (%u x %u); give no more than that",
			(unsigned long long)all, (unsigned long long)ranks, p->nodes[0], p->ranks_per_node);
	return -1;
}

static uint64_t samples_by(const plan_table *t, double a_speed, uint64_t each[])
{
	uint64_t all = 0;
	for (int i = 0; i < t->nclasses; i++) {
		each[i] = (uint64_t)fmax(1, floor(a_speed * t->classes[i].speed));
		all += each[i] * t->classes[i].ranks;
	}
	return all;
}

/* Divides the samples of all ranks so that the last of them ends as early as it can, one each at least. */
static void divide_samples(plan_table *t, uint64_t batch)
{
	uint64_t each[PLAN_CLASSES + 1], all, left;
	double least = 0, most = 1;
	all = 0;
	for (int i = 0; i < t->nclasses; i++)
		all += batch * t->classes[i].ranks;
	while (samples_by(t, most, each) <= all)
		most *= 2;
	for (int k = 0; k < 100; k++) {
		double middle = (least + most) / 2;

		*(samples_by(t, middle, each) <= all ? &least : &most) = middle;
	}
	left = all - samples_by(t, least, each);
	for (int i = 0; i < t->nclasses; i++)
		t->classes[i].samples = each[i];
	/* Those that are left go one by one to who has done first. */
	for (; left; left--) {
		plan_class *to = t->classes, *c = to;

		for (; c < t->classes + t->nclasses; c++)
			if ((double)(c->samples + 1) / c->speed < (double)(to->samples + 1) / to->speed)
				to = c;
		if (++to->more == to->ranks) {
			to->samples++;
			to->more = 0;
		}
	}
}

/* Divides the work: by whole samples where the model has a batch that can be counted, otherwise by speed. */
static void divide(plan_table *t, uint64_t batch)
{
	double all = 0, speeds = 0;
	for (int i = 0; i < t->nclasses; i++) {
		all += t->classes[i].ranks;
		speeds += t->classes[i].ranks * t->classes[i].speed;
	}
	const bool whole = batch && (double)batch * all <= SAMPLES_MOST;
	if (whole)
		divide_samples(t, batch);
	for (int i = 0; i < t->nclasses; i++) {
		plan_class *c = &t->classes[i];

		c->share = whole ? (double)(c->samples + (c->more > 0)) / (double)batch : c->speed * all / speeds;
	}
}

/* Predicts a step of the best plan with other speeds, or on another machine. */
static gradcomp_status step_of(const plan *p, const plan_table *t, const machine_file *machine, const sim_class *speeds,
                               double *step, gradcomp_error *err)
{
	cost_question q = plan_question(p, t, t->best, t->nodes);
	cost_prediction out = {0};
	gradcomp_status st;
	q.classes = speeds;
	q.step_alone = 1;
	st = cost_predict(p->model, machine, &q, &out, err);
	*step = out.step_s;
	return st;
}

static gradcomp_status weigh(const plan *p, plan_table *t, gradcomp_error *err)
{
	sim_class fastest[PLAN_CLASSES + 1], divided[PLAN_CLASSES + 1];
	plan_slowest *s = &t->slowest;
	double quick, linked;
	gradcomp_status st;
	if (!t->nclasses || !t->best)
		return GRADCOMP_OK;
	divide(t, p->model->batch);
	for (int i = 0; i < t->nclasses; i++) {
		fastest[i] = (sim_class){t->speeds[i].ranks, t->speeds[t->nclasses - 1].speed};
		divided[i] = (sim_class){t->speeds[i].ranks, t->speeds[i].speed / t->classes[i].share};
	}
	s->step = t->best->p.step_s;
	st = step_of(p, t, &t->alike, fastest, &s->alike, err);
	if (!st)
		st = step_of(p, t, &t->machine, fastest, &quick, err);
	if (!st)
		st = step_of(p, t, &t->alike, t->speeds, &linked, err);
	if (!st)
		st = step_of(p, t, &t->machine, divided, &s->divided, err);
	if (st)
		return st;
	const double computing = s->step - quick, link = s->step - linked, least = NOTHING * s->step;
	s->cost = fmax(0, s->step - s->alike);
	s->gain = fmax(0, s->step - s->divided);
	s->of[PLAN_BY_COMPUTING] = fmax(0, computing);
	s->of[PLAN_BY_LINK] = fmax(0, link);
	if (s->cost <= least)
		s->by = PLAN_BY_NOTHING;
	else if (fmax(computing, link) <= least)
		s->by = PLAN_BY_BOTH;
	else
		s->by = computing >= link ? PLAN_BY_COMPUTING : PLAN_BY_LINK;
	s->who = s->by == PLAN_BY_LINK ? t->slow_link : 0;
	return GRADCOMP_OK;
}

gradcomp_status plan_weigh_classes(plan *p, gradcomp_error *err)
{
	gradcomp_status st = GRADCOMP_OK;
	for (int i = 0; i < p->ntables && !st; i++)
		st = weigh(p, &p->tables[i], err);
	return st;
}

const char *plan_by_text(plan_by by)
{
	static const char *const texts[] = {[PLAN_BY_NOTHING] = "nothing",
	                                    [PLAN_BY_COMPUTING] = "computing",
	                                    [PLAN_BY_LINK] = "link",
	                                    [PLAN_BY_BOTH] = "computing and link"};
	return texts[by];
}

/* "2 ranks of speed 0.5 and 100 Mbit/s". */
static void say_class(const plan_table *t, const plan_class *c, FILE *out)
{
	char rate[PLAN_TEXT];
	const linear l = plan_link_of(c, t->usual);
	fprintf(out, "%u rank%s of speed %.3g", c->ranks, c->ranks == 1 ? "" : "s", c->speed);
	if (l.b > 0)
		fprintf(out, " and %s", plan_rate_text(8 / l.b, rate));
}

static void say_shares(const plan_table *t, FILE *out)
{
	const char *between = "";
	for (int i = 0; i < t->nclasses; i++, between = ", ") {
		const plan_class *c = &t->classes[i];

		if (!c->samples)
			fprintf(out, "%s%.3g of the samples of a rank on %u of speed %.3g", between, c->share, c->ranks,
			        c->speed);
		else if (c->more)
			fprintf(out, "%s%llu samples on %u and %llu on %u of speed %.3g", between,
			        (unsigned long long)c->samples, c->ranks - c->more, (unsigned long long)c->samples + 1,
			        c->more, c->speed);
		else
			fprintf(out, "%s%llu samples on %u of speed %.3g", between, (unsigned long long)c->samples,
			        c->ranks, c->speed);
	}
}

void plan_say_classes(const plan_table *t, FILE *out)
{
	static const char *const whys[] = {
		[PLAN_BY_COMPUTING] = "the fastest can take too little of it",
		[PLAN_BY_LINK] = "the link is what is slow, and as many bytes go over it",
		[PLAN_BY_BOTH] = "the link is as slow as the computing",
	};
	const plan_slowest *s = &t->slowest;
	char a[PLAN_TEXT], b[PLAN_TEXT], c[PLAN_TEXT];
	if (!t->nclasses)
		return;
	if (s->by == PLAN_BY_NOTHING) {
		fprintf(out, "the slowest costs nothing: with all ranks as the fastest a step takes %s too\n",
		        plan_seconds_text(s->alike, a));
		return;
	}
	fprintf(out, "the slowest costs %s of the %s of a step, %.3g %%: with all ranks as the fastest it takes %s\n",
	        plan_seconds_text(s->cost, a), plan_seconds_text(s->step, b), 100 * s->cost / s->step,
	        plan_seconds_text(s->alike, c));
	say_class(t, &t->classes[s->who], out);
	fprintf(out,
	        " hold%s it up, by %s: with the fastest's computing alone a step is %s shorter, with the quickest link alone "
	        "%s\n",
	        t->classes[s->who].ranks == 1 ? "s" : "", plan_by_text(s->by),
	        plan_seconds_text(s->of[PLAN_BY_COMPUTING], a), plan_seconds_text(s->of[PLAN_BY_LINK], b));
	if (s->gain > NOTHING * s->step) {
		fprintf(out, "divided by speed (");
		say_shares(t, out);
		fprintf(out, ") a step takes %s: it gains %s, %.3g %%\n", plan_seconds_text(s->divided, a),
		        plan_seconds_text(s->gain, b), 100 * s->gain / s->step);
	} else {
		fprintf(out, "to give the slowest less work gains nothing: %s\n", whys[s->by]);
	}
}

#ifdef HAVE_JANSSON
#include "tools/report_html.h"

/* Ranks whose speeds are within this of each other are alike, if that makes no more classes than there may be. */
#define ALIKE 1.05

/* A rank's link counts when it carries less than that share of what the plan's does. */
#define SLOW_LINK 0.5

typedef struct measured {
	double speed, bits; /* bits 0: its link is the plan's */
} measured;

/* Those with a link of their own come last. */
static int by_class(const void *a, const void *b)
{
	const measured *x = a, *y = b;
	if ((x->bits > 0) != (y->bits > 0))
		return x->bits > 0 ? 1 : -1;
	return (x->speed > y->speed) - (x->speed < y->speed);
}

/* Makes classes of sorted ranks, each as fast as its mean; returns false where there would be too many. */
static bool group(plan *p, const measured *rank, size_t n, double alike)
{
	double first = 0;
	p->nclasses = 0;
	for (size_t i = 0; i < n; i++) {
		if (!i || rank[i].speed > first * alike || (rank[i].bits > 0) != (rank[i - 1].bits > 0)) {
			if (p->nclasses == PLAN_CLASSES)
				return false;
			p->classes[p->nclasses++] = (plan_class){.link = {rank[i].bits, -1}};
			first = rank[i].speed;
		}
		plan_class *c = &p->classes[p->nclasses - 1];
		c->speed += (rank[i].speed - c->speed) / ++c->ranks;
		c->link.bits = fmin(c->link.bits, rank[i].bits);
	}
	return true;
}

/* Takes each rank's seconds of computing as a speed, rank 0's being 1, and the rate of its link. Returns false where one
 * has no seconds. */
static bool take_times(const plan *p, const json_t *times, measured *rank)
{
	const double usual = p->nlinks ? p->links[0].bits : 8 / p->machine->level[plan_level(p->nodes[0])].b;
	const json_t *row;
	size_t i;
	json_array_foreach(times, i, row)
	{
		double bits = 1e6 * number_of(row, "link_mbit");

		rank[i].speed = number_of(json_array_get(times, 0), "computing_s") / number_of(row, "computing_s");
		if (!(rank[i].speed >= SPEED_LEAST && rank[i].speed <= SPEED_MOST))
			return false;
		rank[i].bits = bits >= PLAN_RATE_LEAST && bits < SLOW_LINK * usual ? bits : 0;
	}
	return i > 0;
}

int plan_measured_classes(plan *p, const char *path)
{
	json_t *root = report_load(path);
	const json_t *times = json_object_get(root, "times");
	size_t n = json_array_size(times);
	measured *rank = calloc(n + 1, sizeof *rank);
	double alike = ALIKE;
	char name[256];
	int status = 1;
	gradcomp_printable(path, name, sizeof name);
	if (root && rank && take_times(p, times, rank)) {
		qsort(rank, n, sizeof *rank, by_class);
		while (!group(p, rank, n, alike))
			alike *= ALIKE;
		p->measured = path;
		status = -1;
	} else if (root) {
		fprintf(stderr,
		        "gradcomp: report %s does not say how long each of its ranks computes (times, computing_s), as that of "
		        "a job of 2 to 1024 ranks whose reducer is on all of them does; give --ranks\n",
		        name);
	}
	free(rank);
	json_decref(root);
	return status;
}
#else
int plan_measured_classes(plan *p, const char *path)
{
	(void)p;
	fprintf(stderr, "gradcomp: this gradcomp was built without jansson and cannot read report %s; give --ranks\n",
	        path);
	return 1;
}
#endif
