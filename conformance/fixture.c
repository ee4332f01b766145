#include "conformance/fixture.h"

#include <math.h>
#include <stdlib.h>

model fixture_models[MODELS] = {
	{"no tensors", 0, {{0}}},
	{"an empty tensor", 1, {{0, 0}}},
	{"one number", 1, {{1, 0}}},
	{"two and seven numbers", 2, {{2, 0}, {7, 0}}},
	{"an empty matrix between others", 3, {{3, 0}, {0, 4}, {5, 6}}},
	{"4097 numbers", 1, {{4097, 0}}},
	{"matrices and vectors", 7, {{33, 0}, {33, 65}, {1, 0}, {64, 64}, {128, 0}, {7, 1}, {1, 300}}},
	{"tall and wide", 4, {{300, 12}, {12, 301}, {2, 2}, {50, 50}}},
};

model fixture_few = {"64 numbers", 3, {{6, 8}, {15, 0}, {1, 0}}};

model *fixture_many(void)
{
	static model m = {"300 tensors", TENSORS_MAX - 1, {{0}}};
	for (uint32_t i = 0; i < m.n; i++) {
		m.dims[i][0] = random_check() % 12;
		m.dims[i][1] = random_check() % 3 ? 0 : 1 + random_check() % 6;
	}
	return &m;
}

model *fixture_large(int which)
{
	static model models[LARGE_MODELS] = {
		{"2^17 numbers and more", 1, {{0}}},
		{"2^20 numbers and more", 3, {{1000, 1000}, {1, 0}, {0}}},
	};
	model *m = &models[which];
	m->dims[m->n - 1][0] = which ? 48575 + random_check() % (1 << 19) : (1 << 17) + random_check() % (1 << 15);
	return m;
}

const char *const fixture_kind_names[KINDS_ALL] = {"normal",   "zero",          "constant", "tied",
                                                   "denormal", "widely scaled", "huge"};

float fixture_gradient(int kind, uint64_t i, double largest)
{
	double v = 0;
	switch (kind) {
	case KIND_NORMAL:
		return random_check_normal();
	case KIND_ZERO:
		return 0;
	case KIND_CONSTANT:
		return 0.37f;
	case KIND_TIES:
		return (float)(int)(random_check() % 5) - 2;
	case KIND_DENORMAL:
		return 1e-40f * random_check_normal();
	case KIND_SCALES:
		v = random_check_normal() * pow(10, (double)(i % 13) - 6);
		break;
	default:
		v = random_check_normal() * 1e30;
	}
	return (float)(largest > 0 && fabs(v) > largest ? copysign(largest, v) : v);
}

void fixture_fill(const fixture *t, ranks *s, float **g, int kind)
{
	for (int w = 0; w < s->P; w++)
		for (uint64_t i = 0; i < s->numel; i++)
			g[w][i] = fixture_gradient(kind, i, t->largest);
}

void fixture_gradients_new(const ranks *s, float **g)
{
	for (int w = 0; w < s->P; w++) {
		g[w] = calloc(s->numel + 1, sizeof(float));
		if (!g[w])
			exit(1);
	}
}

void fixture_gradients_free(const ranks *s, float **g)
{
	for (int w = 0; w < s->P; w++)
		free(g[w]);
}
