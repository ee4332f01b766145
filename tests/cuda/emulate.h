/* CUDA in one thread of the host, so that kernels can be tested where there is no
 * GPU: what runtime/operators/cuda/cuda_device.h needs of the language and its library.
 *
 * The blocks of a launch run one after another, in an order that changes from
 * launch to launch. The threads of a block are fibers that give way at barriers and
 * warp collectives only; each stretch between them runs in another order, so a
 * missing barrier shows. Shared memory is fresh for every block, of the exact size,
 * and full of rubbish. A barrier that not all threads reach ends the program.
 * Memory models and everything about speed are not emulated. Races that no order shows are looked for where this is
 * compiled with GRADCOMP_RACES: races.h. */
#ifndef TESTS_CUDA_EMULATE_H
#define TESTS_CUDA_EMULATE_H

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "tests/cuda/races.h"

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __launch_bounds__(...)

struct dim3 {
	unsigned x, y, z;
	dim3(unsigned a = 1, unsigned b = 1, unsigned c = 1) : x(a), y(b), z(c) {}
};

extern dim3 threadIdx, blockIdx, blockDim, gridDim;

/* `kernel` is its address. */
void emulate_launch(const void *kernel, dim3 blocks, unsigned threads, size_t shared, void (*call)(void *), void *body);
void emulate_barrier();
/* All 32 values of a warp, each of at most 8 bytes, once all lanes have come. */
const uint64_t *emulate_warp(uint64_t mine);
void *emulate_shared(const void *key, const char *name, size_t bytes);
void *emulate_shared_dynamic();

#define SHARED(type, name, count) \
	static char name##_key; \
	type *const name = static_cast<type *>(emulate_shared(&name##_key, #name, sizeof(type) * (count)))
#define SHARED_DYNAMIC(type, name) type *const name = static_cast<type *>(emulate_shared_dynamic())

template <class... P, class... A>
static void launch(void (*kernel)(P...), dim3 blocks, unsigned threads, size_t shared, void *queue, A... args)
{
	(void)queue;
	auto body = [&] { kernel(args...); };
	emulate_launch(
		reinterpret_cast<const void *>(kernel), blocks, threads, shared,
		[](void *b) { (*static_cast<decltype(body) *>(b))(); }, &body);
}

/* After emulate_fail(k) launch number k from then on, from 1, does not take place, and
 * nothing after it until device_error() has been asked. */
void emulate_fail(long k);
bool device_refuses();
const char *device_error();

/* Counts what has been put on a queue until now: launches, copies and fills. */
extern long emulate_queued;

template <auto KERNEL> static void allow_shared(size_t)
{
}
static inline void device_copy(void *, void *to, const void *from, size_t bytes)
{
	emulate_queued++;
	if (device_refuses())
		return;
	races_copy(to, from, bytes);
	memcpy(to, from, bytes);
}
static inline void device_zero(void *, void *to, size_t bytes)
{
	emulate_queued++;
	if (device_refuses())
		return;
	races_copy(to, nullptr, bytes);
	memset(to, 0, bytes);
}

static inline void __syncthreads()
{
	emulate_barrier();
}
static inline void __syncwarp()
{
	emulate_warp(0);
	races_warp();
}

template <class T> static T emulate_lane(T v, unsigned lane)
{
	static_assert(sizeof(T) <= 8, "a register or two");
	uint64_t mine = 0;
	memcpy(&mine, &v, sizeof v);
	memcpy(&v, &emulate_warp(mine)[lane], sizeof v);
	return v;
}
static inline unsigned emulate_me()
{
	return threadIdx.x % 32;
}
template <class T> static T __shfl_sync(unsigned, T v, int lane)
{
	return emulate_lane(v, unsigned(lane) % 32);
}
template <class T> static T __shfl_xor_sync(unsigned, T v, int bits)
{
	return emulate_lane(v, emulate_me() ^ unsigned(bits));
}
template <class T> static T __shfl_up_sync(unsigned, T v, unsigned by)
{
	return emulate_lane(v, emulate_me() < by ? emulate_me() : emulate_me() - by);
}
static inline unsigned __ballot_sync(unsigned, int yes)
{
	const uint64_t *all = emulate_warp(yes != 0);
	unsigned mask = 0;
	for (unsigned i = 0; i < 32; i++)
		mask |= unsigned(all[i]) << i;
	return mask;
}

static inline int __popc(unsigned v)
{
	return __builtin_popcount(v);
}
static inline int __clz(int v)
{
	return v ? __builtin_clz(unsigned(v)) : 32;
}
static inline float __fmaf_rn(float a, float b, float c)
{
	return fmaf(a, b, c);
}
static inline double __fma_rn(double a, double b, double c)
{
	return fma(a, b, c);
}
template <class T> UNSEEN T atomicAdd(T *p, T v)
{
	races_atomic(p, sizeof *p, __builtin_return_address(0));
	T was = *p;
	*p = T(was + v);
	return was;
}
template <class T> UNSEEN T atomicMax(T *p, T v)
{
	races_atomic(p, sizeof *p, __builtin_return_address(0));
	T was = *p;
	*p = was > v ? was : v;
	return was;
}

#endif
