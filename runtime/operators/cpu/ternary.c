/* Ternary numbers, five to a byte (TernGrad, Wen et al. 2017). */
#include "lanes.h"
#include "philox.h"

/* Numbers at a time: whole bytes, and whole vectors. */
enum { FIVE = 5, TERNARY_PIECE = 640 };
/* Five zeros, and the largest byte. */
enum { TERNARY_ZEROS = 121, TERNARY_MOST = 242 };

/* t + 1 of 32 numbers, one to a byte. */
INLINE void draw32(uint8_t *out, const float *x, const float *u, float scale)
{
	v8i t[4];
	UNROLL
	for (int j = 0; j < 4; j++) {
		v8f v = LOAD8(x + 8 * j);
		v8i kept = (v8i)(LOAD8(u + 8 * j) < ABS8(v) / scale), negative = (v8i)v >> 31 & kept;
		t[j] = 1 + ((-kept ^ negative) - negative);
	}
	narrow32(out, t, 8);
}

/* The sum of (t + 1) 3^j is byte 4 of one product; no lower byte reaches 256. */
INLINE uint8_t join5(const uint8_t *t)
{
	uint64_t w;
	memcpy(&w, t, sizeof w);
	return (uint8_t)(w * (81 | 27 << 8 | 9 << 16 | 3 << 24 | (uint64_t)1 << 32) >> 32);
}

void KERNEL(ternary_pack)(void *queue, uint8_t *out, const float *x, size_t n, const float *scale, uint64_t seed,
                          uint64_t stream, uint64_t first)
{
	(void)queue;
	_Alignas(64) float tile[PHILOX_ROOM(TERNARY_PIECE)];
	uint8_t t[TERNARY_PIECE + 8];
	if (!(*scale > 0)) {
		memset(out, TERNARY_ZEROS, (n + FIVE - 1) / FIVE);
		return;
	}
	for (size_t i = 0; i < n; i += TERNARY_PIECE) {
		size_t count = n - i < TERNARY_PIECE ? n - i : TERNARY_PIECE, j = 0;
		const float *u = philox_tile(tile, (count + 31) / 32 * 32, seed, stream, first + i);
		for (; j + 32 <= count; j += 32)
			draw32(t + j, x + i + j, u + j, *scale);
		if (j < count) {
			float rest[32] = {0};
			memcpy(rest, x + i + j, (count - j) * sizeof *x);
			draw32(t + j, rest, u + j, *scale);
		}
		memset(t + count, 1, FIVE);
		for (j = 0; j < count; j += FIVE)
			*out++ = join5(t + j);
	}
}

/* t of every byte, one to a byte, so that five are one load and one store. */
#define DIGIT(b, power, at) ((uint64_t)(uint8_t)((b) > TERNARY_MOST ? 0 : (b) / (power) % 3 - 1) << 8 * (at))
#define DIGITS(b) DIGIT(b, 1, 0) | DIGIT(b, 3, 1) | DIGIT(b, 9, 2) | DIGIT(b, 27, 3) | DIGIT(b, 81, 4)
#define DIGITS4(b) DIGITS(b), DIGITS((b) + 1), DIGITS((b) + 2), DIGITS((b) + 3)
#define DIGITS16(b) DIGITS4(b), DIGITS4((b) + 4), DIGITS4((b) + 8), DIGITS4((b) + 12)
#define DIGITS64(b) DIGITS16(b), DIGITS16((b) + 16), DIGITS16((b) + 32), DIGITS16((b) + 48)
static const uint64_t split[256] = {DIGITS64(0), DIGITS64(64), DIGITS64(128), DIGITS64(192)};

void KERNEL(ternary_add)(void *queue, float *y, float a, const uint8_t *in, const float *scale, size_t n,
                         int *fault)
{
	(void)queue;
	uint8_t t[TERNARY_PIECE + 8];
	int bad = 0;
	for (size_t i = 0; i < n; i += TERNARY_PIECE) {
		size_t count = n - i < TERNARY_PIECE ? n - i : TERNARY_PIECE, j = 0;
		for (; j < count; j += FIVE) {
			memcpy(t + j, &split[*in], sizeof *split);
			bad |= *in++ > TERNARY_MOST;
		}
		for (j = 0; j + 32 <= count; j += 32) {
			v8i c[4];
			widen32(c, t + j, 8);
			UNROLL
			for (size_t k = 0; k < 4; k++) {
				v8f v = a * (*scale * __builtin_convertvector(c[k], v8f));
				STORE8(y + i + j + 8 * k, LOAD8(y + i + j + 8 * k) + v);
			}
		}
		for (; j < count; j++)
			y[i + j] += a * (*scale * (float)(int8_t)t[j]);
	}
	if (bad)
		*fault = 1;
}
