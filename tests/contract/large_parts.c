/* Sparse compressors on tensors of up to 300,000 numbers of all kinds: exactly k are sent, on one rank the
 * largest; nothing is lost, all ranks have the same. */
#include "tests/support/compressor_ranks.h"
#include "tests/support/selection_cases.h"
#include "tests/support/sparse_bytes.h"

enum { STEPS = 3 };

typedef struct method {
	const char *name, *more; /* parameters of its SPEC, behind the density */
	int velocity;            /* 1: all that is not sent is the second state array, else error memory */
	int any;                 /* not the largest ones */
} method;

static const method methods[] = {
	{.name = "topk", .more = ""},
	{.name = "topk", .more = ",layerwise=yes,indices=auto"},
	{.name = "mstopk", .more = "", .any = 1},
	{.name = "lags", .more = ""},
	{.name = "gtopk", .more = ""},
	{.name = "gtopk", .more = ",indices=delta"},
	{.name = "dgc", .more = ",momentum=0", .velocity = 1},
	{.name = "blocktopk", .more = ",block=1"},
};

static const float *held(const job *j, const method *m, int w)
{
	return m->velocity ? j->s.state[w] + j->s.layout[w].numel : j->s.error[w];
}

/* NULL, or what is wrong with the numbers that were sent of a run on one rank. */
static const char *unlike_the_largest(const float *u, const float *a, const float *e, size_t n, uint64_t k, int any)
{
	uint64_t sent = 0, there = 0;
	float least = INFINITY, most = 0;
	for (size_t i = 0; i < n; i++) {
		there += u[i] != 0;
		sent += a[i] != 0;
		if (a[i] != 0 && a[i] != u[i])
			return "sent is what was not there";
		if (a[i] != 0)
			least = fminf(least, fabsf(a[i]));
		most = fmaxf(most, fabsf(e[i]));
	}
	if (any ? sent > k : sent != (there < k ? there : k))
		return "not k are sent";
	return any || least >= most ? NULL : "a larger one is kept";
}

static const char *step(job *j, const method *m, int kind, const uint64_t *n, double density)
{
	const uint64_t all = j->s.layout[0].numel;
	const int P = j->s.P;
	float *u = malloc((uint64_t)P * all * sizeof *u);
	const char *wrong = NULL;
	double off = 0, mass = 0;
	for (int w = 0; w < P; w++) {
		float *x = selection_numbers(kind, all, 0);
		for (uint64_t i = 0; i < all; i++) {
			/* Sums of the largest must be finite. */
			j->g[w][i] = x[i] * (kind == SPREAD ? 0x1p-8f : 1);
			u[(uint64_t)w * all + i] = j->g[w][i] + held(j, m, w)[i];
		}
		test_free(x, all, 0);
	}
	if (ranks_step(&j->s, j->g, 0)) {
		free(u);
		return j->s.err.text;
	}
	for (uint64_t i = 0; i < all; i++) {
		double lost = (double)P * (double)j->g[0][i];
		for (int w = 0; w < P; w++) {
			lost += (double)held(j, m, w)[i] - (double)u[(uint64_t)w * all + i];
			mass += fabs((double)u[(uint64_t)w * all + i]);
			if (memcmp(&j->g[w][i], &j->g[0][i], sizeof(float)))
				wrong = "ranks differ";
		}
		off += fabs(lost);
	}
	if (!wrong && off > 1e-7 * mass + 1e-38 * (double)all)
		wrong = "something is lost";
	for (uint64_t t = 0, at = 0; P == 1 && !wrong && t < 2; at += n[t++])
		wrong = unlike_the_largest(u + at, j->g[0] + at, held(j, m, 0) + at, n[t], share_formula(density, n[t]),
		                           m->any);
	free(u);
	return wrong;
}

/* Two tensors in buckets of their own. */
static void on_ranks(const method *m, int P)
{
	char first[800] = "";
	int tried = 0;
	for (int kind = 0; kind < SELECTION_KINDS; kind++) {
		/* A sample tells least of five layers at this size. */
		const int hard = kind >= KINDS && test_random() % 2;
		const uint64_t drawn = selection_size(test_random() % (2 * SELECTION_EDGES));
		uint64_t n[2] = {hard ? 81919 : drawn, 1 + test_random() % 5000}, dims[2][2] = {{n[0], 1}, {n[1], 1}};
		const double density = hard ? 0.03 : exp(log(1e-3) + test_uniform() * log(300));
		const char *wrong = NULL;
		char text[100];
		job j;
		snprintf(text, sizeof text, "%s:density=%.4f%s", m->name, density, m->more);
		if (!job_open(&j, text, P, 2, dims))
			return;
		ranks_plan(&j.s, 1);
		for (int i = 0; i < STEPS && !wrong; i++, tried++)
			wrong = step(&j, m, kind, n, atof(strchr(text, '=') + 1));
		if (wrong && !*first)
			snprintf(first, sizeof first, "%s, %llu numbers, %s: %s", text, (unsigned long long)n[0],
			         selection_kind(kind), wrong);
		job_close(&j);
	}
	ok(!*first, "%s%s, %d rank%s: %d steps%s%s", m->name, m->more, P, P == 1 ? "" : "s", tried,
	   *first ? "; wrong: " : "", first);
}

int main(void)
{
	test_seed();
	for (size_t i = 0; i < sizeof methods / sizeof methods[0]; i++) {
		on_ranks(&methods[i], 1);
		on_ranks(&methods[i], 3);
	}
	return done_testing();
}
