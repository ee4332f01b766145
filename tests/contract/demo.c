/* demo against a plain one in double: momentum, the cosine transform by its definition, the
 * choice in each chunk, what is taken out and what comes back; signs; the published form; lies of a peer. */
#include <math.h>

#include "tests/support/compressor_ranks.h"

enum { TENSORS = 5, STEPS = 6 };
static uint64_t dims[TENSORS][2] = {{20, 33}, {50, 0}, {0, 4}, {7, 9}, {1, 1}};
enum { D = 660 + 50 + 0 + 63 + 1, RANKS = 5 };

typedef struct plain {
	int P, chunk, k, sign, published;
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
			y[b] += x[j * step] * sqrt((of ? 2.0 : 1.0) / n) *
			        cos(M_PI * (2 * number + 1) * of / (2.0 * n));
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

/* All but the k largest become 0, and those count as sent once more. */
static void keep_largest(plain *s, double *x, int n, int *senders)
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
	for (int i = 0; i < n; i++) {
		x[i] = in[i] ? x[i] : 0;
		senders[i] += in[i];
	}
	s->bytes += 6 * (uint64_t)k;
}

static void plain_chunk(plain *s, int at, int m, int rows, int columns)
{
	double mean[4096] = {0}, q[4096];
	int senders[4096] = {0};
	for (int w = 0; w < s->P; w++) {
		for (int i = 0; i < rows * columns; i++)
			q[i] = s->m[w][at + i / columns * m + i % columns];
		both(q, rows, columns, 0);
		keep_largest(s, q, rows * columns, senders);
		for (int i = 0; i < rows * columns; i++)
			mean[i] += q[i];
		both(q, rows, columns, 1);
		for (int i = 0; i < rows * columns; i++)
			s->m[w][at + i / columns * m + i % columns] -= q[i];
	}
	for (int i = 0; i < rows * columns; i++)
		mean[i] /= !s->published ? s->P : senders[i] ? senders[i] : 1;
	both(mean, rows, columns, 1);
	for (int i = 0; i < rows * columns; i++)
		s->a[at + i / columns * m + i % columns] = mean[i];
}

/* Returns the side of the chunks of a matrix that is so long. */
static int plain_side(const plain *s, int length)
{
	int divisor = 1;
	for (int d = 1; d <= s->chunk && d <= length; d++)
		divisor = length % d ? divisor : d;
	return s->published ? divisor : s->chunk;
}

static void plain_step(plain *s, float **g)
{
	s->bytes = 0;
	for (int w = 0; w < s->P; w++)
		for (int i = 0; i < D; i++)
			s->m[w][i] = s->decay * s->m[w][i] + (double)g[w][i];
	for (int t = 0, at = 0; t < TENSORS; t++) {
		int n = dims[t][1] ? (int)dims[t][0] : 1, m = dims[t][1] ? (int)dims[t][1] : (int)dims[t][0];
		int rows = plain_side(s, n), columns = plain_side(s, m);
		for (int i = 0; i < n; i += rows)
			for (int j = 0; j < m; j += columns)
				plain_chunk(s, at + i * m + j, m, n - i < rows ? n - i : rows,
				            m - j < columns ? m - j : columns);
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
			j.g[w][i] = (float)(cos(M_PI * (2 * (i / 16) + 1) * 3 / 32.0) *
			                    cos(M_PI * (2 * (i % 16) + 1) * 5 / 32.0));
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

/* Three ranks that send one wave each: what all sent is their mean, what one sent is whole, and does not add up to
 * what was given. */
static void counts_senders(void)
{
	static const int wave[2][3] = {{3, 3, 3}, {1, 2, 5}};
	static uint64_t square[1][2] = {{16, 48}};
	double worst = 0, went_in = 0, came_out = 0;
	job j;
	if (!job_open(&j, "demo:chunk=16,k=1,form=published,decay=1", 3, 1, square))
		return;
	for (int w = 0; w < 3; w++)
		for (int i = 0; i < 768; i++) {
			int across = i % 48 / 16;
			double one = across == 2 ? 0 : cos(M_PI * (2 * (i % 16) + 1) * wave[across][w] / 32.0);
			j.g[w][i] = (float)((w + 1) * one);
			went_in += fabs((double)j.g[w][i]);
		}
	job_step(&j);
	for (int i = 0; i < 768; i++) {
		double want = 0;
		for (int w = 0; i % 48 < 32 && w < 3; w++)
			want += (w + 1) * cos(M_PI * (2 * (i % 16) + 1) * wave[i % 48 / 16][w] / 32.0) /
			        (i % 48 < 16 ? 3 : 1);
		worst = fmax(worst, fabs((double)j.g[0][i] - want));
		came_out += 3 * fabs((double)j.g[0][i]);
		for (int w = 0; w < 3; w++)
			came_out += fabs((double)j.s.state[w][i]);
	}
	ok(worst < 1e-5 && came_out > 1.2 * went_in,
	   "form=published: a coefficient is divided by those that sent it, within %.1e", worst);
	job_close(&j);
}

/* Checks that the lower place of equal coefficients is sent, and that a 0 that is sent counts. */
static void counts_ties_and_zeros(void)
{
	static uint64_t row[1][2] = {{2, 0}};
	const float given[5][2] = {{1, 0}, {0, 1}, {0, 0}, {-1, 0}, {3, 0}};
	job j;
	for (int P = 1; P <= 5; P += 2) {
		double want = 0;
		if (!job_open(&j, "demo:chunk=2,k=1,form=published", P, 1, row))
			return;
		for (int w = 0; w < P; w++) {
			j.g[w][0] = given[w][0], j.g[w][1] = given[w][1];
			want += (double)(given[w][0] + given[w][1]) / 2 / P;
		}
		job_step(&j);
		ok(fabs((double)j.g[0][0] - want) < 1e-6 && j.g[0][1] == j.g[0][0],
		   "form=published: a tie and a 0 of %d ranks", P);
		job_close(&j);
	}
}

/* More than one call of a device could take: 70 of 100 ranks send another coefficient than the others. */
static void counts_many(void)
{
	static uint64_t row[1][2] = {{8, 0}};
	static float val[100];
	static uint16_t place[100];
	gradcomp_coefficients from[100];
	float x[2][8];
	int faults[2] = {0};
	for (int w = 0; w < 100; w++) {
		val[w] = test_normal(), place[w] = w < 70 ? 0 : 5;
		from[w] = (gradcomp_coefficients){&val[w], &place[w]};
	}
	double mean[2] = {0};
	for (int w = 0; w < 100; w++)
		mean[w >= 70] += val[w] / (w < 70 ? 70.0 : 30.0);
	const gradcomp_matrix t = {x[0], 1, row[0][0]};
	operators_cpu()->dct_back(NULL, &t, 1, 8, 1, from, 100, 1, GRADCOMP_DCT_SENDERS, &faults[0]);
	double worst = 0;
	for (int i = 0; i < 8; i++)
		worst = fmax(worst, fabs(x[0][i] - mean[0] * sqrt(1.0 / 8) -
		                         mean[1] * sqrt(2.0 / 8) * cos(M_PI * (2 * i + 1) * 5 / 16.0)));
	ok(worst < 1e-5 && !faults[0], "100 ranks are counted in one call on the host, within %.1e", worst);
}

/* On a device one call counts all ranks, and so limits them; the host then has the work. */
static void refused_there(void)
{
	static uint64_t row[1][2] = {{8, 0}};
	job j;
	if (!job_open(&j, "demo:form=published", 2, 1, row))
		return;
	for (int P = GRADCOMP_DCT_RANKS; P <= GRADCOMP_DCT_RANKS + 1; P++) {
		gradcomp_layout l = j.s.layout[0];
		void *instance = NULL;
		gradcomp_error err = {0};
		l.nranks = P;
		for (int device = 0; device < 2; device++) {
			l.device = device ? GRADCOMP_CUDA : GRADCOMP_HOST;
			gradcomp_status st = j.s.plugin->create(&j.s.host, j.parsed.values, &l, &instance, &err);
			is_int(st, device && P > GRADCOMP_DCT_RANKS ? GRADCOMP_ERR_UNSUPPORTED : GRADCOMP_OK,
			       "%d ranks on %s", P, device ? "a device" : "the host");
			if (!st)
				j.s.plugin->destroy(instance);
		}
	}
	job_close(&j);
}

enum { LIE_TWICE, LIE_ORDER, LIE_RANGE, LIE_NAN, LIE_INF, LIE_SHORT, LIES };
static const char *const lies[] = {"a place twice", "descending places", "a place outside", "a NaN",
                                   "an Inf",        "too few bytes"};
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

static void refused(const char *text)
{
	static uint64_t square[1][2] = {{16, 16}};
	for (told = 0; told < LIES; told++) {
		int clean = 1;
		job j;
		if (!job_open(&j, text, 3, 1, square))
			return;
		for (int w = 0; w < 3; w++)
			for (int i = 0; i < 256; i++)
				j.g[w][i] = test_normal();
		j.s.tamper = tamper;
		gradcomp_status st = ranks_step(&j.s, j.g, 0);
		for (int i = 0; i < 256; i++)
			clean &= j.s.state[0][i] == 0;
		ok(st == GRADCOMP_ERR_MISMATCH && clean, "%s: %s from rank 1 is refused: %s", text, lies[told],
		   j.s.err.text);
		job_close(&j);
	}
}

int main(void)
{
	test_seed();
	random_check_seed(test_random());
	for (int P = 1; P <= RANKS; P++)
		follows("demo:chunk=8,k=5", (plain){.P = P, .chunk = 8, .k = 5, .decay = 0.999f});
	follows("demo", (plain){.P = 3, .chunk = 64, .k = 32, .decay = 0.999f});
	follows("demo:chunk=5,k=3,decay=0.5", (plain){.P = 2, .chunk = 5, .k = 3, .decay = 0.5});
	follows("demo:chunk=2,k=4096,decay=1", (plain){.P = 3, .chunk = 2, .k = 4096, .decay = 1});
	follows("demo:chunk=16,k=20,sign=yes,decay=0.9",
	        (plain){.P = 3, .chunk = 16, .k = 20, .sign = 1, .decay = 0.9f});
	for (int P = 1; P <= RANKS; P++)
		follows("demo:chunk=8,k=5,form=published",
		        (plain){.P = P, .chunk = 8, .k = 5, .published = 1, .decay = 0.999f});
	follows("demo:form=published", (plain){.P = 3, .chunk = 64, .k = 32, .published = 1, .decay = 0.999f});
	follows("demo:chunk=5,k=3,decay=0.5,form=published",
	        (plain){.P = 5, .chunk = 5, .k = 3, .published = 1, .decay = 0.5});
	follows("demo:chunk=16,k=20,sign=yes,decay=0.9,form=published",
	        (plain){.P = 3, .chunk = 16, .k = 20, .published = 1, .sign = 1, .decay = 0.9f});
	one_wave();
	counts_senders();
	counts_ties_and_zeros();
	counts_many();
	refused_there();
	refused("demo:chunk=16,k=8");
	refused("demo:chunk=16,k=8,form=published");
	return done_testing();
}
