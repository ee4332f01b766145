/* A rank in the middle of a job is killed while all ranks are in all-reduces: how soon the others know,
 * and whether they name it. Of the program that includes this. */
#ifndef TESTS_SUPPORT_KILLED_RANK_H
#define TESTS_SUPPORT_KILLED_RANK_H

#include "tests/support/process_ranks.h"

#include <signal.h>

typedef struct killed_rank {
	int others, named; /* ranks that live; those whose error names the one that was killed */
	double half, last; /* seconds until half of them, and all of them, knew */
} killed_rank;

typedef struct mourner {
	double at; /* when it was killed, or when this rank knew */
	int named;
} mourner;

static void mourner_body(gradcomp_job *job, int rank, process_board *board, void *room)
{
	mourner *at = room;
	int victim = board->P / 2;
	char name[32];
	gradcomp_error err = {0};
	snprintf(name, sizeof name, "rank %d on ", victim);
	for (int k = 0; !err.status; k++) {
		float x = 1;
		if (gradcomp_allreduce(gradcomp_job_world(job), &x, 1, GRADCOMP_F32, GRADCOMP_SUM, &err))
			break;
		if (k)
			continue;
		pthread_barrier_wait(&board->barrier);
		if (rank == victim) {
			at->at = process_now();
			kill(getpid(), SIGKILL);
		}
	}
	at->at = process_now();
	at->named = strstr(err.text, name) != NULL;
	if (!at->named)
		fprintf(stderr, "# rank %d does not name rank %d: %s\n", rank, victim, err.text);
}

static int mourner_rising(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;
	return x < y ? -1 : x > y;
}

/* 0, or -1 when the processes cannot be started, or are fewer than two. */
static int kill_a_rank(int P, const char *const *settings, killed_rank *out)
{
	process_board *b = P > 1 ? run_processes(P, settings, mourner_body, sizeof(mourner)) : NULL;
	double *took = calloc((size_t)P, sizeof *took);
	int victim = P / 2;
	*out = (killed_rank){0};
	if (!b || !took) {
		free(took);
		if (b)
			end_processes(b);
		return -1;
	}
	for (int r = 0; r < P; r++) {
		const mourner *m = process_room(b, r), *dead = process_room(b, victim);
		if (r == victim)
			continue;
		took[out->others++] = m->at - dead->at;
		out->named += m->named;
	}
	qsort(took, (size_t)out->others, sizeof *took, mourner_rising);
	out->half = took[out->others / 2];
	out->last = took[out->others - 1];
	free(took);
	end_processes(b);
	return 0;
}

#endif
