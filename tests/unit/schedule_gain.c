/* Measures what a lag and more buckets in flight are worth, by the simulator: the figures of doc/dev/schedule.md,
 * and the reason for STEP_PLAN_LAG and REDUCER_WORKSPACES. */
#include "schedule/sim.h"
#include "reducer/reducer.h"
#include "tests/support/tap.h"

#include <math.h>
#include <string.h>

enum { N = 24 };

typedef struct network {
	uint32_t rounds;
	int differ;      /* in size */
	double backward; /* seconds, of each */
	double compute;  /* seconds of a round; its exchange takes 1 ms */
} network;

static double step_of(const network *w, uint32_t lag, uint32_t window)
{
	double forward[N], backward[N];
	sim_bucket buckets[N];
	uint32_t end[N];
	const gradcomp_plan plan = {.nrounds = w->rounds};
	for (uint32_t i = 0; i < N; i++) {
		double size = !w->differ ? 1 : i % 3 ? 0.4 : 2.2;
		buckets[i].ntasks = (uint32_t)task_list_make(&plan, 0, buckets[i].tasks);
		for (uint32_t k = 0; k < buckets[i].ntasks; k++) {
			task_kind kind = buckets[i].tasks[k].kind;
			double part = kind == TASK_BEGIN ? 0.3 : kind == TASK_FINISH ? 0.1 : 1;
			buckets[i].seconds[k] = size * (kind == TASK_EXCHANGE ? 1e-3 : part * w->compute / 2);
		}
		forward[i] = w->backward / 2;
		backward[i] = w->backward;
		end[i] = i + 1;
	}
	const step_plan p = {.nbuckets = N, .end = end, .lag = lag};
	const sim_input in = {.n = N,
	                      .forward = forward,
	                      .backward = backward,
	                      .plan = &p,
	                      .window = window,
	                      .buckets = buckets,
	                      .beside_application = 1,
	                      .beside_exchange = 1,
	                      .steps = 3};
	sim_output out;
	gradcomp_error err;
	return sim_run(&in, 0, &out, &err) ? NAN : out.step;
}

int main(void)
{
	static const double backward[] = {0, 1e-3, 2e-3, 4e-3}, compute[] = {0.05e-3, 0.25e-3, 0.5e-3, 1e-3, 2e-3};
	double worst = 0, best = 1, slot = 1, more_worst = 0, more_best = 1;
	int one_round_differs = 0;
	for (uint32_t rounds = 1; rounds <= 3; rounds++)
		for (int at = 0; at < 2 * 4 * 5; at++) {
			network w = {.rounds = rounds,
			             .differ = at / 20,
			             .backward = backward[at / 5 % 4],
			             .compute = compute[at % 5]};
			double was = step_of(&w, 0, 3), lag = step_of(&w, 1, 3), both = step_of(&w, 1, 4),
			       wide = step_of(&w, 1, 8);
			double four = step_of(&w, 0, 4);
			printf("# rounds %u, %s, backward %g ms, computing %g ms: %.1f ms; lag 1, 3: %.3f; lag 0, 4: %.3f; lag 1, 4: "
			       "%.3f; lag 1, 8: %.3f\n",
			       rounds, w.differ ? "different" : "equal", w.backward * 1e3, w.compute * 1e3, was * 1e3,
			       lag / was, four / was, both / was, wide / was);
			worst = fmax(worst, both / was);
			best = fmin(best, both / was);
			one_round_differs += rounds == 1 && fabs(lag / was - 1) > 1e-9;
			slot = rounds == 1 ? fmin(slot, four / was) : slot;
			more_worst = fmax(more_worst, wide / both);
			more_best = fmin(more_best, wide / both);
		}
	ok(STEP_PLAN_LAG == 1 && REDUCER_WORKSPACES == 4, "lag 1 and four buckets in flight are what runs");
	is_int(one_round_differs, 0, "of one round a lag makes no difference");
	ok(worst < 1.03, "at the most they cost %.1f %% of a step", 100 * (worst - 1));
	ok(best < 0.7, "at the best they save %.1f %%", 100 * (1 - best));
	ok(slot < 0.8, "of one round and different sizes the fourth saves up to %.1f %%", 100 * (1 - slot));
	ok(more_best > 0.97, "eight save up to %.1f %% more than four, and cost up to %.1f %%", 100 * (1 - more_best),
	   100 * (more_worst - 1));
	return done_testing();
}
