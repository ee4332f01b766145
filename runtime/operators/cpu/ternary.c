/* Ternary numbers, five to a byte (TernGrad, Wen et al. 2017). */
#include "operators/cpu/lanes.h"
#include "operators/cpu/philox.h"

/* Numbers at a time: whole bytes, and whole vectors. */
enum { TERNARY_BYTE = 5, TERNARY_PIECE = 640 };
/* Five zeros, and the largest byte. */
enum { TERNARY_ZEROS = 121, TERNARY_MOST = 242 };

/* t + 1 of 32 numbers, one to a byte. */
INLINE void draw32(uint8_t *out, const float *x, const float *u, float scale)
{
	v8i t[4];
	UNROLL
	for (int j = 0; j < 4; j++) {
		v8f v = LOAD8(x + 8 * j);
		v8i kept = (v8i)(LOAD8(u + 8 * j) < ABS8(v) / scale), negative = (v8i)(v < 0) & kept;
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
		memset(out, TERNARY_ZEROS, (n + TERNARY_BYTE - 1) / TERNARY_BYTE);
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
		memset(t + count, 1, TERNARY_BYTE);
		for (j = 0; j < count; j += TERNARY_BYTE)
			*out++ = join5(t + j);
	}
}

/* t of every byte, one to a byte, so that five are one load and one store. */
#define TERNARY_T(b, power) ((uint64_t)(uint8_t)((b) > TERNARY_MOST ? 0 : (b) / (power) % 3 - 1))
#define TERNARY_1(b) \
	TERNARY_T(b, 1) | TERNARY_T(b, 3) << 8 | TERNARY_T(b, 9) << 16 | TERNARY_T(b, 27) << 24 | TERNARY_T(b, 81) << 32
#define TERNARY_4(b) TERNARY_1(b), TERNARY_1((b) + 1), TERNARY_1((b) + 2), TERNARY_1((b) + 3)
#define TERNARY_16(b) TERNARY_4(b), TERNARY_4((b) + 4), TERNARY_4((b) + 8), TERNARY_4((b) + 12)
#define TERNARY_64(b) TERNARY_16(b), TERNARY_16((b) + 16), TERNARY_16((b) + 32), TERNARY_16((b) + 48)
static const uint64_t ternary_digits[256] = {TERNARY_64(0), TERNARY_64(64), TERNARY_64(128), TERNARY_64(192)};

void KERNEL(ternary_add)(void *queue, float *y, float a, const uint8_t *in, const float *scale, size_t n, int *fault)
{
	(void)queue;
	uint8_t t[TERNARY_PIECE + 8];
	int bad = 0;
	for (size_t i = 0; i < n; i += TERNARY_PIECE) {
		size_t count = n - i < TERNARY_PIECE ? n - i : TERNARY_PIECE, j = 0;
		for (; j < count; j += TERNARY_BYTE) {
			memcpy(t + j, &ternary_digits[*in], sizeof *ternary_digits);
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
