/* The functions of Box-Muller, for normal random numbers one at a time. No libm: its last bits
 * differ between machines, and ranks must draw alike. */
#ifndef OPERATORS_CPU_BOX_MULLER_H
#define OPERATORS_CPU_BOX_MULLER_H

#include <string.h>

#include "base/philox_block.h"
#include "operators/cpu/kernels.h"

/* ln x for normal x > 0: x = 2^e * m with m in [sqrt(1/2), sqrt(2)), then the
 * series of 2 atanh((m-1)/(m+1)); off by less than 1e-15 relative to 1. */
INLINE double log_fixed(double x)
{
	uint64_t b;
	memcpy(&b, &x, sizeof b);
	int e = (int)(b >> 52) - 1023;
	b = (b & 0xfffffffffffff) | (uint64_t)1023 << 52;
	double m;
	memcpy(&m, &b, sizeof m);
	if (m > 1.4142135623730951) {
		m *= 0.5;
		e++;
	}
	double s = (m - 1) / (m + 1), z = s * s, p = 1.0 / 21;
	for (int k = 19; k >= 1; k -= 2)
		p = p * z + 1.0 / k;
	return 2 * s * p + e * 0.6931471805599453;
}

/* cos and sin of 2 pi u, u = w / 2^32: the octant is exact in integers, Taylor
 * series do the rest on [0, pi/4]. */
INLINE void circle(uint32_t w, double *cosine, double *sine)
{
	uint32_t octant = w >> 29, rest = w & 0x1fffffff;
	if (octant & 1)
		rest = 0x20000000 - rest;
	double x = rest * (0.7853981633974483 / 0x1p29), z = x * x;
	double s =
		x * (1 + z * (-1.0 / 6 +
	                      z * (1.0 / 120 + z * (-1.0 / 5040 + z * (1.0 / 362880 + z * (-1.0 / 39916800 +
	                                                                                   z * (1.0 / 6227020800)))))));
	double c = 1 + z * (-1.0 / 2 +
	                    z * (1.0 / 24 +
	                         z * (-1.0 / 720 +
	                              z * (1.0 / 40320 +
	                                   z * (-1.0 / 3628800 + z * (1.0 / 479001600 + z * (-1.0 / 87178291200)))))));
	int swap = (octant + 1) & 2;
	*cosine = swap ? s : c;
	*sine = swap ? c : s;
	if (octant >= 2 && octant < 6)
		*cosine = -*cosine;
	if (octant >= 4)
		*sine = -*sine;
}

#endif
