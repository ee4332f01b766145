/* Speed of selection on this machine, one thread, on kinds of numbers: as multiples
 * of a memcpy of the same 2^24 floats in the same run.
 *
 *     bench/selection [--json FILE] [--quick]
 */
#include <math.h>

#include "bench/timing.h"

#include "operators/operator_tables.h"

enum { N = 1 << 24 };

typedef struct bench {
	const gradcomp_operators *op;
	float *x, *y, *val;
	uint32_t *idx;
	void *scratch;
	size_t k;
} bench;

static void do_memcpy(bench *w)
{
	memcpy(w->y, w->x, N * sizeof *w->x);
}
static void do_topk(bench *w)
{
	w->op->topk(NULL, w->idx, w->val, w->x, N, w->k, w->scratch);
}
static void do_mstopk(bench *w)
{
	w->op->mstopk(NULL, w->idx, w->val, w->x, N, w->k, 30, 1, 2, w->scratch);
}

static void run(const char *name, const char *table, const char *kind, void (*call)(bench *), bench *w, double copy)
{
	double t = median(call, w);
	char density[32] = "";
	if (w->k)
		snprintf(density, sizeof density, "%.4f", (double)w->k / N);
	printf("%-14s %-9s %-12s %-7s %9.3f ms %7.2f memcpys\n", name, table, kind, density, t * 1e3, t / copy);
	next_row();
	if (timing.json)
		fprintf(timing.json,
		        "{\"operator\": \"%s\", \"table\": \"%s\", \"numbers\": \"%s\", \"density\": %.6f, "
		        "\"ms\": %.6f, \"memcpys\": %.3f}",
		        name, table, kind, (double)w->k / N, t * 1e3, t / copy);
}

static const char *const kinds[] = {"normal", "cubed", "student", "mostly zero"};

static void fill(const gradcomp_operators *op, float *x, int kind)
{
	op->random_normal(NULL, x, N, 7, 1, 0);
	for (size_t i = 0; i < N; i++)
		if (kind == 1)
			x[i] = x[i] * x[i] * x[i];
		else if (kind == 2) /* one degree of freedom; each divisor is used before it is divided */
			x[i] /= fabsf(x[(i + 1) % N]) + 1e-6f;
		else if (kind == 3 && i % 1000)
			x[i] = 0;
}

static void table(const char *name, const gradcomp_operators *op)
{
	static const double densities[] = {0.0001, 0.001, 0.01, 0.05, 0.1, 0.5};
	bench w = {.op = op, .x = room(N), .y = room(N), .val = room(N), .idx = (uint32_t *)room(N)};
	for (int kind = 0; kind < 4; kind++) {
		fill(op, w.x, kind);
		w.k = 0;
		double copy = median(do_memcpy, &w);
		run("memcpy", "libc", kinds[kind], do_memcpy, &w, copy);
		for (size_t i = 0; i < sizeof densities / sizeof densities[0]; i++) {
			w.k = (size_t)(densities[i] * N);
			size_t most = op->mstopk_scratch(N, w.k), bytes = op->topk_scratch(N, w.k);
			w.scratch = room((most > bytes ? most : bytes) / 4);
			run("topk", name, kinds[kind], do_topk, &w, copy);
			run("mstopk", name, kinds[kind], do_mstopk, &w, copy);
			free(w.scratch);
		}
	}
	free(w.x), free(w.y), free(w.val), free(w.idx);
}

int main(int argc, char **argv)
{
	static const char *const names[] = {"portable", "avx2", "avx512"};
	begin(argc, argv, "bench/selection");
	for (int i = 0; i < 3; i++)
		if (operators_cpu_variant(names[i]))
			table(names[i], operators_cpu_variant(names[i]));
	return end();
}
