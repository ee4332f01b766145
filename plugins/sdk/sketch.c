#include "gradcomp/sdk/sketch.h"

#include "gradcomp/sdk/hash.h"

/* Column and sign of number i in row r, from one hash: the upper half and the lowest bit. */
typedef struct place {
	uint64_t at;
	float sign;
} place;

static place place_of(const sdk_sketch *s, uint32_t r, uint64_t i)
{
	uint64_t hash = sdk_hash(i, sdk_hash(r, s->seed));
	return (place){(uint64_t)r * s->columns + sdk_hash_below(hash, s->columns), hash & 1 ? -1.0f : 1.0f};
}

void sdk_sketch_add(const sdk_sketch *s, float *table, float a, const float *x, uint64_t n, uint64_t first)
{
	for (uint32_t r = 0; r < s->rows; r++)
		for (uint64_t j = 0; j < n; j++) {
			place p = place_of(s, r, first + j);
			table[p.at] += p.sign * (a * x[j]);
		}
}

/* Returns the median of an odd number of floats, which it sorts. */
static float median(float *x, uint32_t n)
{
	for (uint32_t i = 1; i < n; i++) {
		float v = x[i];
		uint32_t k = i;
		for (; k && x[k - 1] > v; k--)
			x[k] = x[k - 1];
		x[k] = v;
	}
	return x[n / 2];
}

void sdk_sketch_estimate(const sdk_sketch *s, const float *table, float *out, uint64_t n, uint64_t first)
{
	for (uint64_t j = 0; j < n; j++) {
		float each[SDK_SKETCH_ROWS] = {0};
		for (uint32_t r = 0; r < s->rows; r++) {
			place p = place_of(s, r, first + j);
			each[r] = p.sign * table[p.at];
		}
		out[j] = median(each, s->rows);
	}
}
