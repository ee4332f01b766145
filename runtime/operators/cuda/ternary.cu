/* Ternary numbers, five to a byte (TernGrad, Wen et al. 2017). */
#include "operators/cuda/cuda_random.h"
#include "operators/cuda/each.h"

enum { FIVE = 5, ZEROS = 121, MOST = 242 };

static __global__ void __launch_bounds__(THREADS)
	pack_kernel(uint8_t *out, const float *x, size_t n, const float *scale, drawing d)
{
	const float s = *scale;
	const size_t bytes = (n + FIVE - 1) / FIVE;
	for (size_t b = thread_id(); b < bytes; b += thread_count()) {
		unsigned sum = ZEROS, power = 1;
		float u[FIVE];
		if (s > 0) {
			draw_uniform<FIVE>(u, d, b * FIVE);
			sum = 0;
			for (size_t j = 0, i = b * FIVE; j < FIVE; j++, i++, power *= 3) {
				const float v = i < n ? x[i] : 0;
				const bool kept = u[j] < bits_float(key_of(v)) / s;
				sum += power * (kept ? float_bits(v) >> 31 ? 0 : 2 : 1);
			}
		}
		out[b] = uint8_t(sum);
	}
}

extern "C" void ternary_pack_cuda(void *queue, uint8_t *out, const float *x, size_t n, const float *scale,
                                  uint64_t seed, uint64_t stream, uint64_t first)
{
	if (n)
		launch(pack_kernel, blocks_for(n, FIVE * THREADS, 1 << 20), THREADS, 0, queue, out, x, n, scale,
		       drawing{seed, stream, first});
}

struct digit : element_wise {
	const uint8_t *in;
	const float *scale;
	int *fault;
	float a;
	digit(const uint8_t *bytes, const float *s, int *f, float factor) : in(bytes), scale(s), fault(f), a(factor) {}
	__device__ float operator()(nothing, size_t i, int, float y, absent) const
	{
		const size_t b = i <= UINT32_MAX ? uint32_t(i) / FIVE : i / FIVE;
		const unsigned byte = in[b], j = unsigned(i - b * FIVE);
		const unsigned power = j == 0 ? 1 : j == 1 ? 3 : j == 2 ? 9 : j == 3 ? 27 : 81;
		if (byte > MOST)
			*fault = 1;
		const int t = byte > MOST ? 0 : int(byte / power % 3) - 1;
		return y + a * (*scale * float(t));
	}
};

extern "C" void ternary_add_cuda(void *queue, float *y, float a, const uint8_t *in, const float *scale, size_t n,
                                 int *fault)
{
	each(queue, digit(in, scale, fault, a), y, y, no_operand, n);
}
