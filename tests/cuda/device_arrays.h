/* For the tests of the device's operators: copies of host arrays on the device, whose
 * surroundings are watched. */
#ifndef TESTS_CUDA_DEVICE_ARRAYS_H
#define TESTS_CUDA_DEVICE_ARRAYS_H

#include <math.h>

#include "tests/support/magnitudes.h"
#include "tests/cuda/device_memory.h"

/* The tables that are compared. */
static const gradcomp_operators *gpu, *cpu;

/* `odd` bytes behind a boundary, with GUARD bytes on either side that stay as they
 * are. */
enum { GUARD = 64 };

typedef struct watched {
	uint8_t *base;
	void *at;
	size_t bytes, odd;
} watched;

static inline watched watch(const void *from, size_t bytes, size_t odd)
{
	watched w = {.bytes = bytes, .odd = odd};
	uint8_t *host = malloc(bytes + odd + 2 * GUARD);
	if (!host)
		exit(1);
	memset(host, 0x5a, bytes + odd + 2 * GUARD);
	if (from && bytes)
		memcpy(host + GUARD + odd, from, bytes);
	w.base = device_alloc(bytes + odd + 2 * GUARD);
	if (from) {
		to_device(w.base, host, bytes + odd + 2 * GUARD);
	} else { /* the bytes between stay as they were given out: unwritten, where that is looked for */
		to_device(w.base, host, GUARD + odd);
		to_device(w.base + GUARD + odd + bytes, host, GUARD);
	}
	w.at = w.base + GUARD + odd;
	free(host);
	return w;
}

/* The bytes into `to` (may be NULL), and whether nothing around them was written. */
static inline int unwatch(const watched *w, void *to)
{
	size_t all = w->bytes + w->odd + 2 * GUARD;
	uint8_t *host = malloc(all);
	int whole = 1;
	if (!host)
		exit(1);
	if (to) {
		from_device(host, w->base, all);
	} else {
		from_device(host, w->base, GUARD + w->odd);
		from_device(host + all - GUARD, w->base + all - GUARD, GUARD);
	}
	for (size_t i = 0; i < all; i++)
		if (i < GUARD + w->odd || i >= GUARD + w->odd + w->bytes)
			whole &= host[i] == 0x5a;
	if (to && w->bytes)
		memcpy(to, host + GUARD + w->odd, w->bytes);
	free(host);
	device_free(w->base);
	return whole;
}

/* Returns 1 when two arrays of floats have the same bits; NaNs that arithmetic made are alike. */
static inline int same_floats(const float *a, const float *b, size_t n)
{
	for (size_t i = 0; i < n; i++)
		if (memcmp(a + i, b + i, sizeof *a) && !(isnan(a[i]) && isnan(b[i])))
			return 0;
	return 1;
}

/* One number from the device. */
static inline double get_double(const void *p)
{
	double d;
	from_device(&d, p, sizeof d);
	return d;
}

#endif
