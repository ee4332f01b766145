/* Whole buckets: one launch reads or writes many tensors. Blocks have chunks of a tensor
 * each; what a chunk found out is in its place of the scratch memory, and a second
 * launch adds that up by tensor, in order. */
#include "operators/cuda/cuda_kinds.h"
#include "operators/cuda/each.h"

enum { CHUNK = 2 * GRADCOMP_SAMPLE_EVERY, TENSORS_AT_ONCE = 80, PACKS_AT_ONCE = 4 };
static_assert(GRADCOMP_SAMPLE_RUN <= THREADS, "a thread has one number of a run");

struct tensors {
	gradcomp_segment at[TENSORS_AT_ONCE];
	uint32_t first[TENSORS_AT_ONCE + 1]; /* chunk of a tensor */
	uint32_t count;
};

struct chunk_part {
	double squares;
	uint32_t bad;
};

/* The tensor that a block works for: the last one that begins at or before it. */
INLINE unsigned tensor_of(const tensors &all, unsigned block)
{
	unsigned low = 0, high = all.count;
	while (high - low > 1) {
		const unsigned middle = (low + high) / 2;
		if (all.first[middle] <= block)
			low = middle;
		else
			high = middle;
	}
	return low;
}

/* This thread's share of the sampled squares of x + more in a chunk; either may be NULL. */
INLINE double sampled(const float *x, const float *more, size_t from, size_t to)
{
	double s = 0;
	for (size_t at = from + threadIdx.x; threadIdx.x < GRADCOMP_SAMPLE_RUN && at < to;
	     at += GRADCOMP_SAMPLE_EVERY) {
		const double v = (x ? double(x[at]) : 0) + (more ? double(more[at]) : 0);
		s += v * v;
	}
	return s;
}

template <class T, int W> INLINE bool on_pack(const T *p)
{
	return reinterpret_cast<uintptr_t>(p) % (sizeof(T) * W) == 0;
}

/* x = grad, or grad + error, in packs of W; the largest key of x, before it is made finite. */
template <class KIND, int W> INLINE uint32_t load_packs(const gradcomp_segment &t, size_t from, size_t to)
{
	typedef typename KIND::type T;
	const T *grad = static_cast<const T *>(t.grad);
	const bool add = t.error && t.add & GRADCOMP_SEGMENT_ADD, store = add || t.grad != t.x;
	const uint32_t end = t.add & GRADCOMP_SEGMENT_FINITE ? KEY_INF : ~0u;
	uint32_t most = 0;
	for (size_t i = from + threadIdx.x * W; i < to; i += THREADS * W * PACKS_AT_ONCE) {
		pack<T, W> g[PACKS_AT_ONCE];
		pack<float, W> e[PACKS_AT_ONCE] = {};
#pragma unroll
		for (int u = 0; u < PACKS_AT_ONCE; u++)
			if (i + u * THREADS * W < to) {
				g[u] = load_pack<T, W>(grad, i + u * THREADS * W);
				if (add)
					e[u] = load_pack<float, W>(t.error, i + u * THREADS * W);
			}
#pragma unroll
		for (int u = 0; u < PACKS_AT_ONCE; u++)
			if (i + u * THREADS * W < to) {
				pack<float, W> x;
				bool cleared = false;
#pragma unroll
				for (int w = 0; w < W; w++) {
					float v = KIND::wide(g[u].at[w]);
					if (add)
						v += e[u].at[w];
					most = key_of(v) > most ? key_of(v) : most;
					cleared |= key_of(v) >= end;
					x.at[w] = key_of(v) >= end ? 0 : v;
				}
				if (store || cleared)
					*reinterpret_cast<pack<float, W> *>(t.x + i + u * THREADS * W) = x;
			}
	}
	return most;
}

template <class KIND> INLINE uint32_t load_chunk(const gradcomp_segment &t, size_t from, size_t to)
{
	const size_t whole = from + (to - from) / 4 * 4;
	if (!on_pack<float, 4>(t.x) || !on_pack<float, 4>(t.error) ||
	    !on_pack<typename KIND::type, 4>(static_cast<const typename KIND::type *>(t.grad)))
		return load_packs<KIND, 1>(t, from, to);
	const uint32_t most = load_packs<KIND, 4>(t, from, whole), rest = load_packs<KIND, 1>(t, whole, to);
	return most > rest ? most : rest;
}

static __global__ void __launch_bounds__(THREADS, 4) load_kernel(tensors all, chunk_part *part, bool squares, int *any)
{
	SHARED(double, room, WARP);
	SHARED(uint32_t, keys, WARP);
	const unsigned i = tensor_of(all, blockIdx.x);
	const gradcomp_segment t = all.at[i];
	const size_t from = size_t(blockIdx.x - all.first[i]) * CHUNK, to = from + CHUNK < t.n ? from + CHUNK : t.n;
	uint32_t most = 0;
	double s = 0;
	switch (t.dtype) {
	case GRADCOMP_F32:
		most = load_chunk<f32>(t, from, to);
		break;
	case GRADCOMP_F16:
		most = load_chunk<f16>(t, from, to);
		break;
	case GRADCOMP_BF16:
		most = load_chunk<bf16>(t, from, to);
		break;
	case GRADCOMP_F8E4M3:
		most = load_chunk<f8e4m3>(t, from, to);
		break;
	default:
		most = load_chunk<f8e5m2>(t, from, to);
	}
	/* Other threads have loaded the numbers that are sampled. */
	__syncthreads();
	if (squares)
		s = block_fold(sampled(t.x, t.add & GRADCOMP_SEGMENT_ADD ? nullptr : t.error, from, to), sum_of(),
		               room);
	most = block_fold(most, largest_of(), keys);
	if (threadIdx.x)
		return;
	part[blockIdx.x] = chunk_part{s, most >= KEY_INF};
	if (any && most >= KEY_INF)
		*any = 1;
}

/* grad = x, or NaN both. */
template <class KIND, int W> INLINE void store_packs(const gradcomp_segment &t, size_t from, size_t to, bool poisoned)
{
	typedef typename KIND::type T;
	T *grad = t.grad == t.x ? nullptr : static_cast<T *>(t.grad);
	for (size_t i = from + threadIdx.x * W; i < to; i += THREADS * W) {
		pack<float, W> x;
		pack<T, W> g;
		if (poisoned) {
#pragma unroll
			for (int w = 0; w < W; w++)
				x.at[w] = bits_float(0x7fc00000);
			*reinterpret_cast<pack<float, W> *>(t.x + i) = x;
		} else
			x = load_pack<float, W>(t.x, i);
#pragma unroll
		for (int w = 0; w < W; w++)
			g.at[w] = KIND::narrow(x.at[w], 0);
		if (grad)
			*reinterpret_cast<pack<T, W> *>(grad + i) = g;
	}
}

template <class KIND> INLINE void store_chunk(const gradcomp_segment &t, size_t from, size_t to, bool poisoned)
{
	const size_t whole = from + (to - from) / 4 * 4;
	if (!poisoned && (!t.grad || t.grad == t.x))
		return;
	if (!on_pack<float, 4>(t.x) ||
	    !on_pack<typename KIND::type, 4>(static_cast<const typename KIND::type *>(t.grad))) {
		store_packs<KIND, 1>(t, from, to, poisoned);
		return;
	}
	store_packs<KIND, 4>(t, from, whole, poisoned);
	store_packs<KIND, 1>(t, whole, to, poisoned);
}

static __global__ void __launch_bounds__(THREADS)
	store_kernel(tensors all, const int *poison, chunk_part *part, bool squares)
{
	SHARED(double, room, WARP);
	const unsigned i = tensor_of(all, blockIdx.x);
	const gradcomp_segment t = all.at[i];
	const size_t from = size_t(blockIdx.x - all.first[i]) * CHUNK, to = from + CHUNK < t.n ? from + CHUNK : t.n;
	const bool poisoned = poison && *poison;
	switch (t.dtype) {
	case GRADCOMP_F32:
		store_chunk<f32>(t, from, to, poisoned);
		break;
	case GRADCOMP_F16:
		store_chunk<f16>(t, from, to, poisoned);
		break;
	case GRADCOMP_BF16:
		store_chunk<bf16>(t, from, to, poisoned);
		break;
	case GRADCOMP_F8E4M3:
		store_chunk<f8e4m3>(t, from, to, poisoned);
		break;
	default:
		store_chunk<f8e5m2>(t, from, to, poisoned);
	}
	if (!squares)
		return;
	const double s = block_fold(t.error ? sampled(nullptr, t.error, from, to) : 0, sum_of(), room);
	if (!threadIdx.x)
		part[blockIdx.x] = chunk_part{s, 0};
}

/* A warp a tensor. */
static __global__ void fold_parts(tensors all, const chunk_part *part, int *bad, double *squares)
{
	const unsigned i = blockIdx.x;
	double s = 0;
	uint32_t any = 0;
	for (unsigned c = all.first[i] + threadIdx.x; c < all.first[i + 1]; c += WARP) {
		s += part[c].squares;
		any |= part[c].bad;
	}
	s = warp_fold(s, sum_of());
	any = warp_fold(any, largest_of());
	if (threadIdx.x)
		return;
	if (bad)
		bad[i] = int(any);
	if (squares)
		squares[i] = s;
}

static size_t chunks_of(uint64_t n)
{
	return (n + CHUNK - 1) / CHUNK;
}

static bool known(const gradcomp_segment *t, size_t count)
{
	for (size_t i = 0; i < count; i++)
		if (t[i].dtype != GRADCOMP_F32 && t[i].dtype != GRADCOMP_F16 && t[i].dtype != GRADCOMP_BF16 &&
		    t[i].dtype != GRADCOMP_F8E4M3 && t[i].dtype != GRADCOMP_F8E5M2)
			return false;
	return true;
}

/* Calls with(part, first, chunks) for up to TENSORS_AT_ONCE tensors at a time. */
template <class F> static void some_tensors(const gradcomp_segment *t, size_t count, const F &with)
{
	for (size_t i = 0; i < count; i += TENSORS_AT_ONCE) {
		tensors all = {};
		all.count = uint32_t(count - i < TENSORS_AT_ONCE ? count - i : size_t(TENSORS_AT_ONCE));
		for (uint32_t j = 0; j < all.count; j++) {
			all.at[j] = t[i + j];
			all.first[j + 1] = all.first[j] + uint32_t(chunks_of(t[i + j].n));
		}
		with(all, i, all.first[all.count]);
	}
}

extern "C" size_t tensors_scratch_cuda(const gradcomp_segment *t, size_t count)
{
	size_t chunks = 0;
	for (size_t i = 0; i < count; i++)
		chunks += chunks_of(t[i].n);
	return (chunks * sizeof(chunk_part) + 63) / 64 * 64;
}

extern "C" gradcomp_status load_tensors_cuda(void *queue, const gradcomp_segment *t, size_t count, int *bad,
                                             double *squares, void *scratch)
{
	chunk_part *part = static_cast<chunk_part *>(scratch);
	const bool asks = count && t[count - 1].add & GRADCOMP_SEGMENT_ANY;
	count -= asks;
	int *any = asks ? static_cast<int *>(t[count].grad) : nullptr;
	if (!known(t, count))
		return GRADCOMP_ERR_UNSUPPORTED;
	some_tensors(t, count, [=](const tensors &all, size_t first, unsigned chunks) {
		if (chunks)
			launch(load_kernel, chunks, THREADS, 0, queue, all, part, squares != nullptr, any);
		launch(fold_parts, all.count, WARP, 0, queue, all, part, bad + first,
		       squares ? squares + first : nullptr);
	});
	return GRADCOMP_OK;
}

extern "C" gradcomp_status store_tensors_cuda(void *queue, const gradcomp_segment *t, size_t count, const int *poison,
                                              double *squares, void *scratch)
{
	chunk_part *part = static_cast<chunk_part *>(scratch);
	if (!known(t, count))
		return GRADCOMP_ERR_UNSUPPORTED;
	some_tensors(t, count, [=](const tensors &all, size_t first, unsigned chunks) {
		bool writes = poison || squares;
		for (uint32_t i = 0; i < all.count; i++)
			writes |= all.at[i].grad && all.at[i].grad != all.at[i].x;
		if (chunks && writes)
			launch(store_kernel, chunks, THREADS, 0, queue, all, poison, part, squares != nullptr);
		if (squares)
			launch(fold_parts, all.count, WARP, 0, queue, all, part, nullptr, squares + first);
	});
	return GRADCOMP_OK;
}
