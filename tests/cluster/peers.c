/* One rank of a job that goes on until something happens to it (peers.t).
 *   peers COLLECTIVE|SPEC|mixed [WHAT RANK]
 * COLLECTIVE: allreduce, allgather, broadcast, barrier; else a compressor's SPEC: steps
 * of a reducer; mixed: a hundred checked all-reduces, then it leaves. WHAT happens to
 * RANK by itself, in the middle: idle (it takes no further part), exit, leave; before
 * it has joined: dies, or dies-joining. Writes its pid to pid.RANK once it runs, and
 * "TIME STATUS TEXT" to end.RANK, TIME in seconds since 1970. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#include <gradcomp/gradcomp.h>

enum { N = 200003, WARM = 10 };
static float v[N], all[8 * N];
static gradcomp_error err;
static int rank, nranks;

static void tell(const char *name, const char *text)
{
	char path[40], hidden[42];
	FILE *f;
	snprintf(path, sizeof path, "%s.%d", name, rank);
	snprintf(hidden, sizeof hidden, ".%s", path);
	f = fopen(hidden, "w");
	if (!f || fprintf(f, "%s\n", text) < 0 || fclose(f) || rename(hidden, path))
		_exit(5);
}

static int ended(gradcomp_status st, const char *text)
{
	struct timespec ts;
	char line[700];
	clock_gettime(CLOCK_REALTIME, &ts);
	snprintf(line, sizeof line, "%lld.%03ld %d %s", (long long)ts.tv_sec, ts.tv_nsec / 1000000, st, text);
	tell("end", line);
	return st ? 3 : 0;
}

static gradcomp_status once(gradcomp_group *world, gradcomp_reducer *red, const char *what)
{
	static uint64_t counts[8];
	gradcomp_status st;
	if (red) {
		for (int i = 0; i < N; i++)
			v[i] = (float)((i * 7 + rank) % 101 - 50);
		st = gradcomp_reducer_ready(red, 0, v, &err);
		return st ? st : gradcomp_reducer_wait(red, &err);
	}
	if (!strcmp(what, "allgather")) {
		for (int r = 0; r < nranks; r++)
			counts[r] = N;
		return gradcomp_allgather(world, v, all, counts, GRADCOMP_F32, &err);
	}
	if (!strcmp(what, "broadcast"))
		return gradcomp_broadcast(world, v, N, GRADCOMP_F32, 1, &err);
	if (!strcmp(what, "barrier"))
		return gradcomp_barrier(world, &err);
	for (int i = 0; i < N; i++)
		v[i] = (float)((i + rank) % 5);
	st = gradcomp_allreduce(world, v, N, GRADCOMP_F32, GRADCOMP_SUM, &err);
	for (int i = 0; !st && i < N; i++) {
		float want = 0;

		for (int r = 0; r < nranks; r++)
			want += (float)((i + r) % 5);
		if (v[i] != want) {
			snprintf(err.text, sizeof err.text, "wrong at %d: %g", i, v[i]);
			st = GRADCOMP_ERR_INTERNAL;
		}
	}
	return st;
}

int main(int argc, char **argv)
{
	const char *what = argc > 1 ? argv[1] : "allreduce", *fate = argc > 3 ? argv[2] : "";
	int fated = argc > 3 ? atoi(argv[3]) : -1, compresses;
	const uint64_t dims[2] = {N / 521, 521};
	const gradcomp_tensor_desc tensor = {"weight", dims, 2, GRADCOMP_F32};
	gradcomp_reducer_options o = {.struct_size = sizeof o, .compressor = what};
	gradcomp_reducer *red = NULL;
	gradcomp_group *world;
	gradcomp_job *job;
	gradcomp_status st;
	char text[40];
	setvbuf(stdout, NULL, _IOLBF, 0);
	rank = getenv("SLURM_PROCID") ? atoi(getenv("SLURM_PROCID")) : 0;
	if (!strcmp(fate, "dies") && rank == fated)
		return 1;
	if (!strcmp(fate, "dies-joining") && rank == fated) {
		struct itimerval soon = {{0, 0}, {0, 20000}};

		setitimer(ITIMER_REAL, &soon, NULL);
	}
	if (gradcomp_job_create(NULL, &job, &err))
		return ended(err.status, err.text);
	nranks = gradcomp_job_nranks(job);
	world = gradcomp_job_world(job);
	compresses = strcmp(what, "allreduce") && strcmp(what, "allgather") && strcmp(what, "broadcast") &&
	             strcmp(what, "barrier") && strcmp(what, "mixed");
	st = compresses ? gradcomp_reducer_create(world, &tensor, 1, &o, &red, &err) : GRADCOMP_OK;
	for (long n = 0; !st && (strcmp(what, "mixed") || n < 100); n++) {
		st = once(world, red, what);
		if (!st && n == WARM) {
			snprintf(text, sizeof text, "%d", (int)getpid());
			tell("pid", text);
		}
		if (st || n != 2 * WARM || rank != fated)
			continue;
		if (!strcmp(fate, "exit"))
			_exit(0);
		if (!strcmp(fate, "leave"))
			break;
		if (!strcmp(fate, "idle"))
			sleep(5 * (unsigned)atoi(getenv("GRADCOMP_TRANSPORT_WAIT_TIMEOUT")));
	}
	gradcomp_reducer_free(red);
	if (!st)
		st = gradcomp_job_free(job, &err);
	else
		gradcomp_job_free(job, NULL);
	return ended(st, st ? err.text : "well");
}
