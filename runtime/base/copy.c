#include "base/copy.h"

#include <string.h>

#ifdef __SSE2__
#include <emmintrin.h>
#include <stdint.h>

/* Whole lines, so that each leaves the processor's write-combining buffer at once. */
#define LINE 64

void copy_nontemporal(void *dst, const void *src, size_t bytes)
{
	unsigned char *to = dst;
	const unsigned char *from = src;
	size_t lead = -(uintptr_t)to & (LINE - 1);
	if (bytes < lead + LINE) {
		memcpy(to, from, bytes);
		return;
	}
	memcpy(to, from, lead);
	to += lead, from += lead, bytes -= lead;
	for (; bytes >= LINE; to += LINE, from += LINE, bytes -= LINE) {
		const __m128i *in = (const __m128i *)(const void *)from;
		__m128i a = _mm_loadu_si128(in), b = _mm_loadu_si128(in + 1), c = _mm_loadu_si128(in + 2),
			d = _mm_loadu_si128(in + 3);
		__m128i *out = (__m128i *)(void *)to;

		_mm_stream_si128(out, a);
		_mm_stream_si128(out + 1, b);
		_mm_stream_si128(out + 2, c);
		_mm_stream_si128(out + 3, d);
	}
	_mm_sfence();
	memcpy(to, from, bytes);
}
#else
void copy_nontemporal(void *dst, const void *src, size_t bytes)
{
	memcpy(dst, src, bytes);
}
#endif
