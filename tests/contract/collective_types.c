/* All-reduce and reduce-scatter of every installed collective with every element type and
 * operation, on all layouts: against float64 (integers: exact, and wrapping around), the
 * same bits on all ranks and when it is done again. */
#include "tests/support/collective_layouts.h"

#include <stdbool.h>
#include <math.h>

enum { SIZES = 4, TYPES = 7, OPS = 4, MOST = 4097 };
static const uint64_t sizes[SIZES] = {0, 1, 7, MOST};
static const gradcomp_dtype types[TYPES] = {GRADCOMP_F32, GRADCOMP_F16, GRADCOMP_BF16, GRADCOMP_F64,
                                            GRADCOMP_I32, GRADCOMP_I64, GRADCOMP_U8};
static const char *const type_names[TYPES] = {"f32", "f16", "bf16", "f64", "i32", "i64", "u8"};
static const char *const op_names[OPS] = {"sum", "max", "min", "or"};

/* Every rank's input, in `dtype`; and the same as a number. */
static union {
	uint64_t whole;
	char bytes[8 * MOST];
} in[RANKS];
static double value[RANKS][MOST];
static int64_t whole[RANKS][MOST];
static void *result[RANKS], *first[RANKS];
static gradcomp_dtype dtype;

static bool is_float(gradcomp_dtype d)
{
	return d <= GRADCOMP_F64;
}

/* Relative to a number of this type. */
static double rounding(gradcomp_dtype d)
{
	return d == GRADCOMP_F16 ? 0x1p-11 : d == GRADCOMP_BF16 ? 0x1p-8 : d == GRADCOMP_F32 ? 0x1p-24 : 0x1p-53;
}

static double float_at(const void *p, uint64_t i, gradcomp_dtype d)
{
	float f;
	double g;
	if (d == GRADCOMP_F64) {
		memcpy(&g, (const char *)p + 8 * i, 8);
		return g;
	}
	operators_cpu()->cast_to_f32(NULL, &f, (const char *)p + i * gradcomp_dtype_bytes(d), 1, d);
	return f;
}

static int64_t whole_at(const void *p, uint64_t i, gradcomp_dtype d)
{
	size_t size = gradcomp_dtype_bytes(d);
	int64_t v = 0;
	memcpy(&v, (const char *)p + i * size, size);
	return d == GRADCOMP_I32 ? (int32_t)v : v;
}

static void draw(gradcomp_dtype d)
{
	dtype = d;
	for (int r = 0; r < RANKS; r++)
		for (uint64_t i = 0; i < MOST; i++) {
			/* Zeroes of either sign: which of them comes out must not depend on the rank. */
			float f = i % 31 == 3 ? (test_random() & 1 ? 0 : -0.0f) : test_normal();
			double g = f * 1.000000001;
			uint64_t bits = test_random();
			char *at = in[r].bytes + i * gradcomp_dtype_bytes(d);
			if (d == GRADCOMP_F64)
				memcpy(at, &g, 8);
			else if (is_float(d))
				operators_cpu()->cast_from_f32(NULL, at, &f, 1, d, 0);
			else
				memcpy(at, &bits, gradcomp_dtype_bytes(d));
			value[r][i] = is_float(d) ? float_at(in[r].bytes, i, d) : 0;
			whole[r][i] = is_float(d) ? 0 : whole_at(in[r].bytes, i, d);
		}
}

/* Element i is what the operation makes of all ranks'. */
static int right(const void *p, uint64_t i, gradcomp_op op, int P)
{
	double sum = 0, size = 0, most = value[0][i], least = value[0][i];
	uint64_t total = 0, any = 0;
	int64_t high = whole[0][i], low = whole[0][i];
	for (int r = 0; r < P; r++) {
		double v = value[r][i];
		int64_t w = whole[r][i];
		sum += v;
		size += fabs(v);
		most = v > most ? v : most;
		least = v < least ? v : least;
		total += (uint64_t)w;
		any |= (uint64_t)w;
		high = w > high ? w : high;
		low = w < low ? w : low;
	}
	if (!is_float(dtype)) {
		uint64_t want = op == GRADCOMP_SUM   ? total
		                : op == GRADCOMP_BOR ? any
		                                     : (uint64_t)(op == GRADCOMP_MAX ? high : low);
		return !memcmp(&want, (const char *)p + i * gradcomp_dtype_bytes(dtype), gradcomp_dtype_bytes(dtype));
	}
	double x = float_at(p, i, dtype);
	if (op != GRADCOMP_SUM)
		return x == (op == GRADCOMP_MAX ? most : least);
	/* Scaled by 1 / P, which rounds once more; a half may be denormal. */
	return fabs(x * P - sum) <= rounding(dtype) * (P + 2) * size + (dtype == GRADCOMP_F16 ? P * 0x1p-24 : 0);
}

typedef struct trial {
	const char *spec;
	uint32_t serves;
	int cannot;
	char wrong[2][OPS][RANKS][40]; /* by primitive, operation and rank */
} trial;

static void body(gradcomp_job *job, int rank, int P, void *arg)
{
	trial *t = arg;
	size_t size = gradcomp_dtype_bytes(dtype);
	gradcomp_error err = {0};
	coll_ctx p;
	if (grid_open(job, t->spec, &p, &err)) {
		t->cannot = 1;
		return;
	}
	const struct gradcomp_collective_v1 *c = p.collective;
	if (rank == 0)
		t->serves = c->serves;
	for (int scatter = 0; scatter < 2; scatter++)
		for (int op = 0; op < (is_float(dtype) ? GRADCOMP_BOR : OPS); op++)
			for (int s = 0;
			     c->serves & (scatter ? GRADCOMP_CAN_REDUCE_SCATTER : GRADCOMP_CAN_ALLREDUCE) && s < SIZES;
			     s++) {
				uint64_t n = sizes[s], counts[RANKS], from = 0, to;
				double scale = op == GRADCOMP_SUM && is_float(dtype) ? 1.0 / P : 1.0;
				char *x = result[rank], *say = t->wrong[scatter][op][rank];
				grid_split(n, P, counts);
				for (int r = 0; scatter && r < rank; r++)
					from += counts[r];
				to = scatter ? from + counts[rank] : n;
				for (int again = 0; again < 2; again++) {
					memcpy(x, in[rank].bytes, n * size);
					set_wall(x, n * size);
					if (scatter ? c->reduce_scatter(p.instance, x, counts, dtype, (gradcomp_op)op,
					                                scale, &err)
					            : c->allreduce(p.instance, x, n, dtype, (gradcomp_op)op, scale,
					                           &err))
						snprintf(say, 40, "%.39s", err.text);
					ranks_wait();
					if (again ? memcmp(x + from * size, (char *)first[rank] + from * size,
					                   (to - from) * size)
					          : !scatter && memcmp(x, result[0], n * size))
						snprintf(say, 40, "%s", again ? "not the same again" : "ranks differ");
					if (!walls_stand(x, n * size))
						snprintf(say, 40, "written beside it");
					for (uint64_t i = from; !again && (scatter || rank == 0) && i < to; i++)
						if (!right(x, i, (gradcomp_op)op, P))
							snprintf(say, 40, "wrong at %d of %d", (int)i, (int)n);
					memcpy(first[rank], x, n * size);
					ranks_wait();
				}
			}
	group_coll_close(&p);
}

static void check(const char *spec, const layout *l, const char *type, const char *const *settings)
{
	static const char *const primitive[] = {"all-reduce", "reduce-scatter"};
	trial *t = calloc(1, sizeof *t);
	const char *wrong = NULL;
	char where[80] = "";
	t->spec = spec;
	grid_run(l, settings, body, t);
	for (int k = 0; k < 2 * OPS; k++)
		for (int r = 0; r < l->P; r++)
			if (*t->wrong[k / OPS][k % OPS][r]) {
				wrong = t->wrong[k / OPS][k % OPS][r];
				snprintf(where, sizeof where, "%s of %s, rank %d: ", primitive[k / OPS],
				         op_names[k % OPS], r);
			}
	if (t->cannot)
		skip("no instance here", "%s, %s, %s", spec, l->name, type);
	else if (t->serves & (GRADCOMP_CAN_ALLREDUCE | GRADCOMP_CAN_REDUCE_SCATTER))
		ok(!wrong, "%s, %s: every operation on %s %s%s", spec, l->name, type, where, wrong ? wrong : "");
	free(t);
}

int main(void)
{
	const char *settings[] = {plugin_path_setting(), "transport.timeout=60", "gradcomp.log=error", NULL};
	test_seed();
	grid_find(settings);
	for (int r = 0; r < RANKS; r++) {
		result[r] = walled(8 * MOST);
		first[r] = malloc(8 * MOST);
	}
	for (int k = 0; k < TYPES; k++) {
		draw(types[k]);
		for (int l = 0; l < LAYOUTS; l++)
			for (int c = 0; c < ncollectives; c++)
				check(collectives[c], &layouts[l], type_names[k], settings);
	}
	for (int r = 0; r < RANKS; r++) {
		walled_free(result[r]);
		free(first[r]);
	}
	return done_testing();
}
