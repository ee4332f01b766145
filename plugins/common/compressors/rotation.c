#include "plugins/common/compressors/rotation.h"

#include <math.h>
#include <string.h>

/* Eight floats anywhere in memory. */
typedef float lanes __attribute__((vector_size(32), aligned(4), may_alias));
enum { LANES = 8 };

static const uint64_t SIGNS_SEED = 0x726f74617465; /* "rotate" */

gradcomp_status rotation_check(const gradcomp_host *host, const char *name, uint64_t block, gradcomp_error *err)
{
	if (block <= ROTATION_TILE)
		return GRADCOMP_OK;
	return host->fail(err, GRADCOMP_ERR_INVALID, "%s: rotate=yes: %llu numbers share a scale, give at most %d",
	                  name, (unsigned long long)block, ROTATION_TILE);
}

gradcomp_status rotation_open(rotation *r, const gradcomp_host *host, const char *name, uint64_t block,
                              const gradcomp_layout *layout, gradcomp_error *err)
{
	gradcomp_status st = rotation_check(host, name, block, err);
	if (st)
		return st;
	if (GRADCOMP_HAS(layout, device) && layout->device != GRADCOMP_HOST)
		return host->fail(err, GRADCOMP_ERR_UNSUPPORTED, "%s: rotate=yes works on the host alone", name);
	r->width = block & (~block + 1);
	if (r->width > ROTATION_WIDEST)
		r->width = ROTATION_WIDEST;
	r->tile = ROTATION_TILE / block * block;
	host->operators->random_normal(NULL, r->sign, ROTATION_WIDEST, SIGNS_SEED, 0, 0);
	for (uint64_t i = 0; i < ROTATION_WIDEST; i++)
		r->sign[i] = r->sign[i] < 0 ? -1.0f : 1.0f;
	return GRADCOMP_OK;
}

/* Sums and differences of numbers that stand `apart`. */
static void stage(float *x, uint64_t n, uint64_t apart)
{
	for (uint64_t i = 0; i < n; i += 2 * apart)
		for (uint64_t j = i; j < i + apart; j++) {
			const float a = x[j], b = x[j + apart];
			x[j] = a + b;
			x[j + apart] = a - b;
		}
}

static void stage_of_lanes(float *x, uint64_t n, uint64_t apart)
{
	for (uint64_t i = 0; i < n; i += 2 * apart)
		for (uint64_t j = i; j < i + apart; j += LANES) {
			lanes *const p = (lanes *)(x + j), *const q = (lanes *)(x + j + apart);
			const lanes a = *p, b = *q;
			*p = a + b;
			*q = a - b;
		}
}

/* x = H x, with H of 1 and -1; n is a power of two. */
static void hadamard(float *x, uint64_t n)
{
	for (uint64_t apart = 1; apart < n; apart *= 2)
		(apart < LANES ? stage : stage_of_lanes)(x, n, apart);
}

static void times(float *x, const float *sign, uint64_t n, float a)
{
	for (uint64_t i = 0; i < n; i++)
		x[i] *= sign[i] * a;
}

/* Returns how many numbers the next piece has, of `left`. */
static uint64_t piece_of(const rotation *r, uint64_t left)
{
	uint64_t n = r->width;
	while (n > left)
		n /= 2;
	return n;
}

void rotation_apply(const rotation *r, float *x, uint64_t n)
{
	for (uint64_t at = 0, some; at < n; at += some) {
		some = piece_of(r, n - at);
		times(x + at, r->sign + at % r->width, some, (float)(1 / sqrt((double)some)));
		hadamard(x + at, some);
	}
}

void rotation_undo(const rotation *r, float *x, uint64_t n)
{
	for (uint64_t at = 0, some; at < n; at += some) {
		some = piece_of(r, n - at);
		hadamard(x + at, some);
		times(x + at, r->sign + at % r->width, some, (float)(1 / sqrt((double)some)));
	}
}

typedef struct tile {
	float x[ROTATION_TILE];
	_Alignas(8) unsigned char code[2 * ROTATION_TILE];
} tile;

void rotation_pack(const rotation *r, const rotation_code *c, void *out, const float *x, uint64_t n)
{
	tile t;
	uint64_t values, codes, all, ignored;
	unsigned char *to = out;
	c->sizes(c->ctx, n, &all, &ignored);
	for (uint64_t at = 0; at < n; at += r->tile) {
		const uint64_t some = n - at < r->tile ? n - at : r->tile;
		memcpy(t.x, x + at, some * sizeof *x);
		rotation_apply(r, t.x, some);
		c->pack(c->ctx, t.code, t.x, some, at);
		c->sizes(c->ctx, some, &values, &codes);
		memcpy(to, t.code, values);
		memcpy((unsigned char *)out + all, t.code + values, codes);
		to += values;
		all += codes;
	}
}

void rotation_read(const rotation *r, const rotation_code *c, float *y, const void *in, uint64_t n, int add)
{
	tile t;
	uint64_t values, codes, all, ignored;
	const unsigned char *from = in;
	c->sizes(c->ctx, n, &all, &ignored);
	for (uint64_t at = 0; at < n; at += r->tile) {
		const uint64_t some = n - at < r->tile ? n - at : r->tile;
		c->sizes(c->ctx, some, &values, &codes);
		memcpy(t.code, from, values);
		memcpy(t.code + values, (const unsigned char *)in + all, codes);
		c->read(c->ctx, t.x, t.code, some);
		rotation_undo(r, t.x, some);
		for (uint64_t i = 0; i < some; i++)
			y[at + i] = add ? y[at + i] + t.x[i] : t.x[i];
		from += values;
		all += codes;
	}
}
