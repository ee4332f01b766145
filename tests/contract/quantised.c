/* qsgd, terngrad, onebit and signsgd: bytes, averages and error memories against
 * references in double, means over many steps, and lies that are refused. */
#include <dlfcn.h>
#include <math.h>
#include <stdlib.h>

#include "conformance/fixture.h"
#include "operators/operator_tables.h"
#include "config/spec.h"
#include "tests/support/tap.h"

static model shapes = {"rows and vectors", 6, {{33, 65}, {300, 0}, {7, 1}, {0, 4}, {1, 0}, {40, 20}}};
static model vector = {"a vector", 1, {{1000, 0}}};

typedef struct trial {
	fixture t;
	spec parsed;
	void *so;
	ranks s;
	float *g[RANKS_MAX], *u[RANKS_MAX]; /* u: the gradients that are tried */
	int open;
} trial;

static void trial_end(trial *r)
{
	if (r->open) {
		fixture_gradients_free(&r->s, r->g);
		fixture_gradients_free(&r->s, r->u);
		ranks_close(&r->s);
	}
	spec_clear(&r->parsed);
	if (r->so)
		dlclose(r->so);
}

/* P ranks with gradients of this kind. */
static int trial_begin(trial *r, const char *text, int P, model *m, int kind)
{
	const char *build = getenv("GRADCOMP_BUILD");
	char path[4096], name[SPEC_NAME_MAX] = "";
	gradcomp_error err = {.text = "no such plugin"};
	memset(r, 0, sizeof *r);
	spec_name(text, name, NULL);
	snprintf(path, sizeof path, "%s/lib/gradcomp/compressors/%s.so", build ? build : ".", name);
	r->so = dlopen(path, RTLD_NOW | RTLD_LOCAL);
	r->t = (fixture){.spec = text, .op = operators_cpu()};
	r->t.plugin = r->so ? dlsym(r->so, "gradcomp_compressor_v1") : NULL;
	if (r->t.plugin && !spec_parse(&r->t.plugin->info, text, &r->parsed, &err)) {
		r->t.values = r->parsed.values;
		r->open = !ranks_open(&r->s, r->t.plugin, r->t.op, r->t.values, P, m->n, m->dims, random_check());
		err = r->open ? err : r->s.err;
	}
	ok(r->open, "%s: %d ranks%s%s", text, P, r->open ? "" : ": ", r->open ? "" : err.text);
	if (!r->open)
		return 0;
	fixture_gradients_new(&r->s, r->g);
	fixture_gradients_new(&r->s, r->u);
	fixture_fill(&r->t, &r->s, r->u, kind);
	return 1;
}

static gradcomp_status trial_step(trial *r)
{
	for (int w = 0; w < r->s.P; w++)
		memcpy(r->g[w], r->u[w], r->s.layout[0].numel * sizeof(float));
	gradcomp_status st = ranks_step(&r->s, r->g, 0);
	if (st)
		printf("# %s\n", r->s.err.text);
	return st;
}

static int near(double got, double want, double scale)
{
	return fabs(got - want) <= 1e-6 * scale + 1e-42;
}

/* Makes what rank w sends for numbers [from, to) of its gradient, in double. */
static void signs_of(const float *u, uint64_t from, uint64_t to, int two, double *v)
{
	double sum[2] = {0}, count[2] = {0};
	for (uint64_t i = from; i < to; i++) {
		sum[u[i] < 0] += fabs((double)u[i]);
		count[u[i] < 0]++;
	}
	for (uint64_t i = from; i < to; i++) {
		int k = u[i] < 0;
		double size = two ? sum[k] / count[k] : (sum[0] + sum[1]) / (count[0] + count[1]);
		v[i] = k ? -size : size;
	}
}

/* Numbers that share their values, as doc and headers say. */
static uint64_t run_of(const gradcomp_tensor *t, int two, uint64_t column)
{
	uint64_t row = t->ndim > 1 ? t->dims[1] : t->numel;
	if (!two)
		return t->numel;
	while (!column && row < 32)
		row += t->ndim > 1 ? t->dims[1] : t->numel;
	return column ? column : row;
}

static void signs(const char *text, int two, uint64_t column, int kind)
{
	trial r;
	int averages = 1, errors = 1;
	uint64_t bytes = 0;
	if (!trial_begin(&r, text, 3, &shapes, kind))
		return trial_end(&r);
	uint64_t d = r.s.layout[0].numel;
	double *v = calloc(3 * d, sizeof *v);
	if (!v)
		exit(1);
	for (uint32_t i = 0; i < shapes.n; i++) {
		const gradcomp_tensor *t = &r.s.tensors[i];
		uint64_t run = t->numel ? run_of(t, two, column) : 1;
		for (uint64_t from = 0; from < t->numel; from += run) {
			uint64_t n = t->numel - from < run ? t->numel - from : run;
			bytes += (two ? 8 : 4) + (n + 31) / 32 * 4;
			for (uint64_t w = 0; w < 3; w++)
				signs_of(r.u[w], t->offset + from, t->offset + from + n, two, v + w * d);
		}
	}
	int ran = !trial_step(&r);
	is_int(r.s.sent, bytes, "%s: bytes of the formula", text);
	for (uint64_t i = 0; ran && i < d; i++) {
		double mean = (v[i] + v[d + i] + v[2 * d + i]) / 3,
		       size = fabs(v[i]) + fabs(v[d + i]) + fabs(v[2 * d + i]);
		averages &= near(r.g[0][i], mean, size);
		for (uint64_t w = 0; w < 3; w++)
			errors &= near(r.s.error[w][i], (double)r.u[w][i] - v[w * d + i],
			               fabs((double)r.u[w][i]) + fabs(v[w * d + i]));
	}
	ok(ran && averages, "%s: the average of %s gradients is that of %s", text, fixture_kind_names[kind],
	   two ? "the means" : "the mean magnitudes");
	ok(ran && errors, "%s: what is left is what was not sent", text);
	free(v);
	trial_end(&r);
}

static uint64_t qsgd_bytes(uint64_t d, uint64_t levels, uint64_t block)
{
	uint64_t bits = levels == 1 ? 2 : levels <= 7 ? 4 : 8;
	return (d + block - 1) / block * 4 + (d * bits + 7) / 8;
}

/* One rank: every number is a level of its block's norm, one of the two next to it. */
static void qsgd_levels(const char *text, uint64_t levels, uint64_t block, int kind)
{
	trial r;
	int right = 1;
	if (!trial_begin(&r, text, 1, &vector, kind))
		return trial_end(&r);
	memset(r.u[0] + 512, 0, 100 * sizeof(float));
	right &= !trial_step(&r);
	is_int(r.s.sent, qsgd_bytes(1000, levels, block), "%s: bytes of the formula", text);
	for (uint64_t from = 0; from < 1000; from += block) {
		double squares = 0, step;
		for (uint64_t i = from; i < 1000 && i < from + block; i++)
			squares += (double)r.u[0][i] * r.u[0][i];
		step = sqrt(squares) / (double)levels;
		for (uint64_t i = from; i < 1000 && i < from + block; i++) {
			double code = step > 0 ? r.g[0][i] / step : 0;
			right &= step > 1e-37 ? fabs(code - round(code)) < 1e-3 && fabs(code) < (double)levels + 0.5 &&
			                                fabs(r.g[0][i] - r.u[0][i]) < step * (1 + 1e-5)
			                      : r.g[0][i] == 0;
			right &= r.s.error[0][i] == 0;
		}
	}
	ok(right, "%s: %s numbers become neighbouring levels, zeros stay, no memory", text, fixture_kind_names[kind]);
	trial_end(&r);
}

/* The mean over many steps of one gradient, in standard deviations of what is
 * measured. `want` is in double; the distance allowed is 5. A number that is farther off is
 * judged by as many steps again: once in some thousand runs there is one by chance, and hardly ever the same twice. */
static void mean_of_steps(trial *r, int steps, const double *want, const char *what)
{
	uint64_t d = r->s.layout[0].numel;
	double *sum = calloc(2 * d, sizeof *sum), *least = calloc(d, sizeof *least), worst = INFINITY;
	int ran = sum && least;
	for (uint64_t i = 0; ran && i < d; i++)
		least[i] = INFINITY;
	for (int look = 0; ran && look < 2 && worst >= 5; look++) {
		memset(sum, 0, 2 * d * sizeof *sum);
		for (int k = 0; ran && k < steps; k++) {
			ran = !trial_step(r);
			for (uint64_t i = 0; i < d; i++) {
				sum[i] += r->g[0][i];
				sum[d + i] += (double)r->g[0][i] * r->g[0][i];
			}
		}
		worst = 0;
		for (uint64_t i = 0; i < d; i++) {
			double mean = sum[i] / steps, var = fmax(sum[d + i] / steps - mean * mean, 0);
			least[i] = fmin(least[i], fabs(mean - want[i]) / (sqrt(var / steps) + 1e-6));
			worst = fmax(worst, least[i]);
		}
	}
	ok(ran && worst < 5, "%s: the mean of %d steps is %s within %.2f standard deviations", r->t.spec, steps, what,
	   worst);
	free(sum);
	free(least);
}

static void unbiased(const char *text, int P, double clip, int steps)
{
	static model small = {"two tensors", 2, {{4, 16}, {37, 0}}};
	trial r;
	double want[101] = {0};
	if (!trial_begin(&r, text, P, &small, KIND_NORMAL))
		return trial_end(&r);
	for (uint32_t k = 0; k < small.n; k++) {
		const gradcomp_tensor *t = &r.s.tensors[k];
		for (int w = 0; w < P; w++) {
			double squares = 0, limit;
			for (uint64_t i = t->offset; i < t->offset + t->numel; i++)
				squares += (double)r.u[w][i] * r.u[w][i];
			limit = clip > 0 ? clip * sqrt(squares / (double)t->numel) : INFINITY;
			for (uint64_t i = t->offset; i < t->offset + t->numel; i++)
				want[i] += fmin(fmax(r.u[w][i], -limit), limit) / P;
		}
	}
	mean_of_steps(&r, steps, want, clip > 0 ? "that of the clipped gradients" : "that of the gradients");
	trial_end(&r);
}

/* With its memory qsgd gives back, in the long run, what it was given. */
static void qsgd_memory(const char *text)
{
	enum { STEPS = 400 };
	trial r;
	double off = 0, all = 0, kept = 0;
	if (!trial_begin(&r, text, 2, &vector, KIND_NORMAL))
		return trial_end(&r);
	double *sum = calloc(1000, sizeof *sum);
	int ran = sum != NULL;
	for (int k = 0; ran && k < STEPS; k++) {
		ran = !trial_step(&r);
		for (int i = 0; i < 1000; i++)
			sum[i] += r.g[0][i];
	}
	for (int i = 0; ran && i < 1000; i++) {
		double want = ((double)r.u[0][i] + r.u[1][i]) / 2;
		off += pow(sum[i] / STEPS - want, 2);
		all += want * want;
		kept += pow(r.s.error[0][i], 2);
	}
	ok(ran && sqrt(off / all) < 0.1, "%s: after %d steps all but %.3f of a gradient has come through", text, STEPS,
	   sqrt(off / all));
	ok(ran && kept < 1000 * 400, "%s: and the memory is %.1f times the gradient", text, sqrt(kept / 1000));
	free(sum);
	trial_end(&r);
}

/* Averages are multiples of s / P, s from all ranks; whatever the buckets. */
static void terngrad_values(const char *text, int P, double clip, int kind)
{
	trial r;
	int right = 1;
	uint64_t bytes = 0;
	if (!trial_begin(&r, text, P, &shapes, kind))
		return trial_end(&r);
	uint64_t d = r.s.layout[0].numel;
	float *first = calloc(d, sizeof *first);
	right &= first && !trial_step(&r);
	for (uint32_t k = 0; right && k < shapes.n; k++) {
		const gradcomp_tensor *t = &r.s.tensors[k];
		double s = 0;
		bytes += 4 + (P > 10 ? t->numel : (t->numel + 4) / 5);
		for (int w = 0; w < P; w++) {
			double squares = 0, top = 0;
			for (uint64_t i = t->offset; i < t->offset + t->numel; i++) {
				squares += (double)r.u[w][i] * r.u[w][i];
				top = fmax(top, fabs((double)r.u[w][i]));
			}
			s = fmax(s, clip > 0 ? fmin(top, clip * sqrt(squares / (double)t->numel)) : top);
		}
		for (uint64_t i = t->offset; i < t->offset + t->numel; i++) {
			double sum = s > 0 ? r.g[0][i] * P / s : 0;
			int one = s > 1e-37 ? fabs(sum - round(sum)) < 1e-4 && fabs(sum) < P + 0.5
			                    : fabs(r.g[0][i]) <= s + 1e-43;
			if (!one && right)
				printf("# number %llu is %g, s is %g\n", (unsigned long long)i, r.g[0][i], s);
			right &= one;
		}
	}
	ok(right, "%s: averages of %s gradients on %d ranks are multiples of s / P", text, fixture_kind_names[kind], P);
	is_int(r.s.sent, bytes, "%s: bytes of the formula on %d ranks", text, P);
	memcpy(first, r.g[0], d * sizeof *first);
	r.s.step = 0;
	ranks_plan(&r.s, 1);
	ok(!trial_step(&r) && !memcmp(first, r.g[0], d * sizeof *first), "%s: the same bits, a bucket a tensor", text);
	free(first);
	trial_end(&r);
}

typedef struct lie {
	const char *spec;
	int P;
	int round;       /* number of the payloads' round, counted from 0 */
	uint64_t offset; /* from the start; UINT64_MAX: the last byte */
	uint32_t bytes, value;
	const char *names;
} lie;

static const lie *told;
static int seen;

static void tell(ranks *s, gradcomp_payload *in, uint32_t n)
{
	static char copy[8192];
	uint32_t w = n > 1 ? 2 : 0;
	(void)s;
	if (seen++ != told->round || in[w].bytes > sizeof copy)
		return;
	memcpy(copy, in[w].data, in[w].bytes);
	memcpy(copy + (told->offset == UINT64_MAX ? in[w].bytes - 1 : told->offset), &told->value, told->bytes);
	in[w].data = copy;
}

static void lies(void)
{
	static const lie list[] = {
		{"onebit", 3, 0, 0, 4, 0x7fc00000, "rank 2"},   {"onebit", 3, 0, 4, 4, 0xff800000, "rank 2"},
		{"signsgd", 3, 0, 0, 4, 0x7f800000, "rank 2"},  {"qsgd", 3, 0, 0, 4, 0x7fc00000, "rank 2"},
		{"qsgd", 3, 0, 4, 4, 0xbf800000, "rank 2"},     {"qsgd", 3, 0, UINT64_MAX, 1, 0x88, "rank 2"},
		{"terngrad", 3, 0, 0, 4, 0xbf800000, "rank 2"}, {"terngrad", 3, 0, 0, 4, 0x7f800000, "rank 2"},
		{"terngrad", 3, 0, 0, 4, 0x7fc00000, "rank 2"}, {"terngrad", 3, 1, 7, 1, 243, "rank 2"},
		{"terngrad", 12, 1, 500, 1, 13, "-12..12"},
	};
	for (size_t k = 0; k < sizeof list / sizeof list[0]; k++) {
		trial r;
		told = &list[k];
		seen = 0;
		if (trial_begin(&r, told->spec, told->P, &vector, KIND_NORMAL)) {
			int clean = 1;
			r.s.tamper = tell;
			is_int(ranks_step(&r.s, r.u, 0), GRADCOMP_ERR_MISMATCH, "%s: refused: %s", told->spec,
			       r.s.err.text);
			like(r.s.err.text, told->names, "... which names whose");
			like(r.s.err.text, "bucket 0", "... and the bucket");
			for (int i = 0; i < 1000; i++)
				clean &= r.s.error[0][i] == 0;
			ok(clean, "... and nothing has changed");
		}
		trial_end(&r);
	}
}

int main(void)
{
	const char *given = getenv("TEST_SEED");
	uint64_t seed = given ? strtoull(given, NULL, 0) : random_fresh_seed();
	printf("# TEST_SEED=%llu\n", (unsigned long long)seed);
	random_check_seed(seed);
	for (int kind = 0; kind < KINDS_ALL; kind++) {
		signs("onebit", 2, 0, kind);
		signs("signsgd", 0, 0, kind);
		qsgd_levels("qsgd", 7, 512, kind);
		terngrad_values("terngrad", 3, 2.5, kind);
	}
	signs("onebit:column=50", 2, 50, KIND_NORMAL);
	signs("onebit:column=100000", 2, 100000, KIND_NORMAL);
	qsgd_levels("qsgd:levels=1,block=32", 1, 32, KIND_NORMAL);
	qsgd_levels("qsgd:levels=2,block=96", 2, 96, KIND_NORMAL);
	qsgd_levels("qsgd:levels=127,block=65536", 127, 65536, KIND_NORMAL);
	unbiased("qsgd", 3, 0, 4000);
	unbiased("qsgd:levels=1,block=32", 3, 0, 4000);
	unbiased("terngrad:clip=0", 3, 0, 4000);
	unbiased("terngrad:clip=0", 12, 0, 1500);
	unbiased("terngrad:clip=1", 3, 1, 4000);
	qsgd_memory("qsgd:error=yes");
	qsgd_memory("qsgd:error=yes,levels=1,block=64");
	terngrad_values("terngrad:clip=0", 10, 0, KIND_NORMAL);
	terngrad_values("terngrad", 11, 2.5, KIND_NORMAL);
	terngrad_values("terngrad", 16, 2.5, KIND_SCALES);
	lies();
	return done_testing();
}
