/* A reducer's device memory: where it comes from, and when it may go back. */
#include "reducer/gpu/gpu.h"

#include <stdlib.h>

/* Given back while the streams may have work on it; it goes when both events have come. */
struct gpu_left {
	gpu_left *next;
	void *p, *after[2];
};

const char *gpu_alloc(gpu *g, void **p, size_t bytes)
{
	gpu_sweep(g);
	return device_memory_take(&g->memory, p, bytes, g->compute);
}

static void forget(gpu *g, gpu_left *l)
{
	device_memory_give_back(&g->memory, l->p);
	for (int k = 0; k < 2; k++)
		g->d->event_free(l->after[k]);
	free(l);
}

static bool is_over(const gpu *g, const gpu_left *l)
{
	int done = 1;
	for (int k = 0; done && k < 2; k++)
		if (g->d->test(l->after[k], &done))
			done = 1; /* the device is lost */
	return done;
}

void gpu_sweep(gpu *g)
{
	gpu_left *over = NULL, **at = &g->left, *l;
	if (!__atomic_load_n(&g->left, __ATOMIC_RELAXED))
		return;
	pthread_mutex_lock(&g->left_lock);
	while ((l = *at))
		if (is_over(g, l)) {
			__atomic_store_n(at, l->next, __ATOMIC_RELAXED);
			l->next = over;
			over = l;
		} else {
			at = &l->next;
		}
	pthread_mutex_unlock(&g->left_lock);
	for (gpu_left *next; over; over = next) {
		next = over->next;
		forget(g, over);
	}
}

void gpu_release(gpu *g, void *p)
{
	void *const streams[] = {g->compute, g->exchange};
	gpu_left *l;
	const char *why = NULL;
	if (!p)
		return;
	l = calloc(1, sizeof *l);
	for (int k = 0; l && !why && k < 2; k++) {
		why = g->d->event(&l->after[k]);
		if (!why)
			why = g->d->record(l->after[k], streams[k]);
	}
	if (!l || why) {
		gpu_flush(g);
		device_memory_give_back(&g->memory, p);
		for (int k = 0; l && k < 2; k++)
			g->d->event_free(l->after[k]);
		free(l);
		return;
	}
	l->p = p;
	pthread_mutex_lock(&g->left_lock);
	l->next = g->left;
	__atomic_store_n(&g->left, l, __ATOMIC_RELAXED);
	pthread_mutex_unlock(&g->left_lock);
	gpu_sweep(g);
}

void gpu_release_all(gpu *g)
{
	gpu_flush(g);
	for (gpu_left *next; g->left; g->left = next) {
		next = g->left->next;
		forget(g, g->left);
	}
}
