/* The simulator on random steps: against a closed form, against the recurrence of the merge
 * solvers, and against itself: no thread does two things at once, every task runs once. */
#include "schedule/merge.h"

#include "tests/support/test_random.h"
#include "tests/support/sim_step_fixture.h"

/* tau_c(l) = max(tau_c(l+1) + t_c(l+1), tau_b(l) + t_b(l)); a step is the forward pass,
 * tau_c(1) + t_c(1) and the update. */
static void wfbp(void)
{
	int wrong = 0;
	for (int k = 0; k < 200; k++) {
		step s;
		uint32_t n = 1 + (uint32_t)(draw() * STEP_MOST);
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
		uint32_t n = 1 + (uint32_t)(draw() * STEP_MOST);
		merge_problem p = {
			.n = n, .backward = s.backward, .numel = s.numel, .a = draw() * 0.5, .b = draw() * 1e-3};
		double best = 0, got;
		uint8_t cut[STEP_MOST];

		for (uint32_t i = 0; i < n; i++) {
			s.forward[i] = 0;
			s.backward[i] = draw();
			s.numel[i] = (uint64_t)(draw() * 1000);
		}
		for (int plan = 0; plan < 3; plan++) {
			if (plan == 0)
				merge_dp(&p, cut);
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
	uint32_t n = 1 + (uint32_t)(draw() * STEP_MOST), swap, other;
	uint8_t cut[STEP_MOST];
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
		s->position[b] = b;
	for (uint32_t b = 0; b < s->plan.nbuckets; b++) {
		other = (uint32_t)(draw() * s->plan.nbuckets);
		swap = s->position[b];
		s->position[b] = s->position[other];
		s->position[other] = swap;
	}
	s->plan.position = s->position;
	s->plan.lag = draw() < 0.5;
	s->in.update = draw();
	s->in.io = draw() * 5;
	s->in.beside_application = draw() < 0.5 ? 1 : 0.2 + 0.8 * draw();
	s->in.beside_exchange = draw() < 0.5 ? 1 : 0.2 + 0.8 * draw();
	s->in.slowed_by_exchange = draw() < 0.5 ? 0 : draw();
	s->in.slowed_by_compute = draw() < 0.5 ? 0 : draw();
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

/* Checks one step: threads do one thing at a time, tasks run once, in order, not faster than they can. */
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
		failed += sim_run(&s.in, 1, &out, &e) || sim_run(&s.in, 0, &plain, &e);
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
				         strcmp(v->what, task_name(s.buckets[b].tasks[t].kind)) ||
				         v->round != s.buckets[b].tasks[t].round;
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

int main(void)
{
	draw_state = 42;
	wfbp();
	merged();
	conserved();
	classes();
	steady();
	return done_testing();
}
