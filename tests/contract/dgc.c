/* dgc against a plain one in double: momentum, Nesterov, clipping, masking of both
 * arrays, warm-up, whole vectors and whole steps. */
#include <math.h>

#include "tests/support/compressor_ranks.h"

enum { P = 3, TENSORS = 4, STEPS = 20 };
static uint64_t dims[TENSORS][2] = {{40, 50}, {50, 0}, {7, 9}, {1, 1}};
enum { D = 2000 + 50 + 63 + 1 };

typedef struct plain {
	double mu, clip, density;
	int nesterov, start, warm;
	double m[P][D], v[P][D], a[D];
	double nearest; /* how close the last kept and the first left out came */
} plain;

static double kept_share(const plain *s, int step)
{
	return step < s->start + s->warm ? 0.25 : s->density;
}

static void add_momentum(const plain *s, double *m, double g)
{
	*m = s->nesterov ? s->mu * (*m + g) : s->mu * *m + g;
}

/* Tensor [at, at + d) of this rank sends its k largest to s->a. */
static void send_largest(plain *s, int w, int at, int d, double share)
{
	double *v = s->v[w] + at;
	int k = (int)(share * d + 0.5), best = 0;
	double last = 0;
	for (int j = 0; j <= (k < 1 ? 1 : k) && j < d; j++) {
		for (int i = best = 0; i < d; i++)
			if (fabs(v[i]) > fabs(v[best]))
				best = i;
		if (j == (k < 1 ? 1 : k)) {
			s->nearest = fmin(s->nearest, (last - fabs(v[best])) / last);
			break;
		}
		last = fabs(v[best]);
		s->a[at + best] += v[best] / P;
		v[best] = s->m[w][at + best] = 0;
	}
}

static void plain_step(plain *s, float **g, int step)
{
	memset(s->a, 0, sizeof s->a);
	for (int t = 0, at = 0; t < TENSORS; t++) {
		int d = (int)(dims[t][0] * (dims[t][1] ? dims[t][1] : 1)), intact = step < s->start || !dims[t][1];
		double mean[2000] = {0};
		for (int w = 0; w < P; w++) {
			double squares = 0, left = 1;
			for (int i = at; i < at + d; i++)
				squares += (double)g[w][i] * g[w][i];
			if (s->clip > 0 && sqrt(squares) > s->clip / sqrt(P))
				left = s->clip / sqrt(P) / sqrt(squares);
			for (int i = at; i < at + d; i++) {
				double u = left * g[w][i];
				mean[i - at] += u / P;
				if (intact)
					continue;
				add_momentum(s, &s->m[w][i], u);
				s->v[w][i] += s->m[w][i] + (s->nesterov ? u : 0);
			}
			if (!intact)
				send_largest(s, w, at, d, kept_share(s, step));
		}
		for (int i = at; intact && i < at + d; i++) {
			for (int w = 0; w < P; w++)
				add_momentum(s, &s->m[w][i], mean[i - at]);
			s->a[i] = s->m[0][i] + (s->nesterov ? mean[i - at] : 0);
		}
		at += d;
	}
}

static void follows(const char *text, plain settings)
{
	static plain s, before;
	double worst = 0;
	job j;
	if (!job_open(&j, text, P, TENSORS, dims))
		return;
	s = settings;
	for (int step = 0; step < STEPS; step++) {
		before = s;
		do { /* Where two are too close, rounding may choose the other one. */
			s = before;
			s.nearest = 1;
			for (int w = 0; w < P; w++)
				for (int i = 0; i < D; i++)
					j.g[w][i] = test_normal();
			plain_step(&s, j.g, step);
		} while (s.nearest < 1e-5);
		ranks_plan(&j.s, step % 2 ? UINT64_MAX : 100);
		if (!job_step(&j))
			break;
		for (int w = 0; w < P; w++)
			for (int i = 0; i < D; i++) {
				worst = fmax(worst, fabs(j.g[w][i] - s.a[i]));
				worst = fmax(worst, fabs(j.s.state[w][i] - s.m[w][i]));
				worst = fmax(worst, fabs(j.s.state[w][D + i] - s.v[w][i]));
			}
	}
	ok(worst < 1e-4 && j.s.intact && j.s.step == STEPS, "%s: %d steps on %d ranks: average, m and v within %.1e",
	   text, STEPS, P, worst);
	job_close(&j);
}

/* Checks that what is lost by quantising on the way stays in v. */
static void remembers(const char *text)
{
	double worst = 0;
	job j;
	if (!job_open(&j, text, P, TENSORS, dims))
		return;
	for (int step = 0; step < STEPS; step++) {
		double sum[D] = {0};
		for (int w = 0; w < P; w++)
			for (int i = 0; i < D; i++) {
				j.g[w][i] = test_normal();
				sum[i] += (double)j.g[w][i] + j.s.state[w][D + i];
			}
		if (!job_step(&j))
			break;
		for (int i = 0; i < D; i++) {
			double got = (double)P * j.g[0][i];
			for (int w = 0; w < P; w++)
				got += j.s.state[w][D + i];
			worst = fmax(worst, fabs(got - sum[i]));
		}
	}
	ok(worst < 1e-4 && j.s.step == STEPS, "%s: what went in is the average and v, within %.1e", text, worst);
	job_close(&j);
}

int main(void)
{
	test_seed();
	random_check_seed(test_random());
	follows("dgc:density=0.02", (plain){.mu = 0.9, .density = 0.02});
	follows("dgc:density=0.02,nesterov=yes", (plain){.mu = 0.9, .density = 0.02, .nesterov = 1});
	follows("dgc:density=0.02,momentum=0.5,clip=20", (plain){.mu = 0.5, .density = 0.02, .clip = 20});
	follows("dgc:density=0.02,warmup=0.25,warmup_steps=7", (plain){.mu = 0.9, .density = 0.02, .warm = 7});
	follows("dgc:density=0.05,start_step=6,nesterov=yes,clip=10",
	        (plain){.mu = 0.9, .density = 0.05, .start = 6, .nesterov = 1, .clip = 10});
	remembers("dgc:momentum=0,density=0.1,values=block8,indices=auto");
	return done_testing();
}
