/* blocktopk against a plain one in double: the same blocks on all ranks, the mean of what is
 * in them, the rest remembered; bytes; what is not finite. */
#include "tests/contract/sparse_reference.h"

#include <math.h>

/* One run of numbers, cut into blocks; of a bucket, or of a tensor. */
typedef struct run {
	int at, d, width;
} run;

/* in[i] = 1 for what is sent; returns the floats that are. */
static uint64_t chosen_blocks(char *in, double (*u)[D], int P, run r, double density)
{
	static double sums[D];
	static char best[D];
	int blocks = r.d ? (r.d + r.width - 1) / r.width : 0;
	uint64_t k = share_formula(density, (uint64_t)blocks);
	memset(sums, 0, sizeof sums);
	for (int w = 0; w < P; w++)
		for (int i = 0; i < r.d; i++)
			sums[i / r.width] += fabs(u[w][r.at + i]);
	choose(best, sums, blocks, k);
	for (int i = 0; i < r.d; i++)
		in[r.at + i] = best[i / r.width];
	return k == (uint64_t)blocks ? (uint64_t)r.d : (uint64_t)blocks + k * (uint64_t)r.width;
}

static uint64_t chosen(char *in, double (*u)[D], int P, int block, double density)
{
	uint64_t floats = 0;
	int at = 0;
	if (block)
		return chosen_blocks(in, u, P, (run){0, D, block}, density);
	for (int t = 0; t < TENSORS; t++) {
		int m = (int)dims[t][1], d = (int)dims[t][0] * (m ? m : 1);
		floats += chosen_blocks(in, u, P, (run){at, d, m ? m : d}, density);
		at += d;
	}
	return floats;
}

/* Small whole numbers: all sums are exact, and many are ties. */
static void follows(const char *text, int P, int block, double density)
{
	static double u[9][D];
	static char in[D];
	int right = 1, same = 1;
	uint64_t floats = 0;
	job j;
	if (!job_open(&j, text, P, TENSORS, dims))
		return;
	for (int step = 0; step < 5; step++) {
		for (int w = 0; w < P; w++)
			for (int i = 0; i < D; i++) {
				j.g[w][i] = step == 3 ? 0 : (float)(test_random() % 5) - 2;
				u[w][i] = (double)(j.g[w][i] + j.s.error[w][i]);
			}
		floats = chosen(in, u, P, block, density);
		if (!job_step(&j))
			break;
		for (int i = 0; i < D; i++) {
			double sum = 0;
			for (int w = 0; w < P; w++) {
				sum += in[i] ? u[w][i] : 0;
				right &= j.s.error[w][i] == (in[i] ? 0 : (float)u[w][i]);
				same &= j.g[w][i] == j.g[0][i];
			}
			right &= fabs(j.g[0][i] - sum / P) <= 1e-6 * fabs(sum);
		}
	}
	ok(right && same && j.s.step == 5 && j.s.sent == 4 * floats,
	   "%s, P=%d: the plain one's average and memory%s%s; %d bytes of %d", text, P, right ? "" : " (NOT)",
	   same ? "" : ", RANKS DIFFER", (int)j.s.sent, (int)(4 * floats));
	job_close(&j);
}

/* Whatever can be chosen in blocks, nothing leaves a smaller memory. */
static void least_memory(void)
{
	static double u[9][D];
	double least = INFINITY, got = 0;
	enum { P = 3, BLOCK = 400 };
	job j;
	if (!job_open(&j, "blocktopk:density=0.33,block=400", P, TENSORS, dims))
		return;
	fresh(&j, u, KIND_NORMAL);
	for (int one = 0; one < 6; one++)
		for (int two = 0; two < one; two++) {
			double left = 0;
			for (int w = 0; w < P; w++)
				for (int i = 0; i < D; i++)
					left += i / BLOCK == one || i / BLOCK == two ? 0 : fabs(u[w][i]);
			least = fmin(least, left);
		}
	if (job_step(&j))
		for (int w = 0; w < P; w++)
			for (int i = 0; i < D; i++)
				got += fabs(j.s.error[w][i]);
	ok(fabs(got - least) < 1e-4 * least,
	   "blocktopk: the memories hold %.6g, no choice of 2 blocks of 6 leaves less than %.6g", got, least);
	job_close(&j);
}

/* The largest gradients that are finite: what is sent in the first round stays so. */
static void largest_gradients(void)
{
	enum { P = 9 };
	int right = 1;
	job j;
	if (!job_open(&j, "blocktopk:density=0.1,block=64", P, TENSORS, dims))
		return;
	for (int w = 0; w < P; w++)
		for (int i = 0; i < D; i++)
			j.g[w][i] = i < 64 || i >= 640 ? 0 : (w + i) % 2 ? 3.4e38f : -3.4e38f;
	right = job_step(&j);
	for (int i = 0; right && i < D; i++)
		right &= !isnan(j.s.error[0][i]);
	ok(right, "blocktopk: blocks of numbers near the end of the range have sums that can be compared");
	job_close(&j);
}

static void lie(ranks *s, gradcomp_payload *in, uint32_t n)
{
	static float sums[1024];
	(void)s;
	if (n != 1 || in->bytes > sizeof sums)
		return;
	memcpy(sums, in->data, in->bytes);
	sums[in->bytes / sizeof *sums - 1] = NAN;
	in->data = sums;
}

static void refused(void)
{
	int untouched = 1;
	job j;
	if (!job_open(&j, "blocktopk:density=0.1,block=64", 3, TENSORS, dims))
		return;
	for (int w = 0; w < 3; w++)
		for (int i = 0; i < D; i++)
			j.g[w][i] = 1;
	j.s.tamper = lie;
	gradcomp_status st = ranks_step(&j.s, j.g, 0);
	for (int i = 0; i < D; i++)
		untouched &= j.s.error[0][i] == 0;
	ok(st == GRADCOMP_ERR_MISMATCH && untouched, "blocktopk: a sum that is not a number is refused: %s",
	   j.s.err.text);
	job_close(&j);
}

int main(void)
{
	test_seed();
	random_check_seed(test_random());
	for (int P = 1; P <= 9; P++) {
		follows("blocktopk:density=0.1,block=64", P, 64, 0.1);
		follows("blocktopk:density=0.3,block=7", P, 7, 0.3);
		follows("blocktopk:density=0.2,rows=yes", P, 0, 0.2);
	}
	follows("blocktopk:density=0.02,block=1", 3, 1, 0.02);
	follows("blocktopk:block=4096", 3, 4096, 1);
	least_memory();
	largest_gradients();
	refused();
	return done_testing();
}
