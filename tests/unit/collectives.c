/* Plain collectives and groups, against sums made by hand, for 1 to 9 ranks. */
#include "tests/support/thread_ranks.h"
#include "gradcomp/collective.h"

#include <math.h>

static float value(int rank, uint64_t i)
{
	return (float)((i * 7 + (uint64_t)rank * 13) % 101) - 50;
}

struct shared {
	uint64_t n;
	float *result[MAX_RANKS];
	int bad[MAX_RANKS];
};

static void body(gradcomp_job *job, int rank, int P, void *arg)
{
	struct shared *s = arg;
	gradcomp_group *w = gradcomp_job_world(job);
	gradcomp_error err = {0};
	uint64_t n = s->n, counts[MAX_RANKS], total = 0, before = 0;
	int bad = 0;
	float *buf = malloc((n + 1) * sizeof *buf);
	for (uint64_t i = 0; i < n; i++)
		buf[i] = value(rank, i);
	bad |= gradcomp_allreduce(w, buf, n, GRADCOMP_F32, GRADCOMP_SUM, &err) != 0;
	for (uint64_t i = 0; i < n; i++) {
		float want = 0;
		for (int r = 0; r < P; r++)
			want += value(r, i);
		bad |= buf[i] != want;
	}
	s->result[rank] = buf;

	int64_t top = rank;
	bad |= gradcomp_allreduce(w, &top, 1, GRADCOMP_I64, GRADCOMP_MAX, &err) != 0 || top != P - 1;

	for (int r = 0; r < P; r++) {
		counts[r] = (n + (uint64_t)r) / (uint64_t)P + (r % 3 == 1);
		before += r < rank ? counts[r] : 0;
		total += counts[r];
	}
	float *all = malloc((total + 1) * sizeof *all), *own = malloc((counts[rank] + 1) * sizeof *own);
	memset(all, 0xff, total * sizeof *all);
	for (uint64_t i = 0; i < counts[rank]; i++)
		own[i] = value(rank, before + i);
	bad |= gradcomp_allgather(w, own, all, counts, GRADCOMP_F32, &err) != 0;
	for (uint64_t i = 0, at = 0; at < (uint64_t)P; i += counts[at++])
		for (uint64_t k = 0; k < counts[at]; k++)
			bad |= all[i + k] != value((int)at, i + k);

	for (uint64_t i = 0; i < total; i++)
		all[i] = value(rank, i);
	bad |= gradcomp_reduce_scatter(w, all, own, counts, GRADCOMP_F32, GRADCOMP_SUM, &err) != 0;
	for (uint64_t i = 0; i < counts[rank]; i++) {
		float want = 0;
		for (int r = 0; r < P; r++)
			want += value(r, before + i);
		bad |= own[i] != want;
	}

	int root = (int)(n % (uint64_t)P);
	for (uint64_t i = 0; i < total; i++)
		all[i] = rank == root ? value(root, i) : NAN;
	bad |= gradcomp_broadcast(w, all, total, GRADCOMP_F32, root, &err) != 0;
	for (uint64_t i = 0; i < total; i++)
		bad |= all[i] != value(root, i);
	bad |= gradcomp_barrier(w, &err) != 0;

	gradcomp_group *half;
	bad |= gradcomp_group_split(w, rank % 2, -rank, &half, &err) != 0;
	if (half) {
		int32_t sum = rank, want = 0;
		for (int r = rank % 2; r < P; r += 2)
			want += r;
		bad |= gradcomp_allreduce(half, &sum, 1, GRADCOMP_I32, GRADCOMP_SUM, &err) != 0 || sum != want;
		/* The key is -rank: the highest rank comes first. */
		bad |= gradcomp_group_world_rank(half, gradcomp_group_nranks(half) - 1) != rank % 2;
		gradcomp_group_free(half);
	}
	bad |= gradcomp_group_split(w, -1, 0, &half, &err) != 0 || half;
	s->bad[rank] = bad;
	if (err.status)
		fprintf(stderr, "# rank %d: %s\n", rank, err.text);
	free(all);
	free(own);
}

/* A shift by one on links of the program's own, and a job that is not left under them. */
static void own_links(gradcomp_job *job, int rank, int P, void *arg)
{
	gradcomp_group *w = gradcomp_job_world(job);
	const gradcomp_links *a = NULL, *b = NULL;
	gradcomp_error err = {0};
	gradcomp_request in, out;
	int32_t mine = rank, got = -1, *bad = arg;
	bad[rank] = gradcomp_links_open(w, &a, &err) != 0 || gradcomp_links_open(w, &b, &err) != 0 || a->rank != rank ||
	            a->nranks != P || b->recv(b->ctx, (rank + P - 1) % P, &got, sizeof got, &in, &err) != 0 ||
	            b->send(b->ctx, (rank + 1) % P, &mine, sizeof mine, &out, &err) != 0 ||
	            b->wait(b->ctx, &in, &err) != 0 || b->wait(b->ctx, &out, &err) != 0 || got != (rank + P - 1) % P ||
	            gradcomp_job_free(job, &err) != GRADCOMP_ERR_STATE;
	gradcomp_links_close(w, a);
	gradcomp_links_close(w, b);
	gradcomp_links_close(w, NULL);
}

static void refusals(gradcomp_job *job, int rank, int P, void *arg)
{
	gradcomp_group *w = gradcomp_job_world(job);
	gradcomp_error err;
	float x = 0;
	(void)rank, (void)P, (void)arg;
	is_int(gradcomp_links_open(NULL, NULL, &err), GRADCOMP_ERR_INVALID, "links to nowhere");
	is_int(gradcomp_broadcast(w, &x, 1, GRADCOMP_F32, 7, &err), GRADCOMP_ERR_INVALID, "a root that is no rank");
	like(err.text, "root 7: must be 0..0", "is named with what would be right");
	is_int(gradcomp_allreduce(w, &x, 1, GRADCOMP_F32, GRADCOMP_BOR, &err), GRADCOMP_ERR_UNSUPPORTED,
	       "bitwise or of floats");
	is_int(gradcomp_allreduce(w, NULL, 1, GRADCOMP_F32, GRADCOMP_SUM, &err), GRADCOMP_ERR_INVALID, "a NULL buffer");
	is_int(gradcomp_allreduce(w, &x, UINT64_MAX / 2, GRADCOMP_F32, GRADCOMP_SUM, &err), GRADCOMP_ERR_RANGE,
	       "more elements than memory can have");
}

int main(void)
{
	static const uint64_t sizes[] = {0, 1, 2, 7, 4097, 300001, 1200007};
	const char *settings[] = {plugin_path_setting(), "transport.timeout=20", NULL};
	for (int P = 1; P <= 9; P++) {
		for (size_t k = 0; k < sizeof sizes / sizeof sizes[0]; k++) {
			struct shared s = {.n = sizes[k]};
			int bad = 0, differ = 0;
			run_ranks(P, settings, body, &s);
			for (int r = 0; r < P; r++) {
				bad |= s.bad[r];
				differ |= !s.result[r] || memcmp(s.result[r], s.result[0], s.n * sizeof(float));
				if (r)
					free(s.result[r]);
			}
			free(s.result[0]);
			ok(!bad, "%d ranks, %llu elements: every collective gives the right values", P,
			   (unsigned long long)sizes[k]);
			ok(!differ, "%d ranks, %llu elements: all ranks have the same bits", P,
			   (unsigned long long)sizes[k]);
		}
	}
	int32_t bad[3] = {0};
	run_ranks(3, settings, own_links, bad);
	ok(!bad[0] && !bad[1] && !bad[2], "links of a program's own carry, and keep the job from being left");
	run_ranks(1, settings, refusals, NULL);
	return done_testing();
}
