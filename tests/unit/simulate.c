/* The simulator on steps that were worked out by hand, and what it refuses. */
#include "tests/support/sim_step_fixture.h"

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
	is_int(sim_run(&s.in, 0, &out, NULL), 0, "and for the others");
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

/* Passes that take longer beside the others. */
static void slowed(void)
{
	static const uint8_t end[] = {1, 1};
	step s = {.forward = {0, 0}, .backward = {1, 10}};
	make(&s, 2, end, 1, 0);
	set(&s, 0, TASK_EXCHANGE, 4);
	s.in.slowed_by_exchange = 1;
	/* 1-5 does 2 of 10, 8 alone to 13 */
	ok(about(period(&s), 13), "at half of its speed beside an exchange");
	s.in.slowed_by_exchange = 0;
	set(&s, 0, TASK_ENCODE, 2);
	s.in.slowed_by_compute = 3;
	/* 1-3 does 0.5, 9.5 alone to 12.5; the exchange 3-7 */
	ok(about(period(&s), 12.5), "at a quarter beside compressing");
	s.in.slowed_by_exchange = 1;
	/* 1-3 does 0.5, 3-7 does 2, 7.5 alone */
	ok(about(period(&s), 14.5), "or both");
	set(&s, 0, TASK_EXCHANGE, 100);
	/* 1-3 does 0.5, 9.5 take 19 to 22; the exchange ends at 103 */
	ok(about(period(&s), 103), "which costs nothing where the exchange is longer");
	s.in.beside_application = 0.5;
	set(&s, 0, TASK_EXCHANGE, 0);
	s.in.slowed_by_compute = 1;
	/* encoding 1-5 at half, of the pass 2; 8 to 13 */
	ok(about(period(&s), 13), "both threads at half of their speed");
}

static void layers(void)
{
	step s = {.forward = {1, 5}, .backward = {1, 1}, .position = {1, 0}};
	make(&s, 2, all, 1, 0);
	set(&s, 0, TASK_EXCHANGE, 3);
	set(&s, 1, TASK_EXCHANGE, 3);
	s.in.steps = 3;
	ok(about(period(&s), 13), "the step is waited for: 7 and then 6");
	s.in.each_layer = 1;
	ok(about(period(&s), 13), "layers: the first one's gradient comes last");
	s.plan.position = s.position;
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

static void refused(void)
{
	gradcomp_error e;
	sim_output out;
	step s = {.forward = {1}, .backward = {1}};
	sim_class c = {1, 0};
	const sim_input *in = &s.in;
	make(&s, 1, all, 1, 0);
	s.in.steps = 0;
	is_int(sim_run(in, 0, &out, &e), GRADCOMP_ERR_INVALID, "no steps");
	s.in.steps = 1;
	s.in.window = 0;
	is_int(sim_run(in, 0, &out, &e), GRADCOMP_ERR_INVALID, "no window");
	s.in.window = 1;
	s.in.beside_exchange = 0;
	is_int(sim_run(in, 0, &out, &e), GRADCOMP_ERR_INVALID, "no speed");
	s.in.beside_exchange = 1;
	s.in.slowed_by_exchange = NAN;
	is_int(sim_run(in, 0, &out, &e), GRADCOMP_ERR_INVALID, "slowed by NaN");
	s.in.slowed_by_exchange = 0;
	s.in.slowed_by_compute = -0.5;
	is_int(sim_run(in, 0, &out, &e), GRADCOMP_ERR_INVALID, "made faster");
	s.in.slowed_by_compute = 0;
	s.in.classes = &c;
	s.in.nclasses = 1;
	is_int(sim_run(in, 0, &out, &e), GRADCOMP_ERR_INVALID, "a class that stands still");
	s.in.classes = NULL;
	s.forward[0] = NAN;
	is_int(sim_run(in, 0, &out, &e), GRADCOMP_ERR_INVALID, "a pass that takes NaN seconds");
	s.forward[0] = 1;
	s.buckets[0].seconds[1] = -1;
	is_int(sim_run(in, 0, &out, &e), GRADCOMP_ERR_INVALID, "a task that takes less than nothing");
	s.buckets[0].seconds[1] = 0;
	s.in.io = INFINITY;
	is_int(sim_run(in, 0, &out, &e), GRADCOMP_ERR_INVALID, "a batch that never comes");
	s.in.io = 0;
	s.buckets[0].ntasks = 2;
	is_int(sim_run(in, 0, &out, &e), GRADCOMP_ERR_INVALID, "a bucket without an end");
	s.buckets[0].ntasks = 5;
	s.end[0] = 2;
	is_int(sim_run(in, 0, &out, &e), GRADCOMP_ERR_INVALID, "a plan of more tensors");
	s.end[0] = 1;
	is_int(sim_run(in, 0, &out, &e), 0, "and what is right");
}

int main(void)
{
	by_hand();
	lag();
	shares();
	slowed();
	layers();
	two_levels();
	refused();
	return done_testing();
}
