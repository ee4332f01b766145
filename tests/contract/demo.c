/* demo against a plain one in double: momentum, the cosine transform by its definition, the
 * choice in each chunk, what is taken out and what comes back; signs; lies of a peer. */
#include <math.h>

#include "tests/support/compressor_ranks.h"

enum { TENSORS = 5, STEPS = 6 };
static uint64_t dims[TENSORS][2] = {{20, 33}, {50, 0}, {0, 4}, {7, 9}, {1, 1}};
enum { D = 660 + 50 + 0 + 63 + 1, RANKS = 5 };

typedef struct plain {
	int P, chunk, k, sign;
	double decay;
	double m[RANKS][D], a[D];
	double nearest; /* how close the last kept and the first left out came */
	uint64_t bytes;
} plain;

/* The orthonormal DCT-II of x, n numbers `step` apart; back: its inverse. */
static void transform(double *x, int n, int step, int back)
{
	double y[64];
	for (int b = 0; b < n; b++) {
		y[b] = 0;
		for (int j = 0; j < n; j++) {
			int of = back ? j : b, number = back ? b : j;
			y[b] += x[j * step] * sqrt((of ? 2.0 : 1.0) / n) * cos(M_PI * (2 * number + 1) * of / (2.0 * n));
		}
	}
	for (int b = 0; b < n; b++)
		x[b * step] = y[b];
}

static void both(double *x, int rows, int columns, int back)
{
	for (int i = 0; i < rows; i++)
		transform(x + i * columns, columns, 1, back);
	for (int j = 0; j < columns; j++)
		transform(x + j, rows, columns, back);
}

/* All but the k largest become 0. */
static void keep_largest(plain *s, double *x, int n)
{
	int k = s->k < n ? s->k : n;
	char in[4096] = {0};
	double last = 0;
	for (int j = 0; j <= k && j < n; j++) {
		int best = -1;
		for (int i = 0; i < n; i++)
			if (!in[i] && (best < 0 || fabs(x[i]) > fabs(x[best])))
				best = i;
		if (j == k) {
			s->nearest = fmin(s->nearest, last > 0 ? (last - fabs(x[best])) / last : 1);
			break;
		}
		in[best] = 1;
		last = fabs(x[best]);
	}
	for (int i = 0; i < n; i++)
		x[i] = in[i] ? x[i] : 0;
	s->bytes += 6 * (uint64_t)k;
}

static void plain_chunk(plain *s, int at, int m, int rows, int columns)
{
	double mean[4096] = {0}, q[4096];
	for (int w = 0; w < s->P; w++) {
		for (int i = 0; i < rows * columns; i++)
			q[i] = s->m[w][at + i / columns * m + i % columns];
		both(q, rows, columns, 0);
		keep_largest(s, q, rows * columns);
		both(q, rows, columns, 1);
		for (int i = 0; i < rows * columns; i++) {
			s->m[w][at + i / columns * m + i % columns] -= q[i];
			mean[i] += q[i] / s->P;
		}
	}
	for (int i = 0; i < rows * columns; i++)
		s->a[at + i / columns * m + i % columns] = mean[i];
}

static void plain_step(plain *s, float **g)
{
	s->bytes = 0;
	for (int w = 0; w < s->P; w++)
		for (int i = 0; i < D; i++)
			s->m[w][i] = s->decay * s->m[w][i] + (double)g[w][i];
	for (int t = 0, at = 0; t < TENSORS; t++) {
		int n = dims[t][1] ? (int)dims[t][0] : 1, m = dims[t][1] ? (int)dims[t][1] : (int)dims[t][0];
		for (int i = 0; i < n; i += s->chunk)
			for (int j = 0; j < m; j += s->chunk)
				plain_chunk(s, at + i * m + j, m, n - i < s->chunk ? n - i : s->chunk,
				            m - j < s->chunk ? m - j : s->chunk);
		at += n * m;
	}
	s->bytes /= (uint64_t)s->P;
}

static void follows(const char *text, plain settings)
{
	static plain s, before;
	double worst = 0;
	int alike = 1;
	job j;
	s = settings;
	if (!job_open(&j, text, s.P, TENSORS, dims))
		return;
	for (int step = 0; step < STEPS; step++) {
		before = s;
		do { /* Where two are too close, rounding may choose the other one. */
			s = before;
			s.nearest = 1;
			for (int w = 0; w < s.P; w++)
				for (int i = 0; i < D; i++)
					j.g[w][i] = test_normal();
			plain_step(&s, j.g);
		} while (s.nearest < 1e-5);
		if (!job_step(&j))
			break;
		for (int i = 0; i < D; i++) {
			double want = !s.sign ? s.a[i] : fabs(s.a[i]) < 1e-4 ? (double)j.g[0][i] : s.a[i] > 0 ? 1 : -1;
			worst = fmax(worst, fabs((double)j.g[0][i] - want));
			for (int w = 0; w < s.P; w++) {
				worst = fmax(worst, fabs(j.s.state[w][i] - s.m[w][i]));
				alike &= j.g[w][i] == j.g[0][i];
			}
		}
	}
	uint64_t bytes = (s.bytes + 3) / 4 * 4;
	ok(worst < 2e-5 && alike && j.s.intact && j.s.step == STEPS && j.s.sent == bytes,
	   "%s: %d steps on %d ranks: average and m within %.1e, %llu bytes of %llu", text, STEPS, s.P, worst,
	   (unsigned long long)j.s.sent, (unsigned long long)bytes);
	job_close(&j);
}

/* A wave that is one coefficient goes through whole. */
static void one_wave(void)
{
	static uint64_t square[1][2] = {{16, 16}};
	double worst = 0, left = 0;
	job j;
	if (!job_open(&j, "demo:chunk=16,k=1", 2, 1, square))
		return;
	for (int w = 0; w < 2; w++)
		for (int i = 0; i < 256; i++)
			j.g[w][i] = (float)(cos(M_PI * (2 * (i / 16) + 1) * 3 / 32.0) * cos(M_PI * (2 * (i % 16) + 1) * 5 / 32.0));
	float was[256];
	memcpy(was, j.g[0], sizeof was);
	job_step(&j);
	for (int i = 0; i < 256; i++) {
		worst = fmax(worst, fabs(j.g[0][i] - was[i]));
		left = fmax(left, fabs(j.s.state[0][i]));
	}
	ok(worst < 1e-6 && left < 1e-6 && j.s.sent == 8, "demo: a cosine comes through in 8 bytes, within %.1e", worst);
	job_close(&j);
}

enum { LIE_TWICE, LIE_ORDER, LIE_RANGE, LIE_NAN, LIE_INF, LIE_SHORT, LIES };
static const char *const lies[] = {"a place twice", "descending places", "a place outside", "a NaN", "an Inf", "too few bytes"};
static int told;

static void tamper(ranks *s, gradcomp_payload *in, uint32_t n)
{
	static float copy[4096];
	uint64_t sent = in[1].bytes / 6;
	uint16_t *where = (uint16_t *)(void *)(copy + sent);
	(void)s, (void)n;
	memcpy(copy, in[1].data, in[1].bytes);
	in[1].data = copy;
	switch (told) {
	case LIE_TWICE:
		where[1] = where[0];
		break;
	case LIE_ORDER:
		where[0] = 200;
		break;
	case LIE_RANGE:
		where[7] = 256;
		break;
	case LIE_NAN:
		copy[5] = NAN;
		break;
	case LIE_INF:
		copy[0] = -INFINITY;
		break;
	default:
		in[1].bytes -= 4;
	}
}

static void refused(void)
{
	static uint64_t square[1][2] = {{16, 16}};
	for (told = 0; told < LIES; told++) {
		int clean = 1;
		job j;
		if (!job_open(&j, "demo:chunk=16,k=8", 3, 1, square))
			return;
		for (int w = 0; w < 3; w++)
			for (int i = 0; i < 256; i++)
				j.g[w][i] = test_normal();
		j.s.tamper = tamper;
		gradcomp_status st = ranks_step(&j.s, j.g, 0);
		for (int i = 0; i < 256; i++)
			clean &= j.s.state[0][i] == 0;
		ok(st == GRADCOMP_ERR_MISMATCH && clean, "demo: %s from rank 1 is refused: %s", lies[told], j.s.err.text);
		job_close(&j);
	}
}

int main(void)
{
	test_seed();
	check_seed(test_random());
	for (int P = 1; P <= RANKS; P++)
		follows("demo:chunk=8,k=5", (plain){.P = P, .chunk = 8, .k = 5, .decay = 0.999f});
	follows("demo", (plain){.P = 3, .chunk = 64, .k = 32, .decay = 0.999f});
	follows("demo:chunk=5,k=3,decay=0.5", (plain){.P = 2, .chunk = 5, .k = 3, .decay = 0.5});
	follows("demo:chunk=2,k=4096,decay=1", (plain){.P = 3, .chunk = 2, .k = 4096, .decay = 1});
	follows("demo:chunk=16,k=20,sign=yes,decay=0.9", (plain){.P = 3, .chunk = 16, .k = 20, .sign = 1, .decay = 0.9f});
	one_wave();
	refused();
	return done_testing();
}
