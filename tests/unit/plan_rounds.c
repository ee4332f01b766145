/* Plans of buckets that are exchanged in several rounds: what `auto` finds, against every plan there is. */
#include "schedule/plan_search.h"

#include "tests/support/tap.h"
#include "tests/support/test_random.h"

#include <dlfcn.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { MOST = 13, CASES = 40 };

static gradcomp_error e;
static double simulated; /* buckets, by steps */

gradcomp_status sim_run(const sim_input *in, int with_events, sim_output *out, gradcomp_error *err)
{
	gradcomp_status (*real)(const sim_input *, int, sim_output *, gradcomp_error *);
	*(void **)&real = dlsym(RTLD_NEXT, "sim_run");
	simulated += (double)in->steps * in->plan->nbuckets;
	return real(in, with_events, out, err);
}

/* Seconds, and seconds a number. */
typedef struct costs {
	uint32_t rounds;
	double encode[2], exchange[3][2], decode[2];
	const uint64_t *numel;
} costs;

static double at(const double line[2], double x)
{
	return line[0] + line[1] * x;
}

static gradcomp_status bucket(void *ctx, uint32_t index, uint32_t first, uint32_t end, sim_bucket *out, double *payload,
                              gradcomp_error *err)
{
	const costs *c = ctx;
	gradcomp_plan plan = {.nrounds = c->rounds};
	double x = 0;
	(void)index, (void)err;
	for (uint32_t i = first; i < end; i++)
		x += (double)c->numel[i];
	out->ntasks = (uint32_t)task_list_make(&plan, 0, out->tasks);
	for (uint32_t k = 0; k < out->ntasks; k++) {
		const task *t = &out->tasks[k];
		out->seconds[k] = t->kind == TASK_ENCODE     ? at(c->encode, x)
		                  : t->kind == TASK_DECODE   ? at(c->decode, x)
		                  : t->kind == TASK_EXCHANGE ? at(c->exchange[t->round], x)
		                                             : 0;
	}
	*payload = x;
	return GRADCOMP_OK;
}

/* The least that any cut takes, with either lag. */
static double best_of_all(const plan_search *s, uint32_t n)
{
	uint8_t cut[MOST];
	double best = INFINITY;
	cut[n - 1] = 1;
	for (uint32_t mask = 0; mask < 1u << (n - 1); mask++)
		for (uint32_t lag = 0; lag < 2; lag++) {
			step_plan p = {0};
			sim_output out;

			for (uint32_t i = 0; i + 1 < n; i++)
				cut[i] = mask >> i & 1;
			if (step_plan_from_cut(&p, cut, n, &e))
				return -1;
			p.lag = lag;
			if (plan_search_predict(s, &p, 0, &out, &e))
				return -1;
			best = fmin(best, out.step);
			step_plan_clear(&p);
		}
	return best;
}

/* Bytes and messages, computing and passes of about the same weight. */
static void make(costs *c, uint32_t n, uint32_t rounds, uint64_t *numel, double *backward)
{
	*c = (costs){.rounds = rounds, .numel = numel};
	for (uint32_t i = 0; i < n; i++) {
		numel[i] = 1 + (uint64_t)(2e6 * draw() * draw());
		backward[i] = 4e-3 * draw() * draw();
	}
	for (uint32_t k = 0; k < rounds; k++) {
		c->exchange[k][0] = 2e-3 * draw();
		c->exchange[k][1] = 4e-9 * draw();
	}
	c->encode[0] = c->decode[0] = 3e-4 * draw();
	c->encode[1] = 1e-9 * draw();
	c->decode[1] = 1e-9 * draw();
}

/* Returns how many plans are the best; *most: the furthest from the best, as a share. */
static int optimal(uint32_t n, uint32_t rounds, double *mean, double *most)
{
	uint64_t numel[MOST];
	double forward[MOST] = {5e-3}, backward[MOST];
	int equal = 0;
	*mean = *most = 0;
	for (int k = 0; k < CASES; k++) {
		costs c;
		plan_found found = {.exposed = 0};
		make(&c, n, rounds, numel, backward);
		const plan_search s = {.sim = {.n = n,
		                               .forward = forward,
		                               .backward = backward,
		                               .window = 4,
		                               .beside_application = 1,
		                               .beside_exchange = 1,
		                               .steps = 2},
		                       .numel = numel,
		                       .first_bytes = 1 << 20,
		                       .bytes = 25 << 20,
		                       .bucket = bucket,
		                       .ctx = &c};
		double best = best_of_all(&s, n);
		if (plan_search_run(&s, SCHEDULE_AUTO, &found, NULL, &e) || best < 0) {
			printf("# %s\n", e.text);
			*most = INFINITY;
			return -1;
		}
		double off = found.plan.predicted / best - 1;
		equal += off < 1e-8;
		*mean += off / CASES;
		*most = fmax(*most, off);
		step_plan_clear(&found.plan);
	}
	return equal;
}

/* A large model: what a search costs is bounded, in buckets that are simulated. The seconds of
 * `gradcomp plan` over many numbers of nodes are little else. */
static void bounded(uint32_t n, double most)
{
	uint64_t *numel = calloc(n, sizeof *numel);
	double *forward = calloc(n, sizeof *forward), *backward = calloc(n, sizeof *backward);
	costs c;
	plan_found found = {.exposed = 0};
	uint64_t drawn = draw_state;
	make(&c, n, 2, numel, backward);
	draw_state = drawn; /* the instances of the other tests stay what they are */
	const plan_search s = {.sim = {.n = n,
	                               .forward = forward,
	                               .backward = backward,
	                               .window = 4,
	                               .beside_application = 1,
	                               .beside_exchange = 1,
	                               .steps = 4},
	                       .numel = numel,
	                       .first_bytes = 1 << 20,
	                       .bytes = 25 << 20,
	                       .bucket = bucket,
	                       .ctx = &c};
	simulated = 0;
	gradcomp_status st = plan_search_run(&s, SCHEDULE_AUTO, &found, NULL, &e);
	ok(!st && simulated > n && simulated < most, "%u tensors: %.0f buckets are simulated, at most %.0f: %s", n,
	   simulated, most, st ? e.text : "");
	step_plan_clear(&found.plan);
	free(numel);
	free(forward);
	free(backward);
}

int main(void)
{
	bounded(580, 180e3);
	bounded(2000, 600e3);

	static const uint32_t sizes[] = {1, 2, 5, 9};
	double mean, most;

	for (size_t k = 0; k < sizeof sizes / sizeof *sizes; k++)
		for (uint32_t rounds = 2; rounds <= 3; rounds++) {
			int equal = optimal(sizes[k], rounds, &mean, &most);
			is_int(equal, CASES, "%u tensors in %u rounds: the best of all plans", sizes[k], rounds);
		}
	for (uint32_t n = 12; n <= MOST; n++)
		for (uint32_t rounds = 2; rounds <= 3; rounds++) {
			int equal = optimal(n, rounds, &mean, &most);
			ok(equal >= CASES * 3 / 4 && mean < 0.001 && most < 0.01,
			   "%u tensors in %u rounds, searched: %d of %d are the best of all plans, mean %.3f %% over it, most %.2f %%",
			   n, rounds, equal, CASES, 100 * mean, 100 * most);
		}
	return done_testing();
}
