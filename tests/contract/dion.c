/* dion against a plain one in double: the factors, what stays in each rank's momentum, both ways to
 * make the right factor, vectors, dense steps; directions that all weigh the same; a factor that
 * overflows. */
#include "tests/support/compressor_ranks.h"
#include "tests/contract/double_matrices.h"

enum { P = 3, V = 13, D = N * M + V, STEPS = 6 };
static uint64_t dims[2][2] = {{N, M}, {V, 0}};

enum { COLUMNS, QR, NO };

typedef struct plain {
	double mu;
	int orthogonal, start;
	double Q[M * R], m[P][D], a[D];
} plain;

/* The factor that an instance keeps is the end of its state. */
static void saved_factor(job *j, double *out)
{
	char state[65536];
	uint64_t bytes = 0;
	j->s.plugin->save(j->s.instance[0], state, sizeof state, &bytes, &j->s.err);
	const float *p = (const float *)(void *)(state + bytes) - M * R;
	for (int i = 0; i < M * R; i++)
		out[i] = p[i];
}

static void unit(double *Q)
{
	for (int j = 0; j < R; j++) {
		double squares = 0;
		for (int i = 0; i < M; i++)
			squares += Q[i * R + j] * Q[i * R + j];
		for (int i = 0; i < M; i++)
			Q[i * R + j] /= sqrt(squares);
	}
}

static void plain_matrix(plain *s)
{
	double mean[N * M] = {0}, left[N * R], T[M * N], flat[R * M], right[M * R], own[M * R], c[N * M];
	for (int w = 0; w < P; w++)
		for (int i = 0; i < N * M; i++)
			mean[i] += s->m[w][i] / P;
	if (s->orthogonal == NO)
		orth(s->Q, M, R);
	times(left, mean, s->Q, N, M, R);
	orth(left, N, R);
	flip(T, mean, N, M);
	times(right, T, left, M, N, R);
	for (int w = 0; w < P; w++) {
		memcpy(c, s->m[w], sizeof c);
		flip(T, c, N, M);
		times(own, T, left, M, N, R);
		flip(flat, own, M, R);
		times(c, left, flat, N, R, M);
		for (int i = 0; i < N * M; i++)
			s->m[w][i] -= (1 - s->mu) * c[i];
	}
	memcpy(s->Q, right, sizeof right);
	if (s->orthogonal == COLUMNS)
		unit(s->Q);
	if (s->orthogonal == QR)
		orth(s->Q, M, R);
	flip(flat, s->Q, M, R);
	times(c, left, flat, N, R, M);
	for (int i = 0; i < N * M; i++)
		s->a[i] = c[i] * (s->orthogonal == NO ? 1 : sqrt((double)N / M));
}

static void plain_step(plain *s, float **g, int step)
{
	for (int w = 0; w < P; w++)
		for (int i = 0; i < D; i++)
			s->m[w][i] += (double)g[w][i];
	for (int i = step < s->start ? 0 : N * M; i < D; i++) {
		double mean = 0;
		for (int w = 0; w < P; w++)
			mean += s->m[w][i] / P;
		s->a[i] = mean;
		for (int w = 0; w < P; w++)
			s->m[w][i] = s->mu * mean;
	}
	if (step >= s->start)
		plain_matrix(s);
}

static void follows(const char *text, plain settings)
{
	static plain s;
	static double G[N * M];
	double sigma[8] = {8, 6, 4, 3, 2, 1, 0.5, 0.25}, worst = 0;
	int alike = 1;
	job j;
	if (!job_open(&j, text, P, 2, dims))
		return;
	s = settings;
	saved_factor(&j, s.Q);
	for (int step = 0; step < STEPS; step++) {
		for (int w = 0; w < P; w++) {
			spectrum(G, sigma, 8);
			for (int i = 0; i < D; i++)
				j.g[w][i] = i < N * M ? (float)G[i] : test_normal();
		}
		plain_step(&s, j.g, step);
		ranks_plan(&j.s, step % 2 ? UINT64_MAX : 1);
		if (!job_step(&j))
			break;
		for (int i = 0; i < D; i++) {
			worst = fmax(worst, fabs((double)j.g[0][i] - s.a[i]));
			for (int w = 0; w < P; w++) {
				alike &= j.g[w][i] == j.g[0][i];
				worst = fmax(worst, fabs((double)j.s.state[w][i] - s.m[w][i]));
			}
		}
	}
	ok(worst < 2e-5 && alike && j.s.intact && j.s.step == STEPS && j.s.sent == 4 * ((N + M) * R + V),
	   "%s: %d steps on %d ranks: average and M within %.1e, %llu bytes", text, STEPS, P, worst,
	   (unsigned long long)j.s.sent);
	job_close(&j);
}

/* A gradient of rank R whose directions differ a thousandfold: they come out alike. */
static void directions(void)
{
	static double G[N * M], A[N * M], T[M * N], square[M * M];
	double sigma[8] = {1000}, trace = 0, squares = 0;
	job j;
	for (int i = 1; i < R; i++)
		sigma[i] = sigma[i - 1] / (i == R - 1 ? 1000 : 1);
	if (!job_open(&j, "dion:rank=4,min_ratio=0,momentum=0.9,orthogonal=qr", 1, 1, dims))
		return;
	spectrum(G, sigma, R);
	for (int step = 0; step < 20; step++) {
		for (int i = 0; i < N * M; i++)
			j.g[0][i] = (float)G[i];
		if (!job_step(&j))
			break;
	}
	for (int i = 0; i < N * M; i++)
		A[i] = j.g[0][i];
	flip(T, A, N, M);
	times(square, T, A, M, N, M);
	/* A^T A gives the sum of the squares of singular values, and of their fourth powers. */
	for (int i = 0; i < M; i++)
		trace += square[i * M + i];
	for (int i = 0; i < M * M; i++)
		squares += square[i] * square[i];
	double each = (double)N / M;
	ok(fabs(trace / (R * each) - 1) < 1e-3 && fabs(squares / (R * each * each) - 1) < 1e-3,
	   "dion: %d directions of lengths up to 1000 apart have %.4f each", R, sqrt(trace / R));
	job_close(&j);
}

static void overflows(void)
{
	int right = 1;
	job j;
	if (!job_open(&j, "dion:rank=4,min_ratio=0", 2, 2, dims))
		return;
	for (int w = 0; w < 2; w++)
		for (int i = 0; i < D; i++)
			j.g[w][i] = 3e38f;
	right = job_step(&j);
	for (int i = 0; i < N * M; i++)
		right &= isnan(j.g[0][i]) && isnan(j.g[1][i]) && j.s.state[0][i] == 0;
	ok(right, "dion: a factor that overflows makes the average NaN on all ranks, and momentum stays");
	job_close(&j);
}

int main(void)
{
	test_seed();
	random_check_seed(test_random());
	follows("dion:rank=4,min_ratio=0", (plain){.mu = 0.95f});
	follows("dion:rank=4,min_ratio=0,orthogonal=qr,momentum=0.5", (plain){.mu = 0.5, .orthogonal = QR});
	follows("dion:rank=4,min_ratio=0,orthogonal=no,momentum=0", (plain){.orthogonal = NO});
	follows("dion:rank=4,min_ratio=0,start_step=2,momentum=0.9", (plain){.mu = 0.9f, .start = 2});
	directions();
	overflows();
	return done_testing();
}
