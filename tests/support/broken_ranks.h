/* A few steps of a compressor that is expected to fail, and what each rank was told. */
#ifndef TESTS_SUPPORT_BROKEN_RANKS_H
#define TESTS_SUPPORT_BROKEN_RANKS_H

#include "tests/support/small_model.h"

typedef struct broken {
	const char *spec;
	uint64_t bucket_bytes;
	gradcomp_status status[MAX_RANKS];
	int steps[MAX_RANKS]; /* that did not fail */
	char text[MAX_RANKS][508];
} broken;

static inline void broken_body(gradcomp_job *job, int rank, int P, void *arg)
{
	broken *b = arg;
	gradcomp_error err = {0};
	model m;
	(void)P;
	b->status[rank] = model_open(&m, gradcomp_job_world(job), b->spec, b->bucket_bytes, &err);
	if (!b->status[rank]) {
		for (int step = 0; !b->status[rank] && step < 2; step++) {
			b->status[rank] = model_step(&m, rank, step, &err);
			b->steps[rank] += !b->status[rank];
		}
		model_close(&m);
	}
	memcpy(b->text[rank], err.text, sizeof err.text);
}

#endif
