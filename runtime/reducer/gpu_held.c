/* held.c's sample of a tensor in GPU memory: the runs are copied together, and added up
 * where they are. */
#include "gpu.h"

static size_t take(const gpu *g, float *to, const float *x, uint64_t n)
{
	uint64_t rows = n / HELD_EVERY, rest = n % HELD_EVERY;
	uint64_t tail = rest < HELD_RUN ? rest : HELD_RUN;
	const size_t run = HELD_RUN * sizeof(float);
	g->d->copy_rows(g->compute, to, run, x, HELD_EVERY * sizeof(float), run, rows);
	g->d->copy(g->compute, to + rows * HELD_RUN, x + rows * HELD_EVERY, tail * sizeof(float));
	return rows * HELD_RUN + tail;
}

void gpu_sample(gradcomp_reducer *r, const float *x, const float *more, uint64_t n, double *out)
{
	const gpu *g = r->gpu;
	size_t taken = take(g, g->sample, x, n);
	if (more) {
		take(g, g->sample_more, more, n);
		g->ops->add(g->compute, g->sample, g->sample_more, taken);
	}
	g->ops->sum_squares(g->compute, out, g->sample, taken, g->sum_room);
}
