/* The small vocabulary that all kernels are written in. The same source is compiled
 * by nvcc, and by a C++ compiler of the host against tests/cuda/emulate.h, where it
 * is held against the host's operators without a GPU.
 *
 * Nothing here waits for the device, allocates, or is run when the module is loaded.
 * Blocks have whole warps, and all lanes of a warp take part in its collectives.
 * Kernels are compiled without contraction, so that a * b + c rounds twice, as on
 * the host; what may round once says __fmaf_rn(). Floating-point sums never go
 * through atomics: their order would differ from run to run. */
#ifndef OPERATORS_CUDA_CUDA_DEVICE_H
#define OPERATORS_CUDA_CUDA_DEVICE_H

#ifdef GRADCOMP_EMULATE
#include "tests/cuda/emulate.h"
#else
#include <atomic>
#include <cuda_runtime.h>
#include <stdint.h>
#include <string.h>

#define SHARED(type, name, count) __shared__ type name[count]
#define SHARED_DYNAMIC(type, name) \
	extern __shared__ double shared_dynamic[]; \
	type *const name = reinterpret_cast<type *>(shared_dynamic)

/* Returns true when a launch has failed: what is put on a queue then would work on rubbish, so nothing is until
 * device_error() has been asked. */
static inline bool device_refuses()
{
	return cudaPeekAtLastError() != cudaSuccess;
}

template <class... P, class... A>
static void launch(void (*kernel)(P...), dim3 blocks, unsigned threads, size_t shared, void *queue, A... args)
{
	if (!device_refuses())
		kernel<<<blocks, threads, shared, static_cast<cudaStream_t>(queue)>>>(args...);
}

/* More than 48 KiB of shared memory must be asked for: as much as KERNEL ever takes, or
 * as there is, once a device. Where a launch wants more than that it fails. */
template <auto KERNEL> static void allow_shared(size_t most)
{
	static std::atomic<uint64_t> asked;
	int id = 0, there = 0;
	if (device_refuses() || cudaGetDevice(&id))
		return;
	if (id < 64 && asked >> id & 1)
		return;
	if (cudaDeviceGetAttribute(&there, cudaDevAttrMaxSharedMemoryPerBlockOptin, id))
		return;
	/* Two threads that come here at once ask for the same. */
	cudaFuncSetAttribute(KERNEL, cudaFuncAttributeMaxDynamicSharedMemorySize,
	                     there < int(most) ? there : int(most));
	asked |= uint64_t(1) << id % 64;
}

/* Default: one side may be host memory, see copy(). */
static inline void device_copy(void *queue, void *to, const void *from, size_t bytes)
{
	if (!device_refuses())
		cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, static_cast<cudaStream_t>(queue));
}

static inline void device_zero(void *queue, void *to, size_t bytes)
{
	if (!device_refuses())
		cudaMemsetAsync(to, 0, bytes, static_cast<cudaStream_t>(queue));
}

/* Returns, in CUDA's words, the failure of this thread since this was last asked, or NULL. */
static inline const char *device_error()
{
	const cudaError_t e = cudaGetLastError();
	return e ? cudaGetErrorString(e) : nullptr;
}
#endif

/* The table's prototypes, with this device's names; and the host's scalar code. */
#define KERNEL(name) name##_cuda
#include "gradcomp/operators.h"
extern "C" {
#include "operators/cpu/kernels.h"
}
#undef INLINE
#define INLINE static inline __device__
#include "operators/cpu/half.h"

#define ALL_LANES 0xffffffffu

typedef unsigned long long u64;

enum { WARP = 32, THREADS = 256 };

INLINE unsigned lane_id()
{
	return threadIdx.x % WARP;
}

INLINE unsigned warp_id()
{
	return threadIdx.x / WARP;
}

INLINE size_t thread_id()
{
	return size_t(blockIdx.x) * blockDim.x + threadIdx.x;
}

INLINE size_t thread_count()
{
	return size_t(gridDim.x) * blockDim.x;
}

/* A float without its sign, read as an integer, sorts like its magnitude. */
#define KEY_INF 0x7f800000u

INLINE uint32_t key_of(float x)
{
	return float_bits(x) & 0x7fffffff;
}

/* The largest key of this thread's N numbers, which stand THREADS apart from i on.
 * All are loaded before one is looked at. */
template <int N> INLINE uint32_t most_key(const float *x, size_t i, size_t n)
{
	uint32_t key[N], most = 0;
#pragma unroll
	for (int u = 0; u < N; u++)
		key[u] = i + u * THREADS < n ? key_of(x[i + u * THREADS]) : 0;
#pragma unroll
	for (int u = 0; u < N; u++)
		most = key[u] > most ? key[u] : most;
	return most;
}

struct sum_of {
	template <class T> __device__ T operator()(T a, T b) const { return a + b; }
};
struct largest_of {
	template <class T> __device__ T operator()(T a, T b) const { return a > b ? a : b; }
};

/* Folds the values of all lanes in a fixed order, and gives the result to all lanes. */
template <class T, class F> INLINE T warp_fold(T v, F f)
{
	for (int d = WARP / 2; d; d /= 2)
		v = f(v, __shfl_xor_sync(ALL_LANES, v, d));
	return v;
}

/* Folds the values of the block in a fixed order, and gives the result to all threads. `room` is 32 T of shared
 * memory, free again after the next barrier. */
template <class T, class F> INLINE T block_fold(T v, F f, T *room)
{
	unsigned warps = blockDim.x / WARP;
	v = warp_fold(v, f);
	if (!lane_id())
		room[warp_id()] = v;
	__syncthreads();
	v = room[0];
	for (unsigned w = 1; w < warps; w++)
		v = f(v, room[w]);
	return v;
}

/* Blocks for `count` pieces of work, `most` a block at a time. */
static inline unsigned blocks_for(size_t count, size_t each, size_t most)
{
	size_t blocks = (count + each - 1) / each;
	return unsigned(blocks < 1 ? 1 : blocks > most ? most : blocks);
}

#endif
