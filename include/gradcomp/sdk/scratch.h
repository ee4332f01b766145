/* A bucket's scratch: how much of it there must be, and what lies where. */
#ifndef GRADCOMP_SDK_SCRATCH_H
#define GRADCOMP_SDK_SCRATCH_H

#include "gradcomp/compressor.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The table whose *_scratch() functions hold for work of this layout: what plan() asks, which
 * knows of no work yet. Tables differ in how much they take. Never NULL. */
static inline const gradcomp_operators *sdk_layout_operators(const gradcomp_host *host, const gradcomp_layout *layout)
{
	const gradcomp_operators *there = NULL;
	if (GRADCOMP_HAS(layout, device) && layout->device != GRADCOMP_HOST && GRADCOMP_HAS(host, operators_on))
		there = host->operators_on(layout->device, NULL);
	return there ? there : host->operators;
}

/* Cuts memory into parts, each aligned to 64 bytes. One function that takes a bucket's parts serves
 * plan(), which begins with NULL and then gives `bytes` as scratch_bytes, and encode() and
 * decode(), which begin with work->scratch:
 *
 *     static parts divide(const mine *m, const gradcomp_bucket *bucket, sdk_scratch *s)
 *     {
 *             parts p;
 *             p.codes = (uint32_t *)sdk_scratch_take(s, bucket->numel * sizeof *p.codes);
 *             p.sent = (float *)sdk_scratch_take(s, bucket->numel * sizeof *p.sent);
 *             return p;
 *     }
 */
typedef struct sdk_scratch {
	char *memory;   /* aligned to 64, or NULL: lengths are only counted */
	uint64_t bytes; /* taken so far, a multiple of 64 */
} sdk_scratch;

/* Takes the next part, of `bytes` bytes, not zeroed; where there is no memory, an address of nothing. */
static inline void *sdk_scratch_take(sdk_scratch *s, uint64_t bytes)
{
	uintptr_t at = (uintptr_t)s->memory + s->bytes;
	s->bytes += (bytes + 63) / 64 * 64;
	return (void *)at;
}

#ifdef __cplusplus
}
#endif
#endif
