/* Speed of the operators on this machine, one thread: time of a call, and the
 * bytes it must at least move over that time, beside memcpy's on equal terms.
 *
 *     bench/operators [--json FILE] [--quick]
 */
#include "bench/timing.h"

#include "gradcomp/sdk/lowrank.h"
#include "operators/operator_tables.h"

typedef struct bench {
	const gradcomp_operators *op;
	float *a, *b, *c, *P, *Q, *L;
	uint32_t *idx;
	void *scratch;
	size_t n, m, r, k; /* n x m matrices, or n * m numbers */
} bench;

static void run(const char *name, const char *table, void (*call)(bench *), bench *w, double bytes)
{
	double t = median(call, w);
	char size[64];
	snprintf(size, sizeof size,
	         w->r   ? "%zux%zu r=%zu"
	         : w->k ? "%zux%zu k=%zu"
	                : "%zux%zu",
	         w->n, w->m, w->r ? w->r : w->k);
	printf("%-16s %-9s %-20s %9.4f ms %7.1f GB/s\n", name, table, size, t * 1e3, bytes / t * 1e-9);
	next_row();
	if (timing.json)
		fprintf(timing.json,
		        "{\"operator\": \"%s\", \"table\": \"%s\", \"size\": \"%s\", \"ms\": %.6f, "
		        "\"gb_per_s\": %.3f}",
		        name, table, size, t * 1e3, bytes / t * 1e-9);
}

static void do_memcpy(bench *w)
{
	memcpy(w->b, w->a, w->n * w->m * 4);
}
static void do_add(bench *w)
{
	w->op->add(NULL, w->b, w->a, w->n * w->m);
}
static void do_bf16_sum(bench *w)
{
	w->op->reduce(NULL, w->b, w->a, w->n * w->m, GRADCOMP_BF16, GRADCOMP_SUM);
}
static void do_f16_sum(bench *w)
{
	w->op->reduce(NULL, w->b, w->a, w->n * w->m, GRADCOMP_F16, GRADCOMP_SUM);
}
static void do_scale(bench *w)
{
	w->op->scale(NULL, w->b, 1.0f, w->n * w->m);
}
static void do_nonfinite(bench *w)
{
	int bad;
	w->op->nonfinite(NULL, w->a, w->n * w->m, &bad);
	if (bad)
		abort();
}
static void do_to_bf16(bench *w)
{
	w->op->cast_from_f32(NULL, w->b, w->a, w->n * w->m, GRADCOMP_BF16, 0);
}
static void do_to_f16(bench *w)
{
	w->op->cast_from_f32(NULL, w->b, w->a, w->n * w->m, GRADCOMP_F16, 0);
}
static void do_from_bf16(bench *w)
{
	w->op->cast_to_f32(NULL, w->b, w->a, w->n * w->m, GRADCOMP_BF16);
}
static void do_from_f16(bench *w)
{
	w->op->cast_to_f32(NULL, w->b, w->a, w->n * w->m, GRADCOMP_F16);
}
static void do_mq(bench *w)
{
	sdk_product_mq(w->op, NULL, w->P, w->a, w->Q, w->n, w->m, w->r, NULL);
}
static void do_mtp(bench *w)
{
	sdk_product_mtp(w->op, NULL, w->L, w->a, w->P, w->n, w->m, w->r, NULL);
}
static void do_finish(bench *w)
{
	sdk_low_rank_finish(w->op, NULL, w->b, w->c, w->P, w->L, w->Q, w->n, w->m, w->r);
}
static void do_ortho(bench *w)
{
	memcpy(w->P, w->a, w->n * w->r * 4);
	sdk_orthonormalise(w->op, NULL, w->P, w->n, w->r, NULL);
}
static void do_axpy(bench *w)
{
	w->op->axpy(NULL, w->b, 0.5f, w->a, w->n * w->m);
}
static void do_sum_abs(bench *w)
{
	double sum;
	w->op->sum_abs(NULL, &sum, w->a, w->n * w->m, w->scratch);
}
static void do_sum_squares(bench *w)
{
	double sum;
	w->op->sum_squares(NULL, &sum, w->a, w->n * w->m, w->scratch);
}
static void do_absmax(bench *w)
{
	float most;
	w->op->absmax(NULL, &most, w->a, w->n * w->m, w->scratch);
}
static void do_topk(bench *w)
{
	w->op->topk(NULL, w->idx, w->c, w->a, w->n * w->m, w->k, w->scratch);
}
static void do_scatter(bench *w)
{
	w->op->scatter_add(NULL, w->b, w->n * w->m, w->idx, w->c, w->k, 0.25f);
}
static void do_normal(bench *w)
{
	w->op->random_normal(NULL, w->b, w->n * w->m, 1, 2, 0);
}

static void do_to_e4m3(bench *w)
{
	w->op->cast_from_f32(NULL, w->b, w->a, w->n * w->m, GRADCOMP_F8E4M3, 0);
}
static void do_from_e4m3(bench *w)
{
	w->op->cast_to_f32(NULL, w->b, w->c, w->n * w->m, GRADCOMP_F8E4M3);
}
static void do_sign_encode(bench *w)
{
	w->op->sign_pack(NULL, w->idx, w->a, w->n * w->m, w->m);
	w->op->sign_means(NULL, w->b, w->a, w->n * w->m, w->m);
}
static void do_sign_add(bench *w)
{
	w->op->sign_add(NULL, w->c, 0.5f, w->idx, w->b, w->n * w->m, w->m);
}
static void do_ternary_pack(bench *w)
{
	float scale = 5;
	w->op->ternary_pack(NULL, (uint8_t *)w->idx, w->a, w->n * w->m, &scale, 1, 2, 0);
}
static void do_ternary_add(bench *w)
{
	float scale = 5;
	int fault = 0;
	w->op->ternary_add(NULL, w->c, 0.5f, (uint8_t *)w->idx, &scale, w->n * w->m, &fault);
}
/* Blocks of 256 numbers in 8 bits. */
static const gradcomp_quantiser block8 = {
	.struct_size = sizeof block8, .bits = 8, .levels = 127, .block = 256, .norm = GRADCOMP_NORM_ABSMAX};
static const gradcomp_quantiser qsgd = {.struct_size = sizeof qsgd,
                                        .bits = 4,
                                        .levels = 7,
                                        .block = 256,
                                        .norm = GRADCOMP_NORM_L2,
                                        .rounding = GRADCOMP_TO_EITHER};
static void do_quantise(bench *w)
{
	w->op->quantise(NULL, w->idx, w->a, w->n * w->m, &block8);
}
static void do_quantise_error(bench *w)
{
	w->op->quantise(NULL, w->idx, w->b, w->n * w->m, &block8);
	w->op->dequantise_error(NULL, w->b, w->b, w->idx, w->n * w->m, &block8);
}
static void do_dequantise_add(bench *w)
{
	w->op->dequantise_add(NULL, w->c, 0.5f, w->idx, w->n * w->m, &block8);
}
static void do_qsgd(bench *w)
{
	w->op->quantise(NULL, w->idx, w->a, w->n * w->m, &qsgd);
}

static void table(const char *name, const gradcomp_operators *op)
{
	static const size_t sizes[][2] = {{1024, 1024}, {4096, 4096}};
	for (int s = 0; s < 2; s++) {
		bench w = {.op = op, .n = sizes[s][0], .m = sizes[s][1]};
		size_t d = w.n * w.m;
		w.a = room(d), w.b = room(d), w.c = room(d), w.idx = (uint32_t *)room(d);
		w.P = room(w.n * 8), w.Q = room(w.m * 8), w.L = room(w.m * 8);
		op->random_normal(NULL, w.a, d, 7, 1, 0);
		op->random_normal(NULL, w.P, w.n * 8, 7, 2, 0);
		op->random_normal(NULL, w.Q, w.m * 8, 7, 3, 0);
		double b = 4.0 * (double)d;
		run("memcpy", "libc", do_memcpy, &w, 2 * b);
		run("add", name, do_add, &w, 3 * b);
		run("scale", name, do_scale, &w, 2 * b);
		run("nonfinite", name, do_nonfinite, &w, b);
		run("axpy", name, do_axpy, &w, 3 * b);
		w.scratch = room(op->sum_scratch(d) / 4 + 1);
		run("sum_abs", name, do_sum_abs, &w, b);
		run("sum_squares", name, do_sum_squares, &w, b);
		run("absmax", name, do_absmax, &w, b);
		free(w.scratch);
		run("f32 to bf16", name, do_to_bf16, &w, 1.5 * b);
		run("f32 to f16", name, do_to_f16, &w, 1.5 * b);
		memset(w.b, 0, d * 4);
		run("sum of bf16", name, do_bf16_sum, &w, 1.5 * b);
		run("sum of f16", name, do_f16_sum, &w, 1.5 * b);
		run("bf16 to f32", name, do_from_bf16, &w, 1.5 * b);
		run("f16 to f32", name, do_from_f16, &w, 1.5 * b);
		memset(w.c, 0, d * 4);
		run("f32 to e4m3", name, do_to_e4m3, &w, 1.25 * b);
		run("e4m3 to f32", name, do_from_e4m3, &w, 1.25 * b);
		run("sign_pack, means", name, do_sign_encode, &w, 2 * b);
		run("sign_add", name, do_sign_add, &w, 2 * b);
		run("ternary_pack", name, do_ternary_pack, &w, b);
		run("ternary_add", name, do_ternary_add, &w, 2 * b);
		run("quantise 8", name, do_quantise, &w, 1.25 * b);
		run("dequantise_add 8", name, do_dequantise_add, &w, 2.25 * b);
		memcpy(w.b, w.a, d * 4);
		run("quantise + error", name, do_quantise_error, &w, 3.5 * b);
		run("QSGD 4", name, do_qsgd, &w, b);
		for (w.r = 1; w.r <= 8; w.r *= 2) {
			run("product_mq", name, do_mq, &w, b);
			run("product_mtp", name, do_mtp, &w, b);
			memcpy(w.b, w.a, d * 4);
			run("low_rank_finish", name, do_finish, &w, 3 * b);
		}
		w.r = 0;
		op->random_normal(NULL, w.a, d, 7, 1, 0);
		for (size_t part = 1000; part >= 10; part /= 10) {
			w.k = d / part;
			w.scratch = room(op->topk_scratch(d, w.k) / 4 + 1);
			run("topk", name, do_topk, &w, b);
			run("scatter_add", name, do_scatter, &w, 16.0 * (double)w.k);
			free(w.scratch);
		}
		w.k = 0;
		if (!s)
			run("random_normal", name, do_normal, &w, b);
		free(w.a), free(w.b), free(w.c), free(w.idx), free(w.P), free(w.Q), free(w.L);
	}
	static const size_t tall[][2] = {{1024, 4}, {65536, 4}, {65536, 1}, {65536, 8}, {4096, 32}};
	for (int s = 0; s < 5; s++) {
		bench w = {.op = op, .n = tall[s][0], .m = tall[s][1], .r = tall[s][1]};
		w.a = room(w.n * w.r), w.P = room(w.n * w.r);
		op->random_normal(NULL, w.a, w.n * w.r, 7, 1, 0);
		run("orthonormalise", name, do_ortho, &w, 12.0 * (double)(w.n * w.r));
		free(w.a), free(w.P);
	}
}

int main(int argc, char **argv)
{
	static const char *const names[] = {"portable", "avx2", "avx512"};
	begin(argc, argv, "bench/operators");
	for (int i = 0; i < 3; i++)
		if (operators_cpu_variant(names[i]))
			table(names[i], operators_cpu_variant(names[i]));
	return end();
}
