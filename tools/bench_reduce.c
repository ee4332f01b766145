#include "tools/bench.h"
#include <stdlib.h>

/* One gradient memory for all tensors; `at` gets their offsets, ntensors + 1. */
static float *gradients(const bench_options *o, uint64_t *at)
{
	at[0] = 0;
	for (uint32_t t = 0; t < o->ntensors; t++) {
		at[t + 1] = 1;
		for (uint32_t d = 0; d < o->shapes[t].ndim; d++)
			at[t + 1] *= o->shapes[t].dims[d];
		at[t + 1] += at[t];
	}
	return malloc((at[o->ntensors] + 1) * sizeof(float));
}

int bench_reduce(gradcomp_job *job, const bench_options *o, FILE *json, gradcomp_error *err)
{
	gradcomp_group *world = gradcomp_job_world(job);
	gradcomp_tensor_desc tensors[BENCH_TENSORS] = {{0}};
	gradcomp_reducer_stats stats = {.struct_size = sizeof stats};
	gradcomp_reducer *reducer = NULL;
	uint64_t at[BENCH_TENSORS + 1] = {0};
	uint32_t state = 12345u + (uint32_t)gradcomp_job_rank(job);
	double *seconds = calloc((size_t)o->iters, sizeof *seconds), median;
	float *g = gradients(o, at);
	int status = -1;
	if (!seconds || !g) {
		bench_failed(err, GRADCOMP_ERR_NOMEM, "no memory for the gradients");
		goto out;
	}
	for (uint32_t t = 0; t < o->ntensors; t++)
		tensors[t] = (gradcomp_tensor_desc){
			.dims = o->shapes[t].dims, .ndim = o->shapes[t].ndim, .dtype = GRADCOMP_F32};
	if (gradcomp_reducer_create(world, tensors, o->ntensors, NULL, &reducer, err) < 0)
		goto out;
	for (long i = -BENCH_WARM_UP; i < o->iters; i++) {
		for (uint64_t k = 0; k < at[o->ntensors]; k++) {
			state = state * 1664525u + 1013904223u;
			g[k] = (float)(int32_t)state * 0x1p-31f;
		}
		if (gradcomp_barrier(world, err) < 0)
			goto out;
		double start = clock_now();
		for (uint32_t t = o->ntensors; t-- > 0;)
			if (gradcomp_reducer_ready(reducer, t, g + at[t], err) < 0)
				goto out;
		if (gradcomp_reducer_wait(reducer, err) < 0)
			goto out;
		if (i >= 0)
			seconds[i] = clock_now() - start;
	}
	long grown = bench_resident() - o->resident_before - (long)((at[o->ntensors] + 1) * sizeof(float));
	if (bench_median(world, seconds, o->iters, &median, err) < 0)
		goto out;
	gradcomp_reducer_get_stats(reducer, &stats);
	double steps = (double)(stats.steps ? stats.steps : 1);
	if (gradcomp_job_rank(job) == 0)
		printf("%s, %s: %llu parameters on %d ranks: %.3f ms a step, %.0f bytes sent of %.0f dense, "
		       "%.2f MB of memory beside the gradients\n",
		       gradcomp_job_setting(job, "gradcomp.compressor"),
		       gradcomp_job_setting(job, "gradcomp.collective"), (unsigned long long)at[o->ntensors],
		       gradcomp_job_nranks(job), median * 1e3, stats.wire_bytes / steps, stats.dense_bytes / steps,
		       (double)grown / 1e6);
	if (json)
		fprintf(json,
		        " {\"parameters\": %llu, \"seconds\": %.9f, \"wire_bytes\": %.1f, \"dense_bytes\": %.1f, "
		        "\"resident_bytes\": %ld}",
		        (unsigned long long)at[o->ntensors], median, stats.wire_bytes / steps,
		        stats.dense_bytes / steps, grown);
	status = 0;
out:
	gradcomp_reducer_free(reducer);
	free(g);
	free(seconds);
	return status;
}
