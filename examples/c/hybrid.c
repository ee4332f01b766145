/* A job that is parallel in more than data: a pipeline of stages, each of which has replicas.
 * The layers of a stage are averaged over its replicas alone; the embedding, which the first
 * and the last stage both have, over the replicas of both. That is a group and a reducer for
 * each, with a compressor and a schedule of its own, at work at the same time.
 *
 *     cc -o hybrid hybrid.c $(pkg-config --cflags --libs gradcomp) -lpthread
 *     srun -n8 ./hybrid 2
 *
 * The passes themselves are left out: a gradient here is the number of the rank it comes
 * from, so that averages can be looked at. */
#include <gradcomp/gradcomp.h>
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

enum { STEPS = 40, LAYERS = 12, MOST = 1 << 16 };

typedef struct part {
	const char *what, *compressor, *schedule;
	uint32_t tensors;
	uint64_t numel; /* numbers of each of them */
	int colour;     /* its group's; -1: this rank has no such layers */
	gradcomp_group *group;
	gradcomp_reducer *reducer;
	float *gradient; /* that of all its tensors */
	double off;      /* the furthest that an average was from what it should be */
	gradcomp_error err;
} part;

/* Collective over the job: all ranks make the groups and reducers in the same order, those
 * that are in none too. */
static int part_open(part *p, gradcomp_job *job)
{
	gradcomp_tensor_desc tensors[LAYERS];
	gradcomp_reducer_options options = {
		.struct_size = sizeof options, .compressor = p->compressor, .schedule = p->schedule};
	if (gradcomp_group_split(gradcomp_job_world(job), p->colour, gradcomp_job_rank(job), &p->group, &p->err) < 0)
		return -1;
	if (!p->group)
		return 0;
	for (uint32_t t = 0; t < p->tensors; t++)
		tensors[t] = (gradcomp_tensor_desc){.dims = &p->numel, .ndim = 1, .dtype = GRADCOMP_F32};
	p->gradient = malloc(p->tensors * p->numel * sizeof *p->gradient);
	if (!p->gradient)
		return -1;
	return gradcomp_reducer_create(p->group, tensors, p->tensors, &options, &p->reducer, &p->err);
}

/* A part's steps. Here it has a thread to itself; a program that gives the gradients of all
 * parts in its one backward pass does as well without. */
static void *part_steps(void *arg)
{
	part *p = arg;
	double mean = 0;
	int n = gradcomp_group_nranks(p->group);
	for (int r = 0; r < n; r++)
		mean += (double)gradcomp_group_world_rank(p->group, r) / n;
	for (int step = 0; step < STEPS; step++) {
		for (uint64_t i = 0; i < p->tensors * p->numel; i++)
			p->gradient[i] = (float)gradcomp_group_world_rank(p->group, gradcomp_group_rank(p->group));
		for (uint32_t t = p->tensors; t-- > 0;)
			if (gradcomp_reducer_ready(p->reducer, t, p->gradient + t * p->numel, &p->err) < 0)
				return NULL;
		if (gradcomp_reducer_wait(p->reducer, &p->err) < 0)
			return NULL;
		for (uint64_t i = 0; i < p->tensors * p->numel; i++)
			p->off = fmax(p->off, fabs(p->gradient[i] - mean));
	}
	return NULL;
}

static int part_close(part *p, int rank)
{
	gradcomp_reducer_stats stats = {.struct_size = sizeof stats};
	if (p->reducer) {
		gradcomp_reducer_get_stats(p->reducer, &stats);
		if (gradcomp_group_rank(p->group) == 0)
			printf("%s of ranks like %d: %d ranks, %llu steps, %u buckets, averages off by %.2g\n", p->what,
			       rank, gradcomp_group_nranks(p->group), (unsigned long long)stats.steps, stats.buckets,
			       p->off);
	}
	gradcomp_reducer_free(p->reducer);
	gradcomp_group_free(p->group);
	free(p->gradient);
	return p->err.status == GRADCOMP_OK;
}

int main(int argc, char **argv)
{
	part parts[2] = {
		{.what = "layers",
	         .compressor = "cast:type=fp16",
	         .schedule = "mgwfbp",
	         .tensors = LAYERS,
	         .numel = MOST},
		{.what = "embedding", .compressor = "none", .schedule = "single", .tensors = 1, .numel = 4 * MOST}};
	int stages = argc > 1 ? atoi(argv[1]) : 1, good = 1;
	pthread_t threads[2];
	gradcomp_error err = {0};
	gradcomp_job *job;
	if (gradcomp_job_create(NULL, &job, &err) < 0) {
		fprintf(stderr, "hybrid: %s\n", err.text);
		return 1;
	}
	int rank = gradcomp_job_rank(job);
	if (stages < 1 || gradcomp_job_nranks(job) % stages) {
		fprintf(stderr, "usage: hybrid STAGES, of which the number of ranks is a multiple\n");
		gradcomp_job_free(job, &err);
		return 2;
	}
	parts[0].colour = rank % stages;
	parts[1].colour = rank % stages == 0 || rank % stages == stages - 1 ? 0 : -1;
	for (int k = 0; k < 2; k++)
		if (part_open(&parts[k], job) < 0) {
			fprintf(stderr, "hybrid: %s: %s\n", parts[k].what, parts[k].err.text);
			return 1; /* without waiting for the others: they hear of it */
		}
	for (int k = 0; k < 2; k++)
		if (parts[k].reducer && pthread_create(&threads[k], NULL, part_steps, &parts[k]))
			return 1;
	for (int k = 0; k < 2; k++)
		if (parts[k].reducer)
			pthread_join(threads[k], NULL);
	for (int k = 0; k < 2; k++) {
		if (parts[k].err.status)
			fprintf(stderr, "hybrid: %s: %s\n", parts[k].what, parts[k].err.text);
		good &= part_close(&parts[k], rank);
	}
	if (gradcomp_job_free(job, &err) < 0)
		fprintf(stderr, "hybrid: %s\n", err.text);
	return !good || err.status;
}
