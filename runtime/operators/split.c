/* Operators that are one loop, by runs of elements. An element's bits do not depend on where its run begins; sums are made of one
 * number a run, added in order, whether or not there are threads. */
#include "operators/split.h"

const gradcomp_operators *split_plain;

/* Holds what the parts of one call need. */
typedef struct call {
	size_t n, length, numbers, width; /* the last two: of blocks */
	void *out;
	const void *in;
	const float *limit; /* or another number */
	double a;
	gradcomp_dtype dtype;
	gradcomp_op op;
	int flag;
	uint64_t seed, stream, first;
} call;

static void run(call *c, size_t n, size_t length, void (*part)(void *, size_t))
{
	c->n = n;
	c->length = length;
	operator_threads_run(part, c, split_parts(n, length));
}

/* One operator: its part, in which s is the run and c the call, and itself. */
#define PART(name, statement) \
	static void name##_part(void *arg, size_t i) \
	{ \
		const call *c = arg; \
		const split_span s = split_part(c->n, c->length, i); \
		statement; \
	}
#define OUT(type) ((type *)c->out + s.from)
#define IN(type) ((const type *)c->in + s.from)

PART(add, split_plain->add(NULL, OUT(float), IN(float), s.count))
void split_add(void *queue, float *y, const float *x, size_t n)
{
	(void)queue;
	run(&(call){.out = y, .in = x}, n, OPERATOR_PART, add_part);
}

PART(scale, split_plain->scale(NULL, OUT(float), (float)c->a, s.count))
void split_scale(void *queue, float *x, float a, size_t n)
{
	(void)queue;
	run(&(call){.out = x, .a = a}, n, OPERATOR_PART, scale_part);
}

PART(axpy, split_plain->axpy(NULL, OUT(float), (float)c->a, IN(float), s.count))
void split_axpy(void *queue, float *y, float a, const float *x, size_t n)
{
	(void)queue;
	run(&(call){.out = y, .in = x, .a = a}, n, OPERATOR_PART, axpy_part);
}

PART(clamp, split_plain->clamp(NULL, OUT(float), IN(float), c->limit, s.count))
void split_clamp(void *queue, float *y, const float *x, const float *limit, size_t n)
{
	(void)queue;
	run(&(call){.out = y, .in = x, .limit = limit}, n, OPERATOR_PART, clamp_part);
}

PART(scale_by, split_plain->scale_by(NULL, OUT(float), c->limit, IN(float), s.count))
void split_scale_by(void *queue, float *y, const float *a, const float *x, size_t n)
{
	(void)queue;
	run(&(call){.out = y, .in = x, .limit = a}, n, OPERATOR_PART, scale_by_part);
}

PART(axpy_by, split_plain->axpy_by(NULL, OUT(float), c->limit, IN(float), s.count))
void split_axpy_by(void *queue, float *y, const float *a, const float *x, size_t n)
{
	(void)queue;
	run(&(call){.out = y, .in = x, .limit = a}, n, OPERATOR_PART, axpy_by_part);
}

PART(fill, split_plain->fill(NULL, OUT(float), (float)c->a, s.count))
void split_fill(void *queue, float *x, float a, size_t n)
{
	(void)queue;
	run(&(call){.out = x, .a = a}, n, OPERATOR_PART, fill_part);
}

PART(copy, split_plain->copy(NULL, OUT(char), IN(char), s.count))
void split_copy(void *queue, void *to, const void *from, size_t bytes)
{
	(void)queue;
	run(&(call){.out = to, .in = from}, bytes, 4 * OPERATOR_PART, copy_part);
}

/* Those that can refuse are asked first, with no elements. */
#define AT(p, type) ((char *)(p) + s.from * gradcomp_dtype_bytes(type))
#define IN_AT(p, type) ((const char *)(p) + s.from * gradcomp_dtype_bytes(type))

PART(reduce, split_plain->reduce(NULL, AT(c->out, c->dtype), IN_AT(c->in, c->dtype), s.count, c->dtype, c->op))
gradcomp_status split_reduce(void *queue, void *acc, const void *in, size_t n, gradcomp_dtype dtype, gradcomp_op op)
{
	gradcomp_status st = split_plain->reduce(queue, acc, in, 0, dtype, op);
	if (!st)
		run(&(call){.out = acc, .in = in, .dtype = dtype, .op = op}, n, OPERATOR_PART, reduce_part);
	return st;
}

PART(scale_as, split_plain->scale_as(NULL, AT(c->out, c->dtype), c->a, s.count, c->dtype))
gradcomp_status split_scale_as(void *queue, void *x, double a, size_t n, gradcomp_dtype dtype)
{
	gradcomp_status st = split_plain->scale_as(queue, x, a, 0, dtype);
	if (!st)
		run(&(call){.out = x, .a = a, .dtype = dtype}, n, OPERATOR_PART, scale_as_part);
	return st;
}

PART(cast_from, split_plain->cast_from_f32(NULL, AT(c->out, c->dtype), IN(float), s.count, c->dtype, c->flag))
gradcomp_status split_cast_from_f32(void *queue, void *out, const float *in, size_t n, gradcomp_dtype to, int saturate)
{
	gradcomp_status st = split_plain->cast_from_f32(queue, out, in, 0, to, saturate);
	if (!st)
		run(&(call){.out = out, .in = in, .dtype = to, .flag = saturate}, n, OPERATOR_PART, cast_from_part);
	return st;
}

PART(scaled, split_plain->cast_scaled(NULL, AT(c->out, c->dtype), IN(float), s.count, c->dtype, (float)c->a, *c->limit))
gradcomp_status split_cast_scaled(void *queue, void *out, const float *in, size_t n, gradcomp_dtype to, float a,
                                  float limit)
{
	gradcomp_status st = split_plain->cast_scaled(queue, out, in, 0, to, a, limit);
	if (!st)
		run(&(call){.out = out, .in = in, .dtype = to, .a = a, .limit = &limit}, n, OPERATOR_PART, scaled_part);
	return st;
}

PART(cast_to, split_plain->cast_to_f32(NULL, OUT(float), IN_AT(c->in, c->dtype), s.count, c->dtype))
gradcomp_status split_cast_to_f32(void *queue, float *out, const void *in, size_t n, gradcomp_dtype from)
{
	gradcomp_status st = split_plain->cast_to_f32(queue, out, in, 0, from);
	if (!st)
		run(&(call){.out = out, .in = in, .dtype = from}, n, OPERATOR_PART, cast_to_part);
	return st;
}

PART(normal, split_plain->random_normal(NULL, OUT(float), s.count, c->seed, c->stream, c->first + s.from))
void split_random_normal(void *queue, float *out, size_t n, uint64_t seed, uint64_t stream, uint64_t first)
{
	(void)queue;
	run(&(call){.out = out, .seed = seed, .stream = stream, .first = first}, n, OPERATOR_PART, normal_part);
}

static double added(const double *part, size_t n)
{
	double total = 0;
	for (size_t i = 0; i < split_parts(n, split_length(n)); i++)
		total += part[i];
	return total;
}

#define SUM(name) \
	PART(name, split_plain->name(NULL, (double *)c->out + i, IN(float), s.count, NULL)) \
	void split_##name(void *queue, double *out, const float *x, size_t n, void *scratch) \
	{ \
		double part[SPLIT_RUNS] = {0}; \
		(void)queue; \
		(void)scratch; \
		run(&(call){.out = part, .in = x}, n, split_length(n), name##_part); \
		*out = added(part, n); \
	}
SUM(sum_abs)
SUM(sum_squares)

PART(absmax, split_plain->absmax(NULL, (float *)c->out + i, IN(float), s.count, NULL))
void split_absmax(void *queue, float *out, const float *x, size_t n, void *scratch)
{
	float part[SPLIT_RUNS] = {0}, most = 0;
	(void)queue;
	(void)scratch;
	run(&(call){.out = part, .in = x}, n, split_length(n), absmax_part);
	for (size_t i = 0; i < SPLIT_RUNS; i++)
		most = part[i] > most ? part[i] : most;
	*out = most;
}

/* Whole blocks a part. */
static void blocks_sum_part(void *arg, size_t i)
{
	const call *c = arg;
	const split_span s = split_part(c->n, c->length, i);
	const size_t width = c->width, from = s.from * width, left = c->numbers - from;
	split_plain->blocks_sum_abs(NULL, OUT(float), (const float *)c->in + from,
	                            left < s.count * width ? left : s.count * width, width, (float)c->a);
}

void split_blocks_sum_abs(void *queue, float *out, const float *x, size_t n, size_t width, float most)
{
	(void)queue;
	run(&(call){.out = out, .in = x, .a = (double)most, .numbers = n, .width = width}, split_parts(n, width),
	    width < OPERATOR_PART ? OPERATOR_PART / width : 1, blocks_sum_part);
}

PART(nonfinite, split_plain->nonfinite(NULL, IN(float), s.count, (int *)c->out + i))
void split_nonfinite(void *queue, const float *x, size_t n, int *bad)
{
	int part[SPLIT_RUNS] = {0};
	(void)queue;
	run(&(call){.out = part, .in = x}, n, split_length(n), nonfinite_part);
	*bad = 0;
	for (size_t i = 0; i < SPLIT_RUNS; i++)
		*bad |= part[i];
}
