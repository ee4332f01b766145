/* powersgd, acpsgd and lqsgd against their formulas in double, and what their iterations
 * find against the SVD. */
#include "tests/support/compressor_ranks.h"
#include "tests/contract/double_matrices.h"

/* The factors that an instance keeps begin its state behind a header. */
static void saved_factors(job *j, double *out, int floats)
{
	char state[65536];
	uint64_t bytes = 0;
	j->s.plugin->save(j->s.instance[0], state, sizeof state, &bytes, &j->s.err);
	const float *p = (const float *)(void *)(state + bytes) - floats;
	for (int i = 0; i < floats; i++)
		out[i] = p[i];
}

/* One step of each in double; u of 3 ranks, e and the factors are taken on. */
typedef struct model_state {
	double P[N * R], Q[M * R], e[3][N * M], a[N * M];
} model_state;

static void left_over(model_state *s, int w, const double *u, const double *P, const double *Q)
{
	double T[R * M], c[N * M];
	flip(T, Q, M, R);
	times(c, P, T, N, R, M);
	for (int i = 0; i < N * M; i++) {
		s->e[w][i] = u[i] - c[i];
		s->a[i] += c[i] / 3;
	}
}

static void powersgd_double(model_state *s, double u[3][N * M], int step)
{
	double mean[N * M] = {0}, T[M * N], own[M * R], flat[N * M];
	(void)step;
	for (int i = 0; i < N * M; i++)
		mean[i] = (u[0][i] + u[1][i] + u[2][i]) / 3;
	orth(s->Q, M, R);
	times(s->P, mean, s->Q, N, M, R);
	orth(s->P, N, R);
	flip(T, mean, N, M);
	times(s->Q, T, s->P, M, N, R);
	memset(s->a, 0, sizeof s->a);
	for (int w = 0; w < 3; w++) {
		memcpy(flat, u[w], sizeof flat);
		flip(T, flat, N, M);
		times(own, T, s->P, M, N, R);
		left_over(s, w, u[w], s->P, own);
	}
}

static void acpsgd_double(model_state *s, double u[3][N * M], int step)
{
	double T[M * N], own[M * R], mean[M * R] = {0};
	int count = step % 2 ? M * R : N * R;
	if (step % 2)
		orth(s->P, N, R);
	else
		orth(s->Q, M, R);
	memset(s->a, 0, sizeof s->a);
	for (int w = 0; w < 3; w++) {
		if (step % 2) {
			flip(T, u[w], N, M);
			times(own, T, s->P, M, N, R);
			left_over(s, w, u[w], s->P, own);
		} else {
			times(own, u[w], s->Q, N, M, R);
			left_over(s, w, u[w], own, s->Q);
		}
		for (int i = 0; i < count; i++)
			mean[i] += own[i] / 3;
	}
	memcpy(step % 2 ? s->Q : s->P, mean, (size_t)count * sizeof *mean);
}

static void follows(const char *text, void (*formula)(model_state *, double u[3][N * M], int))
{
	static uint64_t dims[1][2] = {{N, M}};
	static double u[3][N * M], off[N * M], G[N * M];
	model_state *s = calloc(1, sizeof *s);
	double sigma[8] = {8, 6, 4, 3, 2, 1, 0.5, 0.25}, worst = 0;
	job j;
	if (!s || !job_open(&j, text, 3, 1, dims)) {
		free(s);
		return;
	}
	double factors[N * R + M * R];
	if (formula == acpsgd_double) {
		saved_factors(&j, factors, N * R + M * R);
		memcpy(s->P, factors, sizeof s->P);
		memcpy(s->Q, factors + N * R, sizeof s->Q);
	} else {
		saved_factors(&j, s->Q, M * R);
	}
	for (int step = 0; step < 8; step++) {
		for (int w = 0; w < 3; w++) {
			spectrum(G, sigma, 8);
			for (int i = 0; i < N * M; i++) {
				j.g[w][i] = (float)G[i];
				u[w][i] = j.g[w][i] + s->e[w][i];
			}
		}
		if (!job_step(&j))
			break;
		formula(s, u, step);
		for (int i = 0; i < N * M; i++)
			off[i] = j.g[0][i] - s->a[i];
		worst = fmax(worst, norm(off, N * M) / norm(s->a, N * M));
		for (int w = 0; w < 3; w++) {
			for (int i = 0; i < N * M; i++)
				off[i] = j.s.error[w][i] - s->e[w][i];
			worst = fmax(worst, norm(off, N * M) / norm(s->e[w], N * M));
		}
	}
	ok(worst < 1e-4, "%s: 8 steps on 3 ranks are the formula's, in double, within %.1e", text, worst);
	free(s);
	job_close(&j);
}

/* The functions below check what the iteration finds. */

/* How much of G a step leaves behind, in the Frobenius norm. */
static double lost(job *j, const double *G)
{
	static double off[N * M];
	for (int i = 0; i < N * M; i++)
		j->g[0][i] = (float)G[i];
	memset(j->s.error[0], 0, N * M * sizeof(float));
	if (!job_step(j))
		return INFINITY;
	for (int i = 0; i < N * M; i++)
		off[i] = j->g[0][i] - G[i];
	return norm(off, N * M);
}

static void converges(const char *text, int steps, double within)
{
	static uint64_t dims[1][2] = {{N, M}};
	static double G[N * M];
	double sigma[N], left = 0;
	job j;
	if (!job_open(&j, text, 1, 1, dims))
		return;
	for (int i = 0; i < N; i++)
		sigma[i] = pow(0.8, i);
	spectrum(G, sigma, N);
	for (int i = 0; i < steps; i++)
		left = lost(&j, G);
	double best = norm(sigma + R, N - R);
	ok(left < best * within, "%s: %d steps on one matrix leave %.4f times what the SVD leaves", text, steps,
	   left / best);
	ok(left > best * 0.9999, "%s: and no less than the SVD", text);
	job_close(&j);
}

/* A gradient of rank 8 whose subspaces are new every fifth step. */
static double turning(const char *text)
{
	static uint64_t dims[1][2] = {{N, M}};
	static double G[N * M];
	double sigma[8] = {8, 8, 8, 8, 1, 1, 1, 1}, sum = 0;
	job j;
	if (!job_open(&j, text, 1, 1, dims))
		return INFINITY;
	for (int step = 0; step < 40; step++) {
		if (step % 5 == 0)
			spectrum(G, sigma, 8);
		sum += lost(&j, G) / 40;
	}
	job_close(&j);
	return sum;
}

static void restarts(void)
{
	double with = turning("powersgd:restart=5"), without = turning("powersgd"), best = 2;
	ok(with < 0.9 * without, "powersgd:restart=5 leaves %.3f of a gradient that turns, without %.3f, the SVD %.3f",
	   with, without, best);
	ok(with < 1.1 * best, "powersgd:restart=5: close to the SVD");
	converges("powersgd:restart=1", 8, 1.01);
}

int main(void)
{
	test_seed();
	random_check_seed(test_random());
	follows("powersgd", powersgd_double);
	follows("acpsgd", acpsgd_double);
	converges("powersgd", 25, 1.001);
	converges("acpsgd", 50, 1.001);
	converges("lqsgd", 25, 1.01);
	restarts();
	return done_testing();
}
