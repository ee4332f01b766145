/* Numbers are multiplied with an orthonormal matrix before they are coded, and with its transpose when they have been
 * decoded: random signs, then a Walsh-Hadamard matrix. What stands out in a block is spread over its neighbours, so that a
 * scale is not as large as one number alone asks for (DRIVE: Vargaftik 2021, arXiv 2105.08339; EDEN: Vargaftik 2022,
 * arXiv 2108.08842; THC: Li 2024, arXiv 2302.08545).
 *
 * A run of numbers is cut into pieces of `width`, what is left at its end into powers of two, the largest first. The
 * signs are those of a number's place among `width`, drawn from a seed that never changes: they are the same in every
 * step, on all ranks and in every job. So what is decoded can be added up, the code of a run is those of its parts, and
 * no seed makes noise of what is no noise. Any thread. */
#ifndef PLUGINS_COMMON_COMPRESSORS_ROTATION_H
#define PLUGINS_COMMON_COMPRESSORS_ROTATION_H

#include "gradcomp/compressor.h"

enum { ROTATION_WIDEST = 1024, ROTATION_TILE = 4096 };

#define ROTATION_ROW \
	{ \
		.name = "rotate", .type = GRADCOMP_PARAM_BOOL, .def = "no", \
		.help = "random signs and a Hadamard transform, then the code; on the host alone", \
	}

typedef struct rotation {
	uint64_t width; /* a power of two; 0: there is no rotation */
	uint64_t tile;  /* numbers that are coded at once: whole blocks */
	float sign[ROTATION_WIDEST];
} rotation;

/* Fails with INVALID where `block`, the numbers that share a scale, is beyond ROTATION_TILE. */
gradcomp_status rotation_check(const gradcomp_host *host, const char *name, uint64_t block, gradcomp_error *err);
/* The width is the largest power of two that divides `block` (a multiple of 32), at most ROTATION_WIDEST. Fails with
 * UNSUPPORTED for work that is not on the host, and as rotation_check(). */
gradcomp_status rotation_open(rotation *r, const gradcomp_host *host, const char *name, uint64_t block,
                              const gradcomp_layout *layout, gradcomp_error *err);

/* x becomes its rotation, or what that was made of, to rounding. */
void rotation_apply(const rotation *r, float *x, uint64_t n);
void rotation_undo(const rotation *r, float *x, uint64_t n);

/* A code whose payload of n numbers is values, then codes. */
typedef struct rotation_code {
	void *ctx;
	void (*sizes)(void *ctx, uint64_t n, uint64_t *values, uint64_t *codes); /* in bytes */
	/* x is number `at` of the run and those behind it; `out` and `in` are the code of these alone. */
	void (*pack)(void *ctx, void *out, const float *x, uint64_t n, uint64_t at);
	void (*read)(void *ctx, float *y, const void *in, uint64_t n);
} rotation_code;

/* out = the code of x, rotated; y = what a code says, or with `add` y += that. One tile after another. */
void rotation_pack(const rotation *r, const rotation_code *c, void *out, const float *x, uint64_t n);
void rotation_read(const rotation *r, const rotation_code *c, float *y, const void *in, uint64_t n, int add);

#endif
