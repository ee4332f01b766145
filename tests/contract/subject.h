/* A compressor under test, and what is done to it: models of all sorts of shapes,
 * gradients of all sorts of sizes. */
#ifndef CONTRACT_SUBJECT_H
#define CONTRACT_SUBJECT_H

#include <math.h>

#include "contract/ranks.h"
#include "unit/operators.h"

/* A compressor under test. Figures of rounding are relative to the largest
 * sum over ranks of |u| in a bucket, and absolute. */
typedef struct subject {
	const char *spec;
	const struct gradcomp_compressor_v1 *plugin;
	const gradcomp_value *values;
	const gradcomp_operators *op;
	double relative, absolute;
	double largest; /* gradients above this are not tried; 0: all floats */
	/* Payload bytes a rank sends in a step with these buckets. */
	uint64_t (*bytes)(const gradcomp_value *values, const ranks *s);
} subject;

typedef struct model {
	const char *name;
	uint32_t n;
	uint64_t dims[TENSORS_MAX][2];
} model;

static model models[] = {
	{"no tensors", 0, {{0}}},
	{"an empty tensor", 1, {{0, 0}}},
	{"one number", 1, {{1, 0}}},
	{"two and seven numbers", 2, {{2, 0}, {7, 0}}},
	{"an empty matrix between others", 3, {{3, 0}, {0, 4}, {5, 6}}},
	{"4097 numbers", 1, {{4097, 0}}},
	{"matrices and vectors", 7, {{33, 0}, {33, 65}, {1, 0}, {64, 64}, {128, 0}, {7, 1}, {1, 300}}},
	{"tall and wide", 4, {{300, 12}, {12, 301}, {2, 2}, {50, 50}}},
};

enum { KIND_NORMAL, KIND_ZERO, KIND_CONSTANT, KIND_TIES, KIND_DENORMAL, KIND_SCALES, KIND_HUGE, KINDS_ALL };
static const char *const kind_names[] = {"normal", "zero", "constant", "tied", "denormal", "widely scaled", "huge"};

static float gradient(int kind, uint64_t i, double largest)
{
	double v = 0;
	switch (kind) {
	case KIND_NORMAL:
		return test_normal();
	case KIND_ZERO:
		return 0;
	case KIND_CONSTANT:
		return 0.37f;
	case KIND_TIES:
		return (float)(int)(test_random() % 5) - 2;
	case KIND_DENORMAL:
		return 1e-40f * test_normal();
	case KIND_SCALES:
		v = test_normal() * pow(10, (double)(i % 13) - 6);
		break;
	default:
		v = test_normal() * 1e30;
	}
	return (float)(largest > 0 && fabs(v) > largest ? copysign(largest, v) : v);
}

static void fill(const subject *t, ranks *s, float **g, int kind)
{
	for (int w = 0; w < s->P; w++)
		for (uint64_t i = 0; i < s->layout[w].numel; i++)
			g[w][i] = gradient(kind, i, t->largest);
}

static void gradients_new(const ranks *s, float **g)
{
	for (int w = 0; w < s->P; w++) {
		g[w] = calloc(s->layout[w].numel + 1, sizeof(float));
		if (!g[w])
			exit(1);
	}
}

static void gradients_free(const ranks *s, float **g)
{
	for (int w = 0; w < s->P; w++)
		free(g[w]);
}

static int opened(const subject *t, ranks *s, int P, model *m)
{
	gradcomp_status st = ranks_open(s, t->plugin, t->op, t->values, P, m->n, m->dims, test_random());
	if (st)
		ok(0, "%s: P=%d, %s: create fails (%d): %s", t->spec, P, m->name, st, s->err.text);
	return !st;
}

static int stepped(const subject *t, ranks *s, float **g, int interleave)
{
	gradcomp_status st = ranks_step(s, g, interleave);
	if (st)
		ok(0, "%s: a step fails (%d): %s", t->spec, st, s->err.text);
	return !st;
}

#endif
