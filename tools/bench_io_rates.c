/* The figures of gradcomp bench io. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "tools/bench.h"
#include "tools/bench_io.h"

enum { GATHER = 16 << 20, PASSES = 3 };

/* The slowest rank's seconds and all ranks' sum of bytes. */
static gradcomp_status together(const bench_dataset *b, double *seconds, double *bytes, gradcomp_error *err)
{
	gradcomp_status st = gradcomp_allreduce(b->world, seconds, 1, GRADCOMP_F64, GRADCOMP_MAX, err);
	return st ? st : gradcomp_allreduce(b->world, bytes, 1, GRADCOMP_F64, GRADCOMP_SUM, err);
}

static void row(const bench_dataset *b, const char *name, double value, const char *unit, const char *than,
                double other)
{
	if (gradcomp_job_rank(b->job))
		return;
	printf("%-28s %12.3f %s", name, value, unit);
	if (than)
		printf("   %.3f %s, ratio %.3f", other, than, value / other);
	putchar('\n');
	if (!b->json)
		return;
	json_put_object(b->json, NULL);
	json_put_string(b->json, "case", name);
	json_put_float(b->json, "value", value);
	json_put_string(b->json, "unit", unit);
	if (than) {
		json_put_string(b->json, "peer", than);
		json_put_float(b->json, "peer_value", other);
	}
	json_put_end(b->json);
}

int bench_epochs(bench_dataset *b, gradcomp_error *err)
{
	for (int64_t e = 0; e < b->epochs; e++) {
		gradcomp_value_view v = {.struct_size = sizeof v};
		double bytes = 0, seconds, n = 0;
		char name[64];
		if (gradcomp_barrier(b->world, err))
			return -1;
		double start = clock_now();
		if (gradcomp_dataset_begin(b->ds, (uint64_t)e, 0, err))
			return -1;
		for (;; gradcomp_dataset_release(b->ds, &v)) {
			if (gradcomp_dataset_next(b->ds, &v, err))
				return -1;
			if (!v.data)
				break;
			memcpy(b->out, v.data, v.bytes);
			bytes += (double)v.bytes;
			n++;
		}
		seconds = clock_now() - start;
		if (together(b, &seconds, &bytes, err) ||
		    gradcomp_allreduce(b->world, &n, 1, GRADCOMP_F64, GRADCOMP_SUM, err))
			return -1;
		if (n != (double)b->count)
			return bench_failed(err, GRADCOMP_ERR_INTERNAL, "epoch %lld had %.0f samples of %llu",
			                    (long long)e, n, (unsigned long long)b->count);
		snprintf(name, sizeof name, "epoch %lld", (long long)e + 1);
		row(b, name, seconds, "s", NULL, 0);
		snprintf(name, sizeof name, "epoch %lld, all ranks", (long long)e + 1);
		row(b, name, bytes / seconds / 1e6, "MB/s", NULL, 0);
	}
	return 0;
}

/* Copies the values out; their bytes and the time it took, by this rank. */
static int copy_out(bench_dataset *b, const uint64_t *indices, uint64_t n, double *bytes, double *seconds,
                    gradcomp_error *err)
{
	double start = clock_now();
	*bytes = 0;
	for (uint64_t i = 0; i < n; i++) {
		gradcomp_value_view v = {.struct_size = sizeof v};
		if (gradcomp_dataset_get(b->ds, indices[i], &v, err))
			return -1;
		memcpy(b->out, v.data, v.bytes);
		*bytes += (double)v.bytes;
		gradcomp_dataset_release(b->ds, &v);
	}
	*seconds = clock_now() - start;
	return 0;
}

/* Copies as many bytes in as many pieces from memory of this process, in order as well: that is how values made in
 * this rank's order lie. */
static int memcpy_rate(const bench_dataset *b, double *rate, gradcomp_error *err)
{
	uint64_t n = b->nown ? b->nown : 1, bytes = b->own_bytes / n + 1;
	unsigned char *all = malloc(n * bytes + 1);
	double t[PASSES];
	if (!all)
		return bench_failed(err, GRADCOMP_ERR_NOMEM, "no memory for a copy of the values");
	memset(all, 1, n * bytes + 1);
	for (int p = 0; p < PASSES; p++) {
		double start = clock_now();
		for (uint64_t i = 0; i < n; i++) {
			memcpy(b->out, all + i * bytes, bytes);
			__asm__ volatile("" : : "r"(b->out) : "memory");
		}
		t[p] = clock_now() - start;
	}
	free(all);
	*rate = (double)(n * bytes) / fit_median(t, PASSES);
	return 0;
}

int bench_local_values(bench_dataset *b, gradcomp_error *err)
{
	double t[PASSES], bytes = 0, rate = 0;
	if (gradcomp_barrier(b->world, err) || memcpy_rate(b, &rate, err) || gradcomp_barrier(b->world, err))
		return -1;
	for (int p = 0; p < PASSES; p++)
		if (copy_out(b, b->own, b->nown, &bytes, &t[p], err))
			return -1;
	row(b, "local values, a rank", bytes / fit_median(t, PASSES) / 1e6, "MB/s", "MB/s by memcpy", rate / 1e6);
	return 0;
}

static int link_rate(const bench_dataset *b, double *rate, gradcomp_error *err)
{
	uint64_t n = (uint64_t)gradcomp_job_nranks(b->job), *counts = calloc(n, sizeof *counts);
	char *all = calloc(n, GATHER);
	double t[PASSES], slowest;
	int status = 0;
	if (!counts || !all)
		status = bench_failed(err, GRADCOMP_ERR_NOMEM, "out of memory");
	for (uint64_t r = 0; counts && r < n; r++)
		counts[r] = GATHER;
	for (int p = -1; !status && p < PASSES; p++) {
		double start = clock_now();
		if (gradcomp_barrier(b->world, err) ||
		    gradcomp_allgather(b->world, all + (uint64_t)gradcomp_job_rank(b->job) * GATHER, all, counts,
		                       GRADCOMP_U8, err))
			status = -1;
		if (p >= 0)
			t[p] = clock_now() - start;
	}
	free(all);
	free(counts);
	if (status || bench_median(b->world, t, PASSES, &slowest, err))
		return -1;
	*rate = (double)(n - 1) * GATHER / slowest;
	return 0;
}

int bench_remote_values(bench_dataset *b, gradcomp_error *err)
{
	double link = 0, bytes = 0, seconds = 0, most;
	if (link_rate(b, &link, err))
		return -1;
	most = (double)b->nothers;
	if (gradcomp_allreduce(b->world, &most, 1, GRADCOMP_F64, GRADCOMP_MAX, err) || most == 0)
		return most == 0 ? 0 : -1;
	if (gradcomp_barrier(b->world, err) || gradcomp_dataset_expect(b->ds, b->others, b->nothers, err) ||
	    copy_out(b, b->others, b->nothers, &bytes, &seconds, err) || together(b, &seconds, &bytes, err))
		return -1;
	row(b, "remote values, a rank", bytes / gradcomp_job_nranks(b->job) / seconds / 1e6, "MB/s",
	    "MB/s by all-gather", link / 1e6);
	return 0;
}

static void sleep_ms(int64_t ms)
{
	struct timespec t = {.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000};
	while (nanosleep(&t, &t) && errno == EINTR)
		;
}

/* The third epoch, in batches, with a sleep for the computing. */
int bench_steps(bench_dataset *b, gradcomp_error *err)
{
	double alone = clock_now(), with;
	int64_t done = 0;
	for (int64_t i = 0; i < b->steps; i++)
		sleep_ms(b->step_ms);
	alone = clock_now() - alone;
	if (gradcomp_dataset_begin(b->ds, 2, 0, err) || gradcomp_barrier(b->world, err))
		return -1;
	sleep_ms(b->step_ms); /* a trainer does not begin with its first batch either */
	with = clock_now();
	for (int over = 0; done < b->steps && !over; done += !over) {
		for (int64_t k = 0; k < b->batch && !over; k++) {
			gradcomp_value_view v = {.struct_size = sizeof v};
			if (gradcomp_dataset_next(b->ds, &v, err))
				return -1;
			over = !v.data;
			if (v.data)
				memcpy(b->out, v.data, v.bytes);
			gradcomp_dataset_release(b->ds, &v);
		}
		if (!over)
			sleep_ms(b->step_ms);
	}
	with = done ? (clock_now() - with) / (double)done : 0;
	if (gradcomp_allreduce(b->world, &with, 1, GRADCOMP_F64, GRADCOMP_MAX, err))
		return -1;
	row(b, "a step with its batch", with * 1e3, "ms", "ms without", alone / (double)b->steps * 1e3);
	return 0;
}
