#include "tools/bench.h"
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* Messages below this are sent many times a sample. */
enum { SMALL = 65536, SMALL_CALLS = 100 };

long bench_resident(void)
{
	long size, resident = 0;
	FILE *f = fopen("/proc/self/statm", "r");
	if (!f)
		return 0;
	if (fscanf(f, "%ld %ld", &size, &resident) != 2)
		resident = 0;
	fclose(f);
	return resident * sysconf(_SC_PAGESIZE);
}

gradcomp_status bench_median(gradcomp_group *world, double *seconds, long n, double *out, gradcomp_error *err)
{
	gradcomp_status st = gradcomp_allreduce(world, seconds, (uint64_t)n, GRADCOMP_F64, GRADCOMP_MAX, err);
	if (st < 0)
		return st;
	*out = fit_median(seconds, (size_t)n);
	return GRADCOMP_OK;
}

int bench_failed(gradcomp_error *err, gradcomp_status status, const char *fmt, ...)
{
	va_list ap;
	err->status = status;
	va_start(ap, fmt);
	vsnprintf(err->text, sizeof err->text, fmt, ap);
	va_end(ap);
	return -1;
}

static int sums_right(gradcomp_group *world, float *buf, uint64_t count, gradcomp_error *err)
{
	int rank = gradcomp_group_rank(world), n = gradcomp_group_nranks(world);
	int32_t wrong = 0;
	for (uint64_t i = 0; i < count; i++)
		buf[i] = (float)(rank + 1) * (float)(i % 97);
	if (gradcomp_allreduce(world, buf, count, GRADCOMP_F32, GRADCOMP_SUM, err) < 0)
		return -1;
	for (uint64_t i = 0; i < count; i++)
		wrong |= buf[i] != (float)(n * (n + 1) / 2) * (float)(i % 97);
	if (gradcomp_allreduce(world, &wrong, 1, GRADCOMP_I32, GRADCOMP_BOR, err) < 0)
		return -1;
	return wrong ? bench_failed(err, GRADCOMP_ERR_INTERNAL, "an all-reduce gave a wrong sum") : 0;
}

int bench_allreduce(gradcomp_job *job, const bench_options *o, FILE *json, gradcomp_error *err)
{
	gradcomp_group *world = gradcomp_job_world(job);
	int first = gradcomp_job_rank(job) == 0, status = -1;
	double *seconds = calloc((size_t)o->iters, sizeof *seconds), median;
	float *buf = NULL;
	if (!seconds)
		return bench_failed(err, GRADCOMP_ERR_NOMEM, "no memory for the samples");
	if (first)
		printf("%14s %14s %12s   all-reduce, %d ranks\n", "bytes", "microseconds", "GB/s",
		       gradcomp_job_nranks(job));
	for (uint32_t s = 0; s < o->nsizes; s++) {
		uint64_t count = o->sizes[s] / sizeof(float);
		int calls = o->sizes[s] < SMALL ? SMALL_CALLS : 1;
		free(buf);
		buf = calloc(count + 1, sizeof *buf);
		if (!buf) {
			bench_failed(err, GRADCOMP_ERR_NOMEM, "no memory for the buffer");
			goto out;
		}
		if (sums_right(world, buf, count, err) < 0)
			goto out;
		memset(buf, 0, count * sizeof *buf);
		for (long i = -BENCH_WARM_UP; i < o->iters; i++) {
			if (gradcomp_barrier(world, err) < 0)
				goto out;
			double start = clock_now();
			for (int c = 0; c < calls; c++)
				if (gradcomp_allreduce(world, buf, count, GRADCOMP_F32, GRADCOMP_SUM, err) < 0)
					goto out;
			if (i >= 0)
				seconds[i] = (clock_now() - start) / calls;
		}
		if (bench_median(world, seconds, o->iters, &median, err) < 0)
			goto out;
		if (first)
			printf("%14llu %14.1f %12.3f\n", (unsigned long long)o->sizes[s], median * 1e6,
			       (double)o->sizes[s] / median / 1e9);
		if (json)
			fprintf(json, "%s {\"bytes\": %llu, \"seconds\": %.9f, \"ranks\": %d, \"correct\": true}",
			        s ? ",\n" : "", (unsigned long long)o->sizes[s], median, gradcomp_job_nranks(job));
	}
	status = 0;
out:
	free(buf);
	free(seconds);
	return status;
}
