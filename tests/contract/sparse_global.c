/* gtopk and randomk, whose ranks send the same places, against plain ones in double. */
#include "tests/contract/sparse_reference.h"

/* Sends the k largest of the sum of a and b to a, and adds the rest to left. */
static void plain_merge(double *a, const double *b, double *left, uint64_t k)
{
	static char in[D];
	for (int i = 0; i < D; i++)
		a[i] += b[i];
	choose(in, a, D, k);
	for (int i = 0; i < D; i++) {
		left[i] += in[i] ? 0 : a[i];
		a[i] = in[i] ? a[i] : 0;
	}
}

/* The harness merges along a binomial tree. Small whole numbers, so that sums are
 * exact; ties are many. */
static void gtopk_follows(const char *text, int P, double density)
{
	static double u[9][D], top[9][D], left[9][D];
	uint64_t k = share_formula(density, D);
	int right = 1, whole = 1;
	job j;
	if (!job_open(&j, text, P, TENSORS, dims))
		return;
	for (int step = 0; step < 4; step++) {
		static char in[D];
		for (int w = 0; w < P; w++)
			for (int i = 0; i < D; i++) {
				j.g[w][i] = (float)(test_random() % 41) - 20;
				u[w][i] = (double)(j.g[w][i] + j.s.error[w][i]);
			}
		if (!job_step(&j))
			break;
		memset(left, 0, sizeof left);
		for (int w = 0; w < P; w++) {
			choose(in, u[w], D, k);
			for (int i = 0; i < D; i++)
				top[w][i] = in[i] ? u[w][i] : 0;
		}
		for (int far = 1; far < P; far *= 2)
			for (int w = 0; w + far < P; w += 2 * far)
				plain_merge(top[w], top[w + far], left[w], k);
		for (int i = 0; i < D; i++) {
			double in_all = 0, out = 0;
			for (int w = 0; w < P; w++) {
				in_all += u[w][i];
				out += j.s.error[w][i];
			}
			whole &= out + top[0][i] == in_all;
			right &= j.g[0][i] == 1.0f / (float)P * (float)top[0][i];
		}
	}
	uint64_t bytes = 4 * k + index_formula(strstr(text, "auto") ? SDK_SPARSE_AUTO : SDK_SPARSE_RAW, D, k);
	ok(right && whole && j.s.sent == bytes, "%s, P=%d: the plain one's average%s%s; %d bytes", text, P,
	   right ? "" : " (NOT)", whole ? ", and nothing is lost" : ", SOMETHING IS LOST", (int)bytes);
	job_close(&j);
}

/* Gradients of all sizes: conserved to rounding. */
static void gtopk_conserves(int P, int kind)
{
	static double u[9][D];
	double off = 0, mass = 0;
	job j;
	if (!job_open(&j, "gtopk:density=0.03", P, TENSORS, dims))
		return;
	for (int step = 0; step < 5; step++) {
		fresh(&j, u, kind);
		if (!job_step(&j))
			break;
		for (int i = 0; i < D; i++) {
			double lost = (double)P * j.g[0][i];
			for (int w = 0; w < P; w++) {
				lost += j.s.error[w][i] - u[w][i];
				mass += fabs(u[w][i]);
			}
			off += fabs(lost);
		}
	}
	ok(off <= 3e-8 * mass, "gtopk, P=%d, %s: %.1e of the mass is lost in rounding", P, fixture_kind_names[kind],
	   mass > 0 ? off / mass : 0);
	job_close(&j);
}

static void gtopk_overflows(void)
{
	job j;
	int right = 1;
	if (!job_open(&j, "gtopk:density=0.03", 5, TENSORS, dims))
		return;
	for (int w = 0; w < 5; w++)
		for (int i = 0; i < D; i++) {
			j.g[w][i] = i == 77 ? 3e38f : test_normal();
			j.s.error[w][i] = 0.5f;
		}
	if (job_step(&j))
		for (int w = 0; w < 5; w++)
			for (int i = 0; i < D; i++)
				right &= isnan(j.g[w][i]) && j.s.error[w][i] == 0;
	ok(right, "gtopk: a sum that overflows makes the average NaN on all ranks, and leaves no error");
	job_close(&j);
}

/* Statistics of the places over many steps: of each, of pairs of neighbours. */
static void randomk_uniform(uint64_t d, double density, int steps)
{
	uint64_t one[1][2] = {{d, 0}}, k = share_formula(density, d), pairs = 0;
	double count[4096] = {0}, p = (double)k / (double)d, chi = 0;
	char text[60];
	int exact = 1;
	job j;
	snprintf(text, sizeof text, "randomk:density=%g", density);
	if (!job_open(&j, text, 1, 1, one))
		return;
	for (int step = 0; step < steps; step++) {
		uint64_t n = 0;
		for (uint64_t i = 0; i < d; i++) {
			j.g[0][i] = 1;
			j.s.error[0][i] = 0;
		}
		if (!job_step(&j))
			break;
		for (uint64_t i = 0; i < d; i++) {
			n += j.g[0][i] == 1;
			exact &= j.g[0][i] + j.s.error[0][i] == 1;
			count[i] += (double)j.g[0][i];
			pairs += i && j.g[0][i] == 1 && j.g[0][i - 1] == 1;
		}
		exact &= n == k;
	}
	for (uint64_t i = 0; i < d; i++)
		chi += (count[i] - steps * p) * (count[i] - steps * p) / (steps * p * (1 - p));
	/* k of d without putting back: (d - 1) / d times chi has d - 1 degrees of freedom. */
	double free_ = (double)d - 1, z = (chi * free_ / (double)d - free_) / sqrt(2 * free_);
	double expected = steps * (double)k * (double)(k - 1) / (double)d,
	       zp = ((double)pairs - expected) / sqrt(expected + 1);
	ok(exact && fabs(z) < 8 && fabs(zp) < 8, /* once in 10^9 runs by chance */
	   "randomk: %llu of %llu places in %d steps: chi-square %.1f sigma, "
	   "neighbours %.1f sigma off",
	   (unsigned long long)k, (unsigned long long)d, steps, z, zp);
	job_close(&j);
}

/* All subsets of a small set are as likely. */
static void randomk_subsets(void)
{
	uint64_t one[1][2] = {{6, 0}};
	double count[64] = {0}, chi = 0;
	enum { SUBSETS = 20, STEPS = 8000 };
	job j;
	if (!job_open(&j, "randomk:density=0.5", 1, 1, one))
		return;
	for (int step = 0; step < STEPS; step++) {
		int subset = 0;
		for (int i = 0; i < 6; i++) {
			j.g[0][i] = 1;
			j.s.error[0][i] = 0;
		}
		if (!job_step(&j))
			break;
		for (int i = 0; i < 6; i++)
			subset |= (j.g[0][i] == 1) << i;
		count[subset]++;
	}
	for (int m = 0; m < 64; m++)
		if (__builtin_popcount((unsigned)m) == 3)
			chi += (count[m] - STEPS / SUBSETS) * (count[m] - STEPS / SUBSETS) / (STEPS / SUBSETS);
		else if (count[m] > 0)
			chi = INFINITY;
	ok(chi < 19 + 10 * sqrt(38), "randomk: the 20 triples of 6 are as likely: chi-square %.1f of 19 degrees", chi);
	job_close(&j);
}

/* The same places on all ranks, other ones in other steps. */
static void randomk_follows(int P)
{
	static double u[9][D];
	static char before[D], now[D];
	int right = 1, moved = 1;
	job j;
	if (!job_open(&j, "randomk:density=0.05", P, TENSORS, dims))
		return;
	for (int step = 0; step < 4; step++) {
		fresh(&j, u, KIND_NORMAL);
		if (!job_step(&j))
			break;
		for (int i = 0; i < D; i++) {
			double mean = 0;
			now[i] = j.g[0][i] != 0;
			for (int w = 0; w < P; w++) {
				mean += u[w][i] / P;
				right &= j.s.error[w][i] == (now[i] ? 0 : (float)u[w][i]) && j.g[w][i] == j.g[0][i];
			}
			right &= !now[i] || fabs(j.g[0][i] - mean) < 1e-5;
		}
		moved &= !step || memcmp(now, before, D);
		memcpy(before, now, D);
	}
	ok(right && moved, "randomk, P=%d: the mean where all send, the rest remembered; new places every step", P);
	job_close(&j);
}

int main(void)
{
	test_seed();
	random_check_seed(test_random());
	for (int P = 1; P <= 9; P++) {
		gtopk_follows("gtopk:density=0.02", P, 0.02);
		gtopk_follows("gtopk:density=0.5,indices=auto", P, 0.5);
		gtopk_conserves(P, KIND_NORMAL);
		randomk_follows(P);
	}
	gtopk_conserves(6, KIND_SCALES);
	gtopk_conserves(7, KIND_HUGE);
	gtopk_overflows();
	randomk_uniform(1000, 0.037, 3000);
	randomk_uniform(97, 0.5, 3000);
	randomk_uniform(4096, 0.01, 1000);
	randomk_subsets();
	return done_testing();
}
