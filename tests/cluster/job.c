/* One rank of a test job (job.t).
 *   job sums            an all-reduce, checked
 *   job joins N         the same in N jobs, one after another
 *   job steps [SPEC]    reducer steps, checked on every rank; SPEC on rank 1 only
 *   job until-failure   all-reduces until one fails; writes its pid to pid.RANK
 *   job until-told      all-reduces of the job and of new groups, checked, until there
 *                       is a file `stop`; writes its pid too
 * Prints "rank R ..." lines; exit status 3 when the library reports an error. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <gradcomp/gradcomp.h>

static int rank, nranks;
static gradcomp_error err;

static int failed(const char *what)
{
	printf("rank %d %s: %s\n", rank, what, err.text);
	return 3;
}

static int sums(gradcomp_group *world)
{
	enum { N = 100003 };
	static float v[N];

	for (int i = 0; i < N; i++)
		v[i] = (float)(rank + 1 + i % 7);
	if (gradcomp_allreduce(world, v, N, GRADCOMP_F32, GRADCOMP_SUM, &err))
		return failed("all-reduce");
	for (int i = 0; i < N; i++)
		if (v[i] != (float)(nranks * (nranks + 1) / 2 + nranks * (i % 7))) {
			printf("rank %d wrong at %d: %g\n", rank, i, v[i]);
			return 4;
		}
	printf("rank %d of %d right\n", rank, nranks);
	return 0;
}

static int steps(gradcomp_group *world, const char *spec)
{
	enum { N = 64 * 48, STEPS = 5 };
	static float g[N];
	const uint64_t dims[2] = {64, 48};
	const gradcomp_tensor_desc tensor = {"weight", dims, 2, GRADCOMP_F32};
	gradcomp_reducer_options opt = {.struct_size = sizeof opt, .compressor = rank == 1 ? spec : NULL};
	gradcomp_reducer *red;
	double sum = 0;

	if (gradcomp_reducer_create(world, &tensor, 1, &opt, &red, &err))
		return failed("reducer");
	for (int s = 0; s < STEPS; s++) {
		for (int i = 0; i < N; i++)
			g[i] = sinf((float)(i + 1000 * rank + s));
		if (gradcomp_reducer_ready(red, 0, g, &err) || gradcomp_reducer_wait(red, &err))
			return failed("step");
		for (int i = 0; i < N; i++)
			sum += fabs((double)g[i]) * (i + 1);
	}
	gradcomp_reducer_free(red);
	printf("rank %d agrees on %.17g\n", rank, sum);
	return 0;
}

/* The pid, for others to see. */
static int tell_pid(void)
{
	char name[32];
	FILE *f;
	snprintf(name, sizeof name, "pid.%d", rank);
	f = fopen(name, "w");
	return !f || fprintf(f, "%d\n", getpid()) < 0 || fclose(f);
}

static int until_failure(gradcomp_group *world)
{
	float v[1000] = {0};
	for (long n = 0;; n++) {
		if (gradcomp_allreduce(world, v, 1000, GRADCOMP_F32, GRADCOMP_SUM, &err))
			return failed("stopped");
		if (n == 10 && tell_pid())
			return 5;
	}
}

static int until_told(gradcomp_group *world)
{
	enum { N = 50000 };
	static float v[N];
	gradcomp_group *pair = NULL;
	long n = 0;

	for (float stop = 0; stop == 0; n++) {
		gradcomp_group *g = world;

		/* New connections, again and again. */
		if (n % 20 == 19) {
			if (gradcomp_group_split(world, 0, rank, &pair, &err))
				return failed("split");
			g = pair;
		}
		for (int i = 1; i < N; i++)
			v[i] = (float)(rank + 1 + i % 7);
		v[0] = !rank && !access("stop", F_OK) ? 1 : 0;
		if (gradcomp_allreduce(g, v, N, GRADCOMP_F32, GRADCOMP_SUM, &err))
			return failed("stopped");
		for (int i = 1; i < N; i++)
			if (v[i] != (float)(nranks * (nranks + 1) / 2 + nranks * (i % 7))) {
				printf("rank %d wrong at %d in round %ld: %g\n", rank, i, n, v[i]);
				return 4;
			}
		stop = v[0];
		gradcomp_group_free(pair);
		pair = NULL;
		if (n == 10 && tell_pid())
			return 5;
		usleep(1000);
	}
	printf("rank %d of %d right in %ld rounds\n", rank, nranks, n);
	return 0;
}

static int one_job(const char *mode, const char *spec)
{
	gradcomp_job *job;
	int status = 2;
	if (gradcomp_job_create(NULL, &job, &err))
		return failed("join");
	rank = gradcomp_job_rank(job);
	nranks = gradcomp_job_nranks(job);
	if (!strcmp(mode, "sums") || !strcmp(mode, "joins"))
		status = sums(gradcomp_job_world(job));
	else if (!strcmp(mode, "steps"))
		status = steps(gradcomp_job_world(job), spec);
	else if (!strcmp(mode, "until-failure"))
		status = until_failure(gradcomp_job_world(job));
	else if (!strcmp(mode, "until-told"))
		status = until_told(gradcomp_job_world(job));
	if (status)
		return status; /* a job that has failed has nothing to leave in order */
	return gradcomp_job_free(job, &err) ? failed("leave") : 0;
}

int main(int argc, char **argv)
{
	const char *mode = argc > 1 ? argv[1] : "", *more = argc > 2 ? argv[2] : NULL;
	int status = 0;
	setvbuf(stdout, NULL, _IOLBF, 0);
	for (int left = more && !strcmp(mode, "joins") ? atoi(more) : 1; left && !status; left--)
		status = one_job(mode, more);
	return status;
}
