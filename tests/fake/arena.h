/* An allocator of the program's, for reducers and coders on a device: options device_alloc and
 * device_release. What is given back while it is worked on shows. */
#ifndef TESTS_FAKE_ARENA_H
#define TESTS_FAKE_ARENA_H

#include "tests/fake/gpu_model.h"

#include <stdbool.h>

/* The program's memory of the device: what is given back is spoilt at once. */
enum { ARENA = 64 << 20, BLOCKS = 1024, GAP = 512 };
typedef struct arena {
	pthread_mutex_t lock;
	cudaStream_t stream;
	char *base;
	size_t used, at[BLOCKS], bytes[BLOCKS];
	bool live[BLOCKS];
	int n, refuse, shift; /* the n-th is refused; all begin so many bytes on */
} arena;

static void spoil(const arena *a, void *p, size_t bytes)
{
	cuda_must(cudaMemsetAsync(p, 0xff, bytes, a->stream), "poison");
	cuda_must(cudaStreamSynchronize(a->stream), "poison");
}

static void *arena_alloc(void *ctx, size_t bytes, void *stream)
{
	arena *a = ctx;
	void *p = NULL;
	pthread_mutex_lock(&a->lock);
	if (stream && a->n < BLOCKS && a->used + bytes + GAP <= ARENA && a->n + 1 != a->refuse) {
		a->at[a->n] = a->used + (size_t)a->shift;
		a->bytes[a->n] = bytes;
		a->live[a->n] = true;
		p = a->base + a->at[a->n++];
		a->used += (bytes + 2 * GAP - 1) / GAP * GAP;
		spoil(a, p, bytes);
	}
	pthread_mutex_unlock(&a->lock);
	return p;
}

static void arena_release(void *ctx, void *p)
{
	arena *a = ctx;
	pthread_mutex_lock(&a->lock);
	for (int i = 0; i < a->n; i++)
		if (a->live[i] && a->base + a->at[i] == p) {
			spoil(a, p, a->bytes[i]);
			a->live[i] = false;
			p = NULL;
		}
	pthread_mutex_unlock(&a->lock);
	if (p)
		raise(SIGABRT); /* none of its own */
}

static void arena_open(arena *a)
{
	void *base;
	*a = (arena){.lock = PTHREAD_MUTEX_INITIALIZER};
	cuda_must(cudaMalloc(&base, ARENA), "an arena");
	cuda_must(cudaStreamCreateWithFlags(&a->stream, cudaStreamNonBlocking), "a stream");
	a->base = base;
	gpu_memory = (gpu_model_memory){arena_alloc, arena_release, a};
}

/* How many blocks were not given back, or written to afterwards. */
static int arena_close(arena *a)
{
	unsigned char *now = malloc(ARENA);
	int live = 0;
	cuda_must(cudaMemcpyAsync(now, a->base, ARENA, cudaMemcpyDefault, a->stream), "copy");
	cuda_must(cudaStreamSynchronize(a->stream), "copy");
	for (int i = 0; i < a->n; i++) {
		size_t whole = 0;
		while (whole < a->bytes[i] && now[a->at[i] + whole] == 0xff)
			whole++;
		live += a->live[i] || whole < a->bytes[i];
	}
	free(now);
	cuda_must(cudaFree(a->base), "the arena");
	cudaStreamDestroy(a->stream);
	gpu_memory = (gpu_model_memory){0};
	return live;
}

#endif
