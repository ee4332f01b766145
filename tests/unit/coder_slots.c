/* gradcomp_coder_read_slot() and gradcomp_coder_write_slot(): what a slot keeps goes to others and comes back, is what the next
 * call adds, and what cannot be is refused and changes nothing. */
#include "tests/support/thread_ranks.h"

#include "gradcomp/coder.h"

#include <math.h>
#include <string.h>

enum { P = 2, N = 600 };

typedef struct seen {
	gradcomp_status opened, refused[6], lossless;
	uint64_t none, total;
	double apart, owed, left;
	int same, counted;
} seen;

static double sum_of(const float *x, int n)
{
	double sum = 0;
	for (int i = 0; i < n; i++)
		sum += (double)x[i];
	return sum;
}

static gradcomp_status reduce(gradcomp_coder *c, float *in, float *out, gradcomp_error *err)
{
	const uint64_t counts[P] = {N / P, N / P};
	return gradcomp_coder_reduce_scatter(c, in, out, counts, GRADCOMP_F32, 1.0, 3, err);
}

static void body(gradcomp_job *job, int rank, int nranks, void *arg)
{
	seen *s = (seen *)arg + rank;
	gradcomp_error err = {0};
	gradcomp_coder *c = NULL, *exact = NULL;
	gradcomp_coder_stats stats = {.struct_size = sizeof stats};
	float in[N], out[N / P], kept[N], again[N];
	double both[2];
	const uint64_t counts[P] = {N / P, N / P}, more[P] = {UINT64_MAX / 4, UINT64_MAX / 4};
	const float bad[N] = {[N / 2] = NAN};
	(void)nranks;
	s->opened = gradcomp_coder_create(gradcomp_job_world(job), "block:bits=4", NULL, &c, &err);
	if (!s->opened)
		s->opened = gradcomp_coder_create(gradcomp_job_world(job), "none", NULL, &exact, &err);
	if (!s->opened)
		s->opened = gradcomp_coder_read_slot(c, 3, NULL, 0, &s->none, &err);
	for (int i = 0; i < N; i++)
		in[i] = (float)((i * 37 + rank * 101) % 97) / 97 - 0.5f;
	both[0] = sum_of(in, N);
	if (!s->opened)
		s->opened = reduce(c, in, out, &err);
	if (!s->opened)
		s->opened = gradcomp_coder_read_slot(c, 3, kept, N, &s->total, &err);
	if (s->opened) {
		printf("# rank %d: %s\n", rank, err.text);
		return;
	}
	/* Over both ranks: what was given is what came and what is kept. */
	both[0] -= sum_of(out, N / P);
	both[1] = sum_of(kept, N);
	gradcomp_allreduce(gradcomp_job_world(job), both, 2, GRADCOMP_F64, GRADCOMP_SUM, &err);
	s->apart = fabs(both[0] - both[1]);
	for (int i = 0; i < N; i++)
		s->owed += fabs((double)kept[i]);
	/* Calls that are refused leave it as it is. */
	s->refused[0] = gradcomp_coder_read_slot(c, 3, again, N - 1, &s->total, &err);
	s->refused[1] = gradcomp_coder_write_slot(c, 3, counts, bad, &err);
	s->refused[2] = gradcomp_coder_write_slot(c, 3, more, kept, &err);
	s->refused[3] = gradcomp_coder_write_slot(c, GRADCOMP_CODER_NO_SLOT, counts, kept, &err);
	s->refused[4] = gradcomp_coder_write_slot(c, 3, counts, NULL, &err);
	s->refused[5] = gradcomp_coder_write_slot(c, 3, NULL, kept, &err);
	s->lossless = gradcomp_coder_write_slot(exact, 3, counts, kept, &err);
	gradcomp_coder_read_slot(c, 3, again, N, &s->total, &err);
	s->same = !memcmp(again, kept, sizeof kept);
	/* Another slot gets the same numbers, and this one others. */
	gradcomp_coder_write_slot(c, 1, counts, kept, &err);
	memset(again, 0, sizeof again);
	gradcomp_coder_write_slot(c, 3, counts, again, &err);
	memset(again, 1, sizeof again);
	gradcomp_coder_read_slot(c, 1, again, N, &s->total, &err);
	s->same = s->same && !memcmp(again, kept, sizeof kept);
	gradcomp_coder_get_stats(c, &stats);
	s->counted = stats.slots == 2 && stats.residual_bytes == 2 * N * sizeof(float);
	/* The next call adds it: zeroes that are given come out as what was kept. */
	gradcomp_coder_write_slot(c, 3, counts, kept, &err);
	memset(in, 0, sizeof in);
	s->opened = reduce(c, in, out, &err);
	gradcomp_coder_read_slot(c, 3, again, N, &s->total, &err);
	both[0] = both[1];
	both[1] = sum_of(out, N / P) + sum_of(again, N);
	double over[1] = {both[1]};
	gradcomp_allreduce(gradcomp_job_world(job), over, 1, GRADCOMP_F64, GRADCOMP_SUM, &err);
	s->left = fabs(over[0] - both[0]);
	gradcomp_coder_free(exact);
	gradcomp_coder_free(c);
}

int main(void)
{
	const char *const settings[] = {plugin_path_setting(), "gradcomp.log=error", NULL};
	seen all[P] = {0};
	run_ranks(P, settings, body, all);
	for (int rank = 0; rank < P; rank++) {
		const seen *s = &all[rank];
		ok(!s->opened && s->none == 0 && s->total == N, "rank %d: a slot has nothing, then %llu numbers", rank,
		   (unsigned long long)s->total);
		ok(s->owed > 0 && s->apart < 1e-4, "rank %d: they are what was lost, over both ranks (%g)", rank,
		   s->apart);
		ok(s->refused[0] == GRADCOMP_ERR_INVALID && s->refused[1] == GRADCOMP_ERR_INVALID &&
		           s->refused[2] == GRADCOMP_ERR_RANGE && s->refused[3] == GRADCOMP_ERR_INVALID &&
		           s->refused[4] == GRADCOMP_ERR_INVALID && s->refused[5] == GRADCOMP_ERR_INVALID &&
		           s->lossless == GRADCOMP_ERR_UNSUPPORTED,
		   "rank %d: what cannot be is refused", rank);
		ok(s->same && s->counted, "rank %d: numbers that are written are read, and counted once", rank);
		ok(s->left < 1e-4, "rank %d: the next call adds them, and none is lost (%g)", rank, s->left);
	}
	return done_testing();
}
