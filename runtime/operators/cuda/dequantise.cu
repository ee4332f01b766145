/* Back from few bits, and the check of what a peer sent. */
#include "operators/cuda/each.h"
#include "operators/cuda/cuda_quantise.h"

enum { SET, ADD, ERROR };

/* W numbers have their codes in one word. */
template <int WHAT, int BITS> struct value {
	struct code_word {
		uint32_t word;
		unsigned skip;
		float step;
	};
	const uint8_t *steps, *codes;
	const float *given;
	uint32_t groups;
	float a;

	template <int W> __device__ code_word ahead(size_t i) const
	{
		const size_t bit = i * BITS;
		const float step = given ? *given : load_float(steps + block_of(i, groups) * sizeof(float));
		return {load_word(codes + bit / 8, (W * BITS + 7) / 8), unsigned(bit % 8 / BITS), step};
	}
	template <class A, class B> __device__ float operator()(const code_word &c, size_t, int w, A x, B) const
	{
		const float v = float(code_of(c.word, c.skip + w, BITS)) * c.step;
		if constexpr (WHAT == SET)
			return v;
		else if constexpr (WHAT == ADD)
			return x + a * v;
		else
			return x - v;
	}
};

template <int WHAT, int BITS, class A>
static void each_value(void *queue, float *y, const A *x, float a, const void *in, size_t n,
                       const gradcomp_quantiser *q)
{
	const uint8_t *steps = static_cast<const uint8_t *>(in);
	const float *given = q->norm == GRADCOMP_NORM_GIVEN ? q->given : nullptr;
	each(queue, value<WHAT, BITS>{steps, steps + step_bytes(q, n), given, q->block / 32, a}, y, x, no_operand, n);
}

template <int WHAT, class A>
static void each_bits(void *queue, float *y, const A *x, float a, const void *in, size_t n, const gradcomp_quantiser *q)
{
	if (!quantised_bytes_cuda(q, n))
		return;
	if (q->bits == 8)
		each_value<WHAT, 8>(queue, y, x, a, in, n, q);
	else if (q->bits == 4)
		each_value<WHAT, 4>(queue, y, x, a, in, n, q);
	else
		each_value<WHAT, 2>(queue, y, x, a, in, n, q);
}

extern "C" void dequantise_cuda(void *queue, float *y, const void *in, size_t n, const gradcomp_quantiser *q)
{
	each_bits<SET>(queue, y, no_operand, 0, in, n, q);
}

extern "C" void dequantise_add_cuda(void *queue, float *y, float a, const void *in, size_t n,
                                    const gradcomp_quantiser *q)
{
	each_bits<ADD>(queue, y, y, a, in, n, q);
}

extern "C" void dequantise_error_cuda(void *queue, float *e, const float *x, const void *in, size_t n,
                                      const gradcomp_quantiser *q)
{
	each_bits<ERROR>(queue, e, x, 0, in, n, q);
}

static __global__ void __launch_bounds__(THREADS)
	check_kernel(int *fault, const uint8_t *steps, size_t nsteps, const uint8_t *codes, size_t n, quantiser q)
{
	bool bad = false;
	for (size_t s = thread_id(); s < nsteps; s += thread_count()) {
		const float step = load_float(steps + s * sizeof step);
		bad |= !(step >= 0 && step <= 0x1.fffffep127f) &&
		       !(q.norm == GRADCOMP_NORM_ABSMAX_OR_NAN && float_bits(step) == NAN_SCALE);
	}
	const unsigned most = 32 / q.bits;
	const int levels = int(q.levels);
	for (size_t w = thread_id(); w * most < n; w += thread_count()) {
		const unsigned count = n - w * most < most ? unsigned(n - w * most) : most;
		const uint32_t word = load_word(codes + 4 * w, unsigned(code_bytes(count, q.bits)));
		for (unsigned j = 0; j < count; j++) {
			const int c = code_of(word, j, q.bits);
			bad |= c > levels || c < -levels;
		}
	}
	if (bad)
		*fault = 1;
}

extern "C" void quantised_check_cuda(void *queue, int *fault, const void *in, size_t n, const gradcomp_quantiser *q)
{
	if (!n || !quantised_bytes_cuda(q, n))
		return;
	const uint8_t *steps = static_cast<const uint8_t *>(in);
	const size_t bytes = step_bytes(q, n);
	launch(check_kernel, blocks_for(n, THREADS * 8, 1 << 20), THREADS, 0, queue, fault, steps,
	       bytes / sizeof(float), steps + bytes, n, quantiser_of(q));
}
