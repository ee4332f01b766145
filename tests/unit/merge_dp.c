/* Merge solvers against brute force over all 2^(n-1) groupings, on random instances and
 * on the network constants that MG-WFBP was published with. */
#include "schedule/merge.h"
#include "schedule/step_plan.h"

#include "tests/support/tap.h"
#include "tests/support/test_random.h"

#include <math.h>
#include <stdlib.h>
#include <time.h>

#define MOST 14

/* Between lo and hi, as likely in every decade. */
static double spread(double lo, double hi)
{
	return lo * pow(hi / lo, draw());
}

static double brute(const merge_problem *p, uint8_t *best)
{
	double least = INFINITY;
	for (uint32_t groups = 0; groups < 1u << (p->n - 1); groups++) {
		uint8_t cut[MOST];
		double end;

		for (uint32_t i = 0; i + 1 < p->n; i++)
			cut[i] = groups >> i & 1;
		cut[p->n - 1] = 1;
		for (uint32_t i = 0, from = 0; p->max_numel && i < p->n; i++) {
			uint64_t numel = 0;

			if (!cut[i])
				continue;
			for (uint32_t t = from; t <= i; t++)
				numel += p->numel[t];
			if (numel > p->max_numel && i > from)
				goto next;
			from = i + 1;
		}
		end = merge_end(p, cut);
		if (end < least) {
			least = end;
			memcpy(best, cut, p->n);
		}
	next:;
	}
	return least;
}

typedef struct gap {
	int n, optimal;
	double sum, most;
} gap;

static void note(gap *g, double end, double least)
{
	double over = end / least - 1;
	g->n++;
	g->optimal += over < 1e-9;
	g->sum += over;
	if (over > g->most)
		g->most = over;
}

static void tell(const char *name, const gap *g)
{
	printf("# %-7s optimal in %5d of %d, mean gap %.2f %%, most %.1f %%\n", name, g->optimal, g->n,
	       100 * g->sum / g->n, 100 * g->most);
}

enum { BEST, WFBP, SINGLE, FIXED, MGWFBP, OMGS, METHODS };
static const char *const names[METHODS] = {"best", "wfbp", "single", "fixed", "mgwfbp", "omgs"};

/* All methods on one instance: *above counts where best is not the optimum, *worse the
 * methods that ended before best did, *broken the plans that do not keep to max_numel or
 * do not end with the last tensor. */
static void compare(const merge_problem *p, gap *g, int *above, int *worse, int *broken)
{
	static const uint64_t sizes[] = {1, 1000, 100000, 6553600};
	uint8_t cut[METHODS + 3][MOST] = {{0}}, optimum[MOST];
	double least = brute(p, optimum), end[METHODS + 3];
	merge_dp(p, cut[BEST]);
	merge_wfbp(p, cut[WFBP]);
	merge_single(p, cut[SINGLE]);
	merge_mgwfbp(p, cut[MGWFBP]);
	merge_omgs(p, cut[OMGS]);
	merge_fixed(p, 262144, 6553600, cut[FIXED]);
	for (int i = 0; i < 3; i++)
		merge_fixed(p, sizes[i], sizes[i + 1], cut[METHODS + i]);
	for (int m = 0; m < METHODS + 3; m++) {
		uint64_t numel = 0;
		int tensors = 0;

		end[m] = merge_end(p, cut[m]);
		*worse += end[m] * (1 + 1e-9) < end[BEST];
		*broken += cut[m][p->n - 1] != 1;
		for (uint32_t i = 0; i < p->n; i++) {
			numel += p->numel[i];
			tensors++;
			*broken += p->max_numel && numel > p->max_numel && tensors > 1;
			if (cut[m][i])
				numel = 0, tensors = 0;
		}
		if (m < METHODS)
			note(&g[m], end[m], least);
	}
	*above += fabs(end[BEST] - least) > 1e-9 * least;
}

static void instance(merge_problem *p, double *backward, uint64_t *numel, int n)
{
	p->n = (uint32_t)n;
	p->backward = backward;
	p->numel = numel;
	for (int i = 0; i < n; i++) {
		backward[i] = spread(1e-5, 3e-2);
		/* Convolutions and their biases; now and then nothing. */
		numel[i] = draw() < 0.4 ? (uint64_t)spread(10, 4000) : (uint64_t)spread(1e3, 2e7);
		if (draw() < 0.03)
			numel[i] = 0;
	}
}

static void random_instances(void)
{
	gap g[METHODS] = {{0}}, streamed[METHODS] = {{0}};
	int above = 0, worse = 0, broken = 0;
	for (int k = 0; k < 1000; k++) {
		double backward[MOST];
		uint64_t numel[MOST];
		merge_problem p = {.a = spread(1e-5, 2e-2), .b = 4 * spread(1e-11, 4e-8)};

		instance(&p, backward, numel, 1 + (int)(draw() * MOST));
		if (k % 5 == 4)
			p.max_numel = (uint64_t)spread(1e4, 3e7);
		if (k % 2) {
			p.select_a = spread(1e-6, 2e-3);
			p.select_b = spread(1e-11, 1e-8);
		}
		compare(&p, k % 2 ? streamed : g, &above, &worse, &broken);
	}
	is_int(above, 0, "best is the optimum of 1000 random instances");
	is_int(worse, 0, "and never worse than wfbp, single, four sizes of fixed, mgwfbp and omgs");
	is_int(broken, 0, "every plan keeps to max_numel and ends with the last tensor");
	printf("# selection beside the stream:\n");
	for (int m = 0; m < METHODS; m++)
		tell(names[m], &g[m]);
	printf("# selection in the stream:\n");
	for (int m = 0; m < METHODS; m++)
		tell(names[m], &streamed[m]);
}

static void published(void)
{
	static const struct {
		const char *name;
		double a, b;
	} nets[] = {{"10 GbE, 16 ranks", 9.08e-4, 7.40e-10},
	            {"10 GbE, 8 ranks", 5.23e-4, 8.57e-10},
	            {"56 Gb InfiniBand, 16 ranks", 2.36e-4, 4.06e-10},
	            {"56 Gb InfiniBand, 8 ranks", 9.75e-5, 3.06e-10},
	            {"1 GbE, all-gather, 16 ranks", 1.1e-2, 1.7e-8}};

	for (size_t k = 0; k < sizeof nets / sizeof nets[0]; k++) {
		gap g[METHODS] = {{0}};
		int above = 0, worse = 0, broken = 0;

		for (int i = 0; i < 200; i++) {
			double backward[MOST];
			uint64_t numel[MOST];
			merge_problem p = {.a = nets[k].a, .b = 4 * nets[k].b};

			instance(&p, backward, numel, MOST);
			compare(&p, g, &above, &worse, &broken);
		}
		is_int(above + worse + broken, 0, "%s: best is the optimum", nets[k].name);
		tell(names[MGWFBP], &g[MGWFBP]);
	}
}

/* a is longer than every gap, so the published rule merges all, and the link idles while the
 * gradients come: 1 GbE by all-gather, layers of a hundredth of a second. */
static void collapses(void)
{
	static const double backward[] = {9e-3, 9e-3, 9e-3, 9e-3, 9e-3, 9e-3, 9e-3, 9e-3};
	static const uint64_t numel[] = {1000000, 1000000, 1000000, 1000000, 1000000, 1000000, 1000000, 1000000};
	merge_problem p = {.n = 8, .backward = backward, .numel = numel, .a = 1.1e-2, .b = 4 * 1.7e-8};
	uint8_t greedy[8], best[8];
	int messages = 0;
	merge_mgwfbp(&p, greedy);
	merge_dp(&p, best);
	for (int i = 0; i < 8; i++)
		messages += greedy[i];
	is_int(messages, 1, "the published rule makes one message where a is longer than every gap");
	ok(merge_end(&p, greedy) / merge_end(&p, best) > 1.05, "which takes %.2f times as long as the best plan",
	   merge_end(&p, greedy) / merge_end(&p, best));
}

/* By hand: a = 1, b = 1. */
static void by_hand(void)
{
	static const double backward[] = {1, 1, 1, 10};
	static const uint64_t numel[] = {1, 1, 1, 1};
	merge_problem p = {4, backward, numel, 1, 1, 0, 0, 0};
	uint8_t cut[4];
	merge_wfbp(&p, cut);
	ok(merge_end(&p, cut) == 15, "wfbp: 3, 5, 7 are hidden, then 13 + 2");
	merge_single(&p, cut);
	ok(merge_end(&p, cut) == 18, "single: 13 + 5");
	merge_dp(&p, cut);
	ok(merge_end(&p, cut) == 15, "best: as wfbp");
	is_int(cut[0] + cut[1] + cut[2] + cut[3], 2, "in two buckets: fewer that end as early");
	ok(cut[2] && cut[3], "the last layer alone");
	p.max_numel = 2;
	merge_dp(&p, cut);
	ok(cut[3] && cut[2] && cut[0] + cut[1] == 1, "in three where two numbers are the most");
	p.select_a = 100;
	p.max_numel = 0;
	merge_dp(&p, cut);
	is_int(cut[0] + cut[1] + cut[2] + cut[3], 1, "one bucket where selecting is dear");
	merge_omgs(&p, cut);
	is_int(cut[0] + cut[1] + cut[2] + cut[3], 1, "which omgs sees too");
	p = (merge_problem){1, backward, numel, 1, 1, 0, 0, 0};
	memset(cut, 9, sizeof cut);
	merge_mgwfbp(&p, cut);
	is_int(cut[0], 1, "one tensor");
	is_int(cut[1], 9, "and nothing written behind it");
}

/* More layers than anybody can try: still no method is better, and it is quick. */
static void deep(void)
{
	enum { LAYERS = 1000 };
	static double backward[LAYERS];
	static uint64_t numel[LAYERS];
	static uint8_t cut[LAYERS], other[LAYERS];
	merge_problem p = {0};
	struct timespec t0, t1;
	double best;

	for (int k = 0; k < 6; k++) {
		instance(&p, backward, numel, LAYERS);
		p.a = k < 3 ? 9.08e-4 : 1e-5;
		p.b = 4 * (k % 3 == 0 ? 7.4e-10 : k % 3 == 1 ? 1.7e-8 : 1e-11);
		p.select_a = k == 4 ? 1e-4 : 0;
		clock_gettime(CLOCK_MONOTONIC, &t0);
		is_int(merge_dp(&p, cut), 0, "1000 layers");
		clock_gettime(CLOCK_MONOTONIC, &t1);
		best = merge_end(&p, cut);
		merge_wfbp(&p, other);
		ok(best <= merge_end(&p, other) * (1 + 1e-9), "not worse than wfbp");
		merge_single(&p, other);
		ok(best <= merge_end(&p, other) * (1 + 1e-9), "than single");
		merge_mgwfbp(&p, other);
		ok(best <= merge_end(&p, other) * (1 + 1e-9), "than mgwfbp");
		printf("# %.1f ms; mgwfbp %.3f %% over best\n",
		       1e3 * (double)(t1.tv_sec - t0.tv_sec) + 1e-6 * (double)(t1.tv_nsec - t0.tv_nsec),
		       100 * (merge_end(&p, other) / best - 1));
	}
}

static void plans(void)
{
	static const uint8_t cut[] = {0, 1, 1, 0, 1};
	uint32_t position[] = {2, 0, 1}, end[] = {2, 3, 5};
	gradcomp_error e;
	step_plan p, q = {.nbuckets = 3, .end = end, .position = position};
	is_int(step_plan_from_cut(&p, cut, 5, &e), 0, "a plan of cuts");
	ok(p.nbuckets == 3 && p.end[0] == 2 && p.end[1] == 3 && p.end[2] == 5 && !p.position, "its ends");
	is_int(step_plan_check(&p, 5, &e), 0, "is right");
	is_int(step_plan_check(&p, 6, &e), GRADCOMP_ERR_INVALID, "but not for six tensors");
	like(e.text, "the last bucket ends before tensor 5, but there are 6", "and it says so");
	step_plan_clear(&p);
	is_int(step_plan_check(&p, 5, &e), GRADCOMP_ERR_INVALID, "no buckets");
	is_int(step_plan_check(&q, 5, &e), 0, "positions that are a permutation");
	position[2] = 0;
	is_int(step_plan_check(&q, 5, &e), GRADCOMP_ERR_INVALID, "that are none");
	like(e.text, "buckets 1 and 2 both have position 0", "");
	position[2] = 3;
	is_int(step_plan_check(&q, 5, &e), GRADCOMP_ERR_INVALID, "a position that there is not");
	like(e.text, "must be 0..2", "");
	position[2] = 1;
	end[1] = 2;
	is_int(step_plan_check(&q, 5, &e), GRADCOMP_ERR_INVALID, "an empty bucket");
	end[1] = 3;
	q.lag = 2;
	is_int(step_plan_check(&q, 5, &e), GRADCOMP_ERR_INVALID, "a lag of 2");
	q.lag = 1;
	q.nbuckets = UINT32_MAX;
	is_int(step_plan_check(&q, 5, &e), GRADCOMP_ERR_INVALID, "more buckets than tensors");
}

int main(void)
{
	draw_state = 20191109;
	by_hand();
	collapses();
	random_instances();
	published();
	deep();
	plans();
	return done_testing();
}
