/* Selection by magnitude, all of it on the queue.
 *
 * The k-th largest key is found digit by digit, 12, 10 and 9 bits. The first
 * histogram reads x once and keeps what each segment of x counted, so that one more
 * pass can write the elements from the k-th's bin upwards, in order, to their places
 * among the candidates; all the rest works on these. Where they would not fit (ties)
 * the rest works on x. Elements are taken in two passes, counting and writing, so
 * that they come out in order and nobody waits for another block. */
#ifndef OPERATORS_CUDA_CUDA_SELECT_H
#define OPERATORS_CUDA_CUDA_SELECT_H

#include "operators/cuda/cuda_device.h"

enum { SELECT_THREADS = 512, SELECT_SEGMENTS = 528, SELECT_SHARE = 16384 };
/* Blocks that a multiprocessor is to hold. What is compiled for sm_80 also goes, as text, to GPUs whose
 * multiprocessors have 1536 threads; those of H100 and B200 have 2048. */
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
#define SELECT_BLOCKS 4
#else
#define SELECT_BLOCKS 3
#endif
enum { DIGIT0 = 4096, DIGIT1 = 1024, DIGIT2 = 512, SUM_PARTS = 288 };

struct selection {
	uint32_t bin;    /* the k-th's, of the first histogram */
	uint32_t prefix; /* the digits known */
	uint32_t rest;   /* which of those with that prefix it is */
	uint32_t picked; /* how many candidates there are; 0: take x */
	uint32_t above;  /* keys from here on are taken */
	uint32_t low;    /* so are some of those from here on */
	uint32_t top;    /* largest key */
	double mean;
};

/* Where things are in the scratch memory. */
struct select_room {
	selection *s;
	uint32_t *digit0, *digit1, *digit2;
	u64 *sum;                 /* the sum of magnitudes: exponents of 2 */
	uint32_t *above, *middle; /* those of each segment */
	uint32_t *rows;           /* each segment's first histogram; NULL: no candidates */
	float *val;
	uint32_t *idx;
	uint32_t most; /* candidates */
	unsigned segments;
};

size_t select_scratch(size_t n, size_t k);
select_room select_layout(void *scratch, size_t n, size_t k);
/* The key of the k-th largest; with `sums` also the mean and the largest. */
void select_key(void *queue, const select_room &room, const float *x, size_t n, size_t k, bool sums);
/* Counts what reaches s->above and s->low in each segment. */
void select_count(void *queue, const select_room &room, const float *x, size_t n);

/* The search goes over these: x, or the candidates. */
struct source {
	const float *val;
	const uint32_t *idx;
	size_t n;
};

INLINE source source_of(const select_room &room, const float *x, size_t n)
{
	return room.s->picked ? source{room.val, room.idx, room.s->picked} : source{x, nullptr, n};
}

/* A block's segment of n elements: whole warps of them. */
INLINE size_t segment_size(size_t n)
{
	return ((n + gridDim.x - 1) / gridDim.x + WARP - 1) / WARP * WARP;
}

/* The least key of the magnitudes that are at least t. */
INLINE uint32_t reach_of(double t)
{
	if (t <= 0)
		return 0;
	if (!(t <= double(bits_float(KEY_INF - 1))))
		return KEY_INF;
	float f = float(t);
	return float_bits(f) + (f < t);
}

/* How many there are of two kinds. */
struct counts {
	uint32_t x, y;
};

/* Sums of count[0 .. upto - 1] and of all, to all threads. */
INLINE counts counts_before(const uint32_t *count, unsigned upto, unsigned all, uint32_t *room)
{
	counts c = {0, 0};
	for (unsigned g = threadIdx.x; g < all; g += blockDim.x) {
		c.x += g < upto ? count[g] : 0;
		c.y += count[g];
	}
	c.x = block_fold(c.x, sum_of(), room);
	__syncthreads();
	c.y = block_fold(c.y, sum_of(), room);
	__syncthreads();
	return c;
}

enum { LEFT_OUT, ABOVE, MIDDLE };

/* Walks over src[from..to) in order. kind(key) is one of the above, MIDDLE only where
 * BOTH says so; emit(i, kind, a, m) is called for those not left out, with how many of each
 * kind are before it, beginning with `before`. */
template <bool BOTH, class K, class E>
INLINE void walk(const float *val, size_t from, size_t to, counts before, const K &kind, const E &emit)
{
	enum { ROWS = 8, TILE = SELECT_THREADS * ROWS };
	SHARED(uint32_t, all_above, WARP);
	SHARED(uint32_t, all_middle, WARP);
	const unsigned warps = SELECT_THREADS / WARP, w = warp_id(), l = lane_id(), below = (1u << l) - 1;
	/* A segment is short: its own numbering takes half the registers. */
	const float *const src = val + from;
	const uint32_t n = from < to ? uint32_t(to - from) : 0;
	for (uint32_t tile = 0; tile < n; tile += TILE) {
		const uint32_t first = tile + w * (WARP * ROWS) + l;
		uint32_t key[ROWS], above[ROWS], middle[ROWS], na = 0, nm = 0;
#pragma unroll
		for (int u = 0; u < ROWS; u++)
			key[u] = first + u * WARP < n ? key_of(src[first + u * WARP]) : 0;
#pragma unroll
		for (int u = 0; u < ROWS; u++) {
			int is = first + u * WARP < n ? kind(key[u]) : LEFT_OUT;
			above[u] = __ballot_sync(ALL_LANES, is == ABOVE);
			middle[u] = BOTH ? __ballot_sync(ALL_LANES, is == MIDDLE) : 0;
			na += __popc(above[u]);
			nm += __popc(middle[u]);
		}
		if (!l) {
			all_above[w] = na;
			if (BOTH)
				all_middle[w] = nm;
		}
		__syncthreads();
		counts at = before;
		for (unsigned v = 0; v < warps; v++) {
			at.x += v < w ? all_above[v] : 0;
			before.x += all_above[v];
			if (BOTH) {
				at.y += v < w ? all_middle[v] : 0;
				before.y += all_middle[v];
			}
		}
#pragma unroll
		for (int u = 0; u < ROWS; u++) {
			if ((above[u] | middle[u]) >> l & 1)
				emit(from + first + u * WARP, above[u] >> l & 1 ? ABOVE : MIDDLE,
				     at.x + __popc(above[u] & below), at.y + __popc(middle[u] & below));
			at.x += __popc(above[u]);
			at.y += __popc(middle[u]);
		}
		__syncthreads();
	}
}

#endif
