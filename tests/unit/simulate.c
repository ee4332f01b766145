/* The simulator against closed forms, against the recurrence of the merge solvers, and
 * against itself: no thread does two things at once, every task runs once. */
#include "model/merge.h"
#include "model/simulate.h"

#include "../tap.h"

#include <math.h>
#include <stdlib.h>
#include <time.h>

#define MOST 12
#define WINDOW 3

static uint64_t state = 42;

static double draw(void)
{
	state = state * 6364136223846793005u + 1442695040888963407u;
	return (double)(state >> 11) / 9007199254740992.0;
}

/* A step of up to MOST tensors whose buckets have `rounds` rounds. */
typedef struct step {
	double forward[MOST], backward[MOST];
	uint64_t numel[MOST];
	uint32_t end[MOST], place[MOST];
	step_plan plan;
	sim_bucket buckets[MOST];
	sim_input in;
} step;

/* Buckets end with the tensors in `cut`; tasks take no time yet. */
static void make(step *s, uint32_t n, const uint8_t *cut, uint32_t rounds, int two_levels)
{
	const gradcomp_plan plan = {.nrounds = rounds};

	s->plan = (step_plan){.end = s->end};
	for (uint32_t i = 0; i < n; i++)
		if (cut[i])
			s->end[s->plan.nbuckets++] = i + 1;
	memset(s->buckets, 0, sizeof s->buckets);
	for (uint32_t b = 0; b < s->plan.nbuckets; b++)
		s->buckets[b].ntasks = (uint32_t)compose_tasks(&plan, two_levels, s->buckets[b].tasks);
	s->in = (sim_input){.n = n, .forward = s->forward, .backward = s->backward, .plan = &s->plan, .window = WINDOW,
	                    .buckets = s->buckets, .beside_application = 1, .beside_exchange = 1, .steps = 2};
}

static void set(step *s, uint32_t bucket, task_kind kind, double seconds)
{
	for (uint32_t t = 0; t < s->buckets[bucket].ntasks; t++)
		if (s->buckets[bucket].tasks[t].kind == kind)
			s->buckets[bucket].seconds[t] = seconds;
}

static double period(const step *s)
{
	gradcomp_error e;
	sim_output out;

	if (simulate(&s->in, 0, &out, &e)) {
		printf("# %s\n", e.text);
		return -1;
	}
	return out.step;
}

static int about(double got, double want)
{
	if (fabs(got - want) <= 1e-9 * (1 + fabs(want)))
		return 1;
	printf("#  got: %.12g\n# want: %.12g\n", got, want);
	return 0;
}

static const uint8_t all[MOST] = {1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1};

static void by_hand(void)
{
	static const uint8_t end[] = {0, 0, 1};
	const sim_class two[] = {{3, 1}, {1, 0.5}};
	step s = {.forward = {1, 2, 3}, .backward = {2, 4, 6}};
	sim_output out;

	make(&s, 3, end, 2, 0);
	set(&s, 0, TASK_BEGIN, 0.5);
	set(&s, 0, TASK_ENCODE, 1);
	set(&s, 0, TASK_EXCHANGE, 10);
	set(&s, 0, TASK_DECODE, 2);
	set(&s, 0, TASK_FINISH, 0.25);
	s.in.update = 7;
	ok(about(period(&s), 6 + 12 + 0.5 + 2 * (1 + 10 + 2) + 0.25 + 7), "one bucket: the sum of all");
	s.in.io = 20;
	s.in.copy = 11;
	ok(about(period(&s), 51.75), "a batch that is read beside it");
	s.in.io = 50;
	ok(about(period(&s), 61), "a batch that takes longer than the rest");
	s.in.steps = 1;
	ok(about(period(&s), 61), "also of one step");
	s.in.steps = 5;
	ok(about(period(&s), 61), "of five");
	s.in.io = s.in.copy = 0;
	s.in.classes = two;
	s.in.nclasses = 2;
	ok(about(period(&s), 51.75 + 18), "a rank of half the speed: its passes count");
	is_int(simulate(&s.in, 0, &out, NULL), 0, "and for the others");
	ok(about(out.exposed, 33.75 - 7 + 18), "its lateness is exposed");
	ok(about(out.compute, 6.75) && about(out.exchange, 20), "computing and exchanging are as long");
}

/* Two buckets of two rounds: the link idles while one decodes, unless the other's goes between. */
static void lag(void)
{
	step s = {.forward = {0, 0}, .backward = {1, 0}};

	make(&s, 2, all, 2, 0);
	for (uint32_t b = 0; b < 2; b++) {
		set(&s, b, TASK_EXCHANGE, 3);
		set(&s, b, TASK_DECODE, 2);
	}
	/* X0 1-4 D 4-6 X0 6-9 D, X1 9-12 D 12-14 X1 14-17 D 17-19 */
	ok(about(period(&s), 19), "lag 0: exchanges of a bucket follow one another");
	s.plan.lag = 1;
	/* X0 1-4, X1 4-7 while X0 decodes, X0 7-10, X1 10-13, D 13-15 */
	ok(about(period(&s), 15), "lag 1: the other bucket's go between");
}

static void shares(void)
{
	static const uint8_t end[] = {1, 1};
	step s = {.forward = {0, 0}, .backward = {1, 10}};

	make(&s, 2, end, 1, 0);
	set(&s, 0, TASK_ENCODE, 4);
	set(&s, 0, TASK_EXCHANGE, 1);
	set(&s, 1, TASK_EXCHANGE, 1);
	ok(about(period(&s), 12), "on a core of its own encoding hides behind the backward pass");
	s.in.beside_application = 0.25;
	/* 1-11 at a quarter does 2.5 of 4; the rest alone to 12.5; two exchanges */
	ok(about(period(&s), 14.5), "at a quarter of the speed it does not");
	make(&s, 2, end, 1, 0);
	s.backward[1] = 0;
	set(&s, 0, TASK_EXCHANGE, 4);
	set(&s, 1, TASK_ENCODE, 3);
	set(&s, 1, TASK_EXCHANGE, 1);
	s.in.beside_exchange = 0.5;
	/* X0 1-5 while the other encodes 2 of 3, 5-6 the rest, 6-7 */
	ok(about(period(&s), 7), "nor beside an exchange at half");
}

static void layers(void)
{
	step s = {.forward = {1, 5}, .backward = {1, 1}, .place = {1, 0}};

	make(&s, 2, all, 1, 0);
	set(&s, 0, TASK_EXCHANGE, 3);
	set(&s, 1, TASK_EXCHANGE, 3);
	s.in.steps = 3;
	ok(about(period(&s), 13), "the step is waited for: 7 and then 6");
	s.in.each_layer = 1;
	ok(about(period(&s), 13), "layers: the first one's gradient comes last");
	s.plan.place = s.place;
	/* X1 2-5, X0 5-8, forward 5-10, 10-11 */
	ok(about(period(&s), 11), "until it goes first");
	s.in.each_layer = 0;
	ok(about(period(&s), 14), "which costs where the step is waited for");
	s.in.each_layer = 1;
	s.in.update = 2;
	ok(about(period(&s), 13), "the update goes with the layers");
}

static void two_levels(void)
{
	static const uint8_t one[] = {1};
	step s = {.forward = {1}, .backward = {1}};

	make(&s, 1, one, 1, 1);
	for (uint32_t t = 0; t < s.buckets[0].ntasks; t++)
		s.buckets[0].seconds[t] = 1;
	is_int(s.buckets[0].ntasks, 9, "two levels: nine tasks");
	ok(about(period(&s), 11), "one after another");
}

/* tau_c(l) = max(tau_c(l+1) + t_c(l+1), tau_b(l) + t_b(l)); a step is the forward pass,
 * tau_c(1) + t_c(1) and the update. */
static void wfbp(void)
{
	int wrong = 0;

	for (int k = 0; k < 200; k++) {
		step s;
		uint32_t n = 1 + (uint32_t)(draw() * MOST);
		double ready = 0, end = 0, forward = 0;

		for (uint32_t i = 0; i < n; i++)
			forward += s.forward[i] = draw(), s.backward[i] = draw();
		make(&s, n, all, 1, 0);
		for (uint32_t i = 0; i < n; i++) {
			double c = draw() * 2;

			set(&s, i, TASK_EXCHANGE, c);
			ready += s.backward[i];
			end = (end > ready ? end : ready) + c;
		}
		s.in.update = draw();
		wrong += !about(period(&s), forward + end + s.in.update);
	}
	is_int(wrong, 0, "wait-free back-propagation: 200 random steps are the DAG model's formula");
}

/* Plans of the merge solvers end when the solvers say. */
static void merged(void)
{
	int wrong = 0, worse = 0;

	for (int k = 0; k < 300; k++) {
		step s;
		uint32_t n = 1 + (uint32_t)(draw() * MOST);
		merge_problem p = {.n = n, .backward = s.backward, .numel = s.numel, .a = draw() * 0.5, .b = draw() * 1e-3};
		double best = 0, got;
		uint8_t cut[MOST];

		for (uint32_t i = 0; i < n; i++) {
			s.forward[i] = 0;
			s.backward[i] = draw();
			s.numel[i] = (uint64_t)(draw() * 1000);
		}
		for (int plan = 0; plan < 3; plan++) {
			if (plan == 0)
				merge_best(&p, cut);
			else if (plan == 1)
				merge_mgwfbp(&p, cut);
			else
				for (uint32_t i = 0; i < n; i++)
					cut[i] = i + 1 == n || draw() < 0.4;
			make(&s, n, cut, 1, 0);
			for (uint32_t b = 0, first = 0; b < s.plan.nbuckets; first = s.end[b++]) {
				uint64_t numel = 0;

				for (uint32_t i = first; i < s.end[b]; i++)
					numel += s.numel[i];
				set(&s, b, TASK_EXCHANGE, p.a + p.b * (double)numel);
			}
			got = period(&s);
			wrong += !about(got, merge_end(&p, cut));
			if (plan == 0)
				best = got;
			else
				worse += got < best * (1 - 1e-9);
		}
	}
	is_int(wrong, 0, "900 merge plans end when merge_end() says");
	is_int(worse, 0, "and none before the one of merge_best()");
}

static void random_step(step *s, int two)
{
	uint32_t n = 1 + (uint32_t)(draw() * MOST), swap, other;
	uint8_t cut[MOST];

	for (uint32_t i = 0; i < n; i++) {
		cut[i] = i + 1 == n || draw() < 0.7;
		s->forward[i] = draw();
		s->backward[i] = draw();
	}
	make(s, n, cut, 1 + (uint32_t)(draw() * 3), two);
	for (uint32_t b = 0; b < s->plan.nbuckets; b++)
		for (uint32_t t = 0; t < s->buckets[b].ntasks; t++)
			s->buckets[b].seconds[t] = draw() < 0.2 ? 0 : draw();
	for (uint32_t b = 0; b < s->plan.nbuckets; b++)
		s->place[b] = b;
	for (uint32_t b = 0; b < s->plan.nbuckets; b++) {
		other = (uint32_t)(draw() * s->plan.nbuckets);
		swap = s->place[b];
		s->place[b] = s->place[other];
		s->place[other] = swap;
	}
	s->plan.place = s->place;
	s->plan.lag = draw() < 0.5;
	s->in.update = draw();
	s->in.io = draw() * 5;
	s->in.beside_application = draw() < 0.5 ? 1 : 0.2 + 0.8 * draw();
	s->in.beside_exchange = draw() < 0.5 ? 1 : 0.2 + 0.8 * draw();
	s->in.each_layer = draw() < 0.3;
	s->in.steps = 3;
}

static int by_thread(const void *a, const void *b)
{
	const sim_event *x = a, *y = b;

	if (x->thread != y->thread)
		return x->thread - y->thread;
	return x->start < y->start ? -1 : x->start > y->start ? 1 : x->end < y->end ? -1 : x->end > y->end;
}

/* Of one step: threads do one thing at a time, tasks run once, in order, not faster than they can. */
static void conserved(void)
{
	int overlap = 0, missing = 0, early = 0, fast = 0, differ = 0, failed = 0;

	for (int k = 0; k < 500; k++) {
		gradcomp_error e;
		sim_output out = {0}, plain = {0};
		uint32_t tasks = 0, seen = 0;
		double work = 0, took = 0;
		step s;

		random_step(&s, k % 4 == 3);
		failed += simulate(&s.in, 1, &out, &e) || simulate(&s.in, 0, &plain, &e);
		differ += !about(out.step, plain.step) + !about(out.compute, plain.compute) +
		          !about(out.exposed, plain.exposed);
		for (uint32_t b = 0; b < s.plan.nbuckets; b++) {
			double last = 0;
			uint32_t t = 0;

			tasks += s.buckets[b].ntasks;
			for (uint32_t i = 0; i < out.nevents; i++) {
				const sim_event *v = &out.events[i];

				if (v->thread == SIM_APPLICATION || v->index != b)
					continue;
				early += v->start < last - 1e-9 || t >= s.buckets[b].ntasks ||
				         strcmp(v->what, compose_name(s.buckets[b].tasks[t].kind)) || v->round != s.buckets[b].tasks[t].round;
				last = v->end;
				if (v->thread == SIM_COMPUTE)
					work += s.buckets[b].seconds[t];
				t++;
				seen++;
			}
		}
		missing += seen != tasks || out.nevents != tasks + 2 * s.in.n + !s.in.each_layer;
		qsort(out.events, out.nevents, sizeof *out.events, by_thread);
		for (uint32_t i = 0; i < out.nevents; i++) {
			const sim_event *v = &out.events[i];

			took += v->thread == SIM_COMPUTE ? v->end - v->start : 0;
			overlap += v->end < v->start || (i && v[-1].thread == v->thread && v->start < v[-1].end - 1e-9);
		}
		fast += took < work - 1e-9 || !about(took, out.compute);
		free(out.events);
	}
	is_int(failed, 0, "500 random steps");
	is_int(overlap, 0, "no thread does two things at once");
	is_int(missing, 0, "every task runs once");
	is_int(early, 0, "in its order");
	is_int(fast, 0, "and not faster than it can");
	is_int(differ, 0, "looking does not change it");
}

/* Ranks that are alike one by one are as their class; it does not matter which is first. */
static void classes(void)
{
	int differ = 0;

	for (int k = 0; k < 100; k++) {
		sim_class each[20], reversed[20], few[] = {{10, 1}, {10, 0.7}};
		double want;
		step s;

		random_step(&s, 0);
		for (int c = 0; c < 20; c++) {
			each[c] = (sim_class){1, c % 2 ? 0.7 : 1};
			reversed[c] = (sim_class){1, c % 2 ? 1 : 0.7};
		}
		s.in.classes = few;
		s.in.nclasses = 2;
		want = period(&s);
		s.in.classes = each;
		s.in.nclasses = 20;
		differ += !about(period(&s), want);
		s.in.classes = reversed;
		differ += !about(period(&s), want);
	}
	is_int(differ, 0, "a class is its ranks");
}

static void steady(void)
{
	int differ = 0;

	for (int k = 0; k < 100; k++) {
		step s;
		double want;

		random_step(&s, 0);
		s.in.steps = 4;
		want = period(&s);
		s.in.steps = 9;
		differ += !about(period(&s), want);
	}
	is_int(differ, 0, "steps are alike from some step on");
}

static void refused(void)
{
	gradcomp_error e;
	sim_output out;
	step s = {.forward = {1}, .backward = {1}};
	sim_class c = {1, 0};
	const sim_input *in = &s.in;

	make(&s, 1, all, 1, 0);
	s.in.steps = 0;
	is_int(simulate(in, 0, &out, &e), GRADCOMP_ERR_INVALID, "no steps");
	s.in.steps = 1;
	s.in.window = 0;
	is_int(simulate(in, 0, &out, &e), GRADCOMP_ERR_INVALID, "no window");
	s.in.window = 1;
	s.in.beside_exchange = 0;
	is_int(simulate(in, 0, &out, &e), GRADCOMP_ERR_INVALID, "no speed");
	s.in.beside_exchange = 1;
	s.in.classes = &c;
	s.in.nclasses = 1;
	is_int(simulate(in, 0, &out, &e), GRADCOMP_ERR_INVALID, "a class that stands still");
	s.in.classes = NULL;
	s.forward[0] = NAN;
	is_int(simulate(in, 0, &out, &e), GRADCOMP_ERR_INVALID, "a pass that takes NaN seconds");
	s.forward[0] = 1;
	s.buckets[0].seconds[1] = -1;
	is_int(simulate(in, 0, &out, &e), GRADCOMP_ERR_INVALID, "a task that takes less than nothing");
	s.buckets[0].seconds[1] = 0;
	s.in.io = INFINITY;
	is_int(simulate(in, 0, &out, &e), GRADCOMP_ERR_INVALID, "a batch that never comes");
	s.in.io = 0;
	s.buckets[0].ntasks = 2;
	is_int(simulate(in, 0, &out, &e), GRADCOMP_ERR_INVALID, "a bucket without an end");
	s.buckets[0].ntasks = 5;
	s.end[0] = 2;
	is_int(simulate(in, 0, &out, &e), GRADCOMP_ERR_INVALID, "a plan of more tensors");
	s.end[0] = 1;
	is_int(simulate(in, 0, &out, &e), 0, "and what is right");
}

int main(void)
{
	by_hand();
	lag();
	shares();
	layers();
	two_levels();
	wfbp();
	merged();
	conserved();
	classes();
	steady();
	refused();
	return done_testing();
}
