/* A compressor under test, and what is done to it: models of all sorts of shapes,
 * gradients of all sorts of sizes. */
#ifndef CONFORMANCE_FIXTURE_H
#define CONFORMANCE_FIXTURE_H

#include "conformance/random.h"
#include "conformance/ranks.h"

/* A compressor under test. Figures of rounding are relative to the largest
 * sum over ranks of |u| in a bucket, and absolute. */
typedef struct fixture {
	const char *spec;
	const struct gradcomp_compressor_v1 *plugin;
	const gradcomp_value *values;
	/* The same with the plugin's neutral values, under which nothing is lost; NULL:
	 * `values` are such. See kit_neutral(). */
	const gradcomp_value *plain;
	char neutral[200];
	const gradcomp_operators *op;
	double relative, absolute;
	double largest; /* gradients above this are not tried; 0: all floats */
	/* Returns the payload bytes that a rank sends in a step with these buckets. NULL: not known. */
	uint64_t (*bytes)(const gradcomp_value *values, const ranks *s);
} fixture;

typedef struct model {
	const char *name;
	uint32_t n;
	uint64_t dims[TENSORS_MAX - 1][2];
} model;

enum { MODELS = 8 };
extern model fixture_models[MODELS];
/* So few that many steps and ranks of them take no time. */
extern model fixture_few;
/* Makes as many tensors as there can be, with shapes that are drawn. */
model *fixture_many(void);
/* Makes a model of more numbers than 16 bits count, and one of more than 2^20; how many more is drawn. */
enum { LARGE_MODELS = 2 };
model *fixture_large(int which);

enum { KIND_NORMAL, KIND_ZERO, KIND_CONSTANT, KIND_TIES, KIND_DENORMAL, KIND_SCALES, KIND_HUGE, KINDS_ALL };
extern const char *const fixture_kind_names[KINDS_ALL];

float fixture_gradient(int kind, uint64_t i, double largest);
void fixture_fill(const fixture *t, ranks *s, float **g, int kind);
void fixture_gradients_new(const ranks *s, float **g);
void fixture_gradients_free(const ranks *s, float **g);

#endif
