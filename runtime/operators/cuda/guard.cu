/* Does something or leaves it alone as a word says, and computes such words. A kernel whose word says no reads that
 * word and ends. */
#include "operators/cuda/cuda_device.h"

static __global__ void any_set_kernel(int *out, const unsigned char *words, size_t width, size_t stride, size_t n)
{
	int any = 0;
	for (size_t i = threadIdx.x; i < n; i += WARP)
		for (size_t k = 0; k < width; k++)
			any |= words[i * stride + k] != 0;
	any = __ballot_sync(ALL_LANES, any) != 0;
	if (!threadIdx.x)
		*out = any;
}

extern "C" void any_set_cuda(void *queue, int *out, const void *words, size_t width, size_t stride, size_t n)
{
	launch(any_set_kernel, 1, WARP, 0, queue, out, static_cast<const unsigned char *>(words), width, stride, n);
}

static __global__ void put_flag_kernel(unsigned char *to, uint64_t bits, int bytes, const int *word)
{
	if (int(threadIdx.x) < bytes)
		to[threadIdx.x] = *word ? static_cast<unsigned char>(bits >> (8 * threadIdx.x)) : 0;
}

extern "C" void put_flag_cuda(void *queue, void *to, gradcomp_dtype dtype, const int *word)
{
	launch(put_flag_kernel, 1, WARP, 0, queue, static_cast<unsigned char *>(to), flag_bits(dtype),
	       int(gradcomp_dtype_bytes(dtype)), word);
}

static __global__ void __launch_bounds__(THREADS)
	copy_if_kernel(float *to, const float *from, size_t n, const int *word, int set)
{
	enum { AT_ONCE = 4 };
	const size_t step = size_t(gridDim.x) * THREADS * AT_ONCE;
	if ((*word != 0) != set)
		return;
	for (size_t i = size_t(blockIdx.x) * THREADS * AT_ONCE + threadIdx.x; i < n; i += step) {
		float v[AT_ONCE];
#pragma unroll
		for (int u = 0; u < AT_ONCE; u++)
			v[u] = i + u * THREADS < n ? from[i + u * THREADS] : 0;
#pragma unroll
		for (int u = 0; u < AT_ONCE; u++)
			if (i + u * THREADS < n)
				to[i + u * THREADS] = v[u];
	}
}

extern "C" void copy_if_cuda(void *queue, float *to, const float *from, size_t n, const int *word, int set)
{
	if (n)
		launch(copy_if_kernel, blocks_for(n, THREADS * 4, 1 << 10), THREADS, 0, queue, to, from, n, word,
		       int(set != 0));
}

static __global__ void __launch_bounds__(THREADS) fill_if_kernel(float *x, float a, size_t n, const int *word)
{
	if (*word)
		for (size_t i = thread_id(); i < n; i += size_t(gridDim.x) * THREADS)
			x[i] = a;
}

extern "C" void fill_if_cuda(void *queue, float *x, float a, size_t n, const int *word)
{
	if (n)
		launch(fill_if_kernel, blocks_for(n, THREADS, 1 << 10), THREADS, 0, queue, x, a, n, word);
}

static_assert(sizeof(gradcomp_act) == sizeof(gradcomp_segment) &&
                      offsetof(gradcomp_act, to) == offsetof(gradcomp_segment, x) &&
                      offsetof(gradcomp_act, n) == offsetof(gradcomp_segment, n) &&
                      offsetof(gradcomp_act, kind) == offsetof(gradcomp_segment, add),
              "tensors that fill_tensors_if() filled are acts");

struct acts {
	gradcomp_act at[GRADCOMP_ACTS];
	uint32_t count;
};

/* All blocks find the same, and the first one writes it. */
INLINE bool finds(const gradcomp_act &t, bool found)
{
	const char *words = static_cast<const char *>(t.from);
	int any = t.kind == GRADCOMP_ACT_FIND_TOO && found;
	for (uint64_t i = lane_id(); i < t.n; i += WARP)
		any |= *reinterpret_cast<const int *>(words + i * t.arg) != 0;
	any = __ballot_sync(ALL_LANES, any) != 0;
	if (!thread_id())
		*static_cast<int *>(t.to) = any;
	return any;
}

/* to[i] = from[i], or a without `from`. A number is always the same thread's. */
INLINE void put(float *to, const float *from, float a, size_t n)
{
	enum { AT_ONCE = 4 };
	const size_t step = size_t(gridDim.x) * THREADS * AT_ONCE;
	for (size_t i = size_t(blockIdx.x) * THREADS * AT_ONCE + threadIdx.x; i < n; i += step) {
		float v[AT_ONCE];
#pragma unroll
		for (int u = 0; u < AT_ONCE; u++)
			v[u] = from && i + u * THREADS < n ? from[i + u * THREADS] : a;
#pragma unroll
		for (int u = 0; u < AT_ONCE; u++)
			if (i + u * THREADS < n)
				to[i + u * THREADS] = v[u];
	}
}

static __global__ void __launch_bounds__(THREADS) act_kernel(acts all, float a, const int *word)
{
	u64 found = 0;
	for (unsigned k = 0; k < all.count; k++) {
		const gradcomp_act t = all.at[k];
		float *to = static_cast<float *>(t.to);
		if (t.kind == GRADCOMP_ACT_FIND || t.kind == GRADCOMP_ACT_FIND_TOO)
			found |= u64(finds(t, found != 0)) << k;
		else if (t.kind < GRADCOMP_ACT_FIND ? *word : t.by ? *t.by : int(found >> t.arg & 1))
			put(to, t.kind == GRADCOMP_ACT_COPY ? static_cast<const float *>(t.from) : nullptr,
			    t.kind < GRADCOMP_ACT_FIND ? a : 0, t.n);
	}
}

extern "C" void act_if_cuda(void *queue, const gradcomp_act *act, size_t count, float a, const int *word)
{
	for (size_t i = 0; i < count; i += GRADCOMP_ACTS) {
		acts some = {};
		size_t most = 0;
		some.count = uint32_t(count - i < GRADCOMP_ACTS ? count - i : size_t(GRADCOMP_ACTS));
		for (uint32_t k = 0; k < some.count; k++) {
			some.at[k] = act[i + k];
			most = act[i + k].n > most ? act[i + k].n : most;
		}
		launch(act_kernel, blocks_for(most, THREADS * 4, 1 << 10), THREADS, 0, queue, some, a, word);
	}
}
