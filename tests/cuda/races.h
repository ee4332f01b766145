/* Happens-before for kernels under the emulation, where they are compiled with GRADCOMP_RACES and the compiler's
 * -fsanitize=thread, but without its runtime: tests/cuda/races.cpp has the functions that the compiler calls.
 *
 * Only __syncthreads() orders the threads of a block, and __syncwarp() those of a warp. Shuffles and ballots order
 * nothing, atomics do not race with atomics, blocks of a launch are not ordered, and launches are. Looked at is the
 * memory that these functions give out: shared arrays, and the device's. Two writes of the same value are no race, as
 * with a flag that many threads set. One thread calls all of this.
 *
 * With RACES_COUNT in the environment it looks for no races, but counts what a GPU's memory would have to move. */
#ifndef TESTS_CUDA_RACES_H
#define TESTS_CUDA_RACES_H

#include <cstddef>

#ifdef GRADCOMP_RACES
/* The device's memory on a boundary of 256 bytes, of which all is free again when none is in use. */
void *races_device_alloc(size_t bytes);
void races_device_free(void *p);
/* Shared memory of a block, until the next races_block(). `name` lives on. */
void *races_shared(const char *name, size_t bytes);
void races_launch(const void *kernel);
void races_block(size_t block);
/* All threads of the block have come to a barrier. */
void races_barrier();
/* Thread `me` goes on, or has stopped. */
void races_go(unsigned me);
void races_stop();
/* It has passed a __syncwarp(). */
void races_warp();
/* It is about to do an atomic operation, at `pc`. */
void races_atomic(const void *p, size_t bytes, const void *pc);
/* Between launches the device reads `bytes` of `from`, or writes them to `to`, or both; either may be NULL, or host memory. */
void races_copy(const void *to, const void *from, size_t bytes);
/* Bytes of the device's memory that were read and written until now, in sectors of 32, the least that it moves, each once a
 * launch: as with caches that hold all that a launch uses and nothing from one to the next. Returns false where nobody
 * counts. */
bool races_moved(long *read, long *written);
/* Blocks that a grid of `most` may have: two where races are looked for, so that loops over it run more than once. */
size_t races_blocks(size_t most);
#define UNSEEN __attribute__((no_sanitize("thread"), noinline))
#else
static inline void races_launch(const void *)
{
}
static inline void races_block(size_t)
{
}
static inline void races_barrier()
{
}
static inline void races_go(unsigned)
{
}
static inline void races_stop()
{
}
static inline void races_warp()
{
}
static inline void races_atomic(const void *, size_t, const void *)
{
}
static inline void races_copy(const void *, const void *, size_t)
{
}
static inline bool races_moved(long *, long *)
{
	return false;
}
#define UNSEEN
#endif

#endif
