/* out[i] = f(i, a[i], b[i]), as fast as memory is. Where all arrays stand on
 * boundaries of whole packs a thread moves up to 16 bytes at a time, several times;
 * elsewhere several single elements. out may be a or b. */
#ifndef OPERATORS_CUDA_EACH_H
#define OPERATORS_CUDA_EACH_H

#include "operators/cuda/cuda_device.h"

template <class T, int W> struct alignas(sizeof(T) * W) pack {
	T at[W];
};

/* The type of an operand that there is not. */
struct absent {
};

/* A functor that needs nothing ahead of its W elements derives from this; the others have their own ahead() and
 * take its result. */
struct element_wise {
	struct nothing {
	};
	template <int W> __device__ nothing ahead(size_t) const { return {}; }
};

template <class T, int W> INLINE pack<T, W> load_pack(const T *p, size_t i)
{
	if constexpr (sizeof(T) > 1 || !__is_empty(T))
		return *reinterpret_cast<const pack<T, W> *>(p + i);
	else
		return {};
}

template <class F, class O, class A, class B, int W>
INLINE void each_pack(const F &f, O *out, size_t i, const pack<A, W> &a, const pack<B, W> &b)
{
	auto ahead = f.template ahead<W>(i);
	pack<O, W> o;
#pragma unroll
	for (int w = 0; w < W; w++)
		o.at[w] = f(ahead, i + w, w, a.at[w], b.at[w]);
	*reinterpret_cast<pack<O, W> *>(out + i) = o;
}

template <class F, class O, class A, class B, int W, int U>
__global__ void __launch_bounds__(THREADS) each_kernel(F f, O *out, const A *a, const B *b, size_t n)
{
	const size_t packs = n / W, step = size_t(gridDim.x) * THREADS * U;
	for (size_t p = size_t(blockIdx.x) * THREADS * U + threadIdx.x; p < packs; p += step) {
		pack<A, W> av[U];
		pack<B, W> bv[U];
#pragma unroll
		for (int u = 0; u < U; u++)
			if (p + u * THREADS < packs) {
				av[u] = load_pack<A, W>(a, (p + u * THREADS) * W);
				bv[u] = load_pack<B, W>(b, (p + u * THREADS) * W);
			}
#pragma unroll
		for (int u = 0; u < U; u++)
			if (p + u * THREADS < packs)
				each_pack<F, O, A, B, W>(f, out, (p + u * THREADS) * W, av[u], bv[u]);
	}
	size_t i = packs * W + thread_id();
	if (W > 1 && i < n)
		each_pack<F, O, A, B, 1>(f, out, i, load_pack<A, 1>(a, i), load_pack<B, 1>(b, i));
}

template <class F, class O, class A, class B>
static void each(void *queue, F f, O *out, const A *a, const B *b, size_t n)
{
	constexpr size_t wide = sizeof(A) > sizeof(B) ? sizeof(A) : sizeof(B);
	constexpr int W = 16 / (sizeof(O) > wide ? sizeof(O) : wide);
	const size_t most = 1 << 20;
	if (!n)
		return;
	if (uintptr_t(out) % (sizeof(O) * W) || uintptr_t(a) % (sizeof(A) * W) || uintptr_t(b) % (sizeof(B) * W))
		launch(each_kernel<F, O, A, B, 1, 4>, blocks_for(n, THREADS * 4, most), THREADS, 0, queue, f, out, a, b,
		       n);
	else
		launch(each_kernel<F, O, A, B, W, 2>, blocks_for(n / W, THREADS * 2, most), THREADS, 0, queue, f, out,
		       a, b, n);
}

static const absent *const no_operand = nullptr;

#endif
