/* Every primitive of a collective on whole numbers, whose sums are exact in floats
 * whatever the order: right means right to the bit. */
#ifndef TESTS_SUPPORT_EXACT_PRIMITIVES_H
#define TESTS_SUPPORT_EXACT_PRIMITIVES_H

#include "gradcomp/collective.h"

#include "tests/support/collective_codes.h"

#include <stdlib.h>

enum {
	ALLREDUCE,
	ALLREDUCE_MAX,
	REDUCE_SCATTER,
	ALLGATHER,
	ALLTOALL,
	BROADCAST,
	BARRIER,
	MERGE,
	CODED_ALLREDUCE,
	CODED_ALLGATHER,
	CODED_REDUCE_SCATTER,
	EXCHANGE,
	PRIMITIVES
};

static const struct {
	const char *name;
	uint32_t serves;
} primitives[PRIMITIVES] = {
	[ALLREDUCE] = {"all-reduce", GRADCOMP_CAN_ALLREDUCE},
	[ALLREDUCE_MAX] = {"all-reduce of maxima", GRADCOMP_CAN_ALLREDUCE},
	[REDUCE_SCATTER] = {"reduce-scatter", GRADCOMP_CAN_REDUCE_SCATTER},
	[ALLGATHER] = {"all-gather", GRADCOMP_CAN_ALLGATHER},
	[ALLTOALL] = {"all-to-all", GRADCOMP_CAN_ALLTOALL},
	[BROADCAST] = {"broadcast", GRADCOMP_CAN_BROADCAST},
	[BARRIER] = {"barrier", GRADCOMP_CAN_BARRIER},
	[MERGE] = {"merge", GRADCOMP_CAN_MERGE},
	[CODED_ALLREDUCE] = {"coded all-reduce", GRADCOMP_CAN_CODED_ALLREDUCE},
	[CODED_ALLGATHER] = {"coded all-gather", GRADCOMP_CAN_CODED_ALLGATHER},
	[CODED_REDUCE_SCATTER] = {"coded reduce-scatter", GRADCOMP_CAN_CODED_REDUCE_SCATTER},
	[EXCHANGE] = {"exchange", GRADCOMP_CAN_EXCHANGE},
};

#define PRIMITIVE_RANKS 16

/* A rank works in this, for at most `most` numbers. */
typedef struct workspace {
	uint64_t most;
	float *x, *y, *residual, *server_error;
	const gradcomp_host *host;
} workspace;

static inline void workspace_make(workspace *w, uint64_t most, const gradcomp_host *host)
{
	*w = (workspace){most, calloc(most, 4), calloc(most, 4), calloc(most, 4), calloc(2 * most, 4), host};
	if (!w->x || !w->y || !w->residual || !w->server_error)
		abort();
}

static inline void workspace_free(workspace *w)
{
	free(w->x);
	free(w->y);
	free(w->residual);
	free(w->server_error);
}

/* Number i of rank r in the run `salt`: -8 .. 8. */
static inline float whole_number(int r, uint64_t i, uint64_t salt)
{
	return (float)((int)(((uint64_t)r * 7 + i * 13 + i / 17 + salt * 5) % 17) - 8);
}

static inline float whole_sum(int P, uint64_t i, uint64_t salt)
{
	float sum = 0;
	for (int r = 0; r < P; r++)
		sum += whole_number(r, i, salt);
	return sum;
}

/* Blocks that differ by a lot, some of them empty. */
static inline void whole_blocks(uint64_t n, int P, uint64_t *counts)
{
	for (int r = 0; r < P; r++) {
		counts[r] = r == P - 1 ? n : r % 3 == 1 ? 0 : n / 2;
		n -= counts[r];
	}
}

/* Returns how much goes from rank a to rank b of an all-to-all. */
static inline uint64_t whole_share(uint64_t n, int P, int a, int b)
{
	return n / (uint64_t)P * (uint64_t)((3 * a + 5 * b) % 4) / 4;
}

static inline gradcomp_status whole_alltoall(const struct gradcomp_collective_v1 *c, void *instance, workspace *w,
                                             uint64_t n, int rank, int P, uint64_t salt, int *wrong,
                                             gradcomp_error *err)
{
	uint64_t in[PRIMITIVE_RANKS] = {0}, out[PRIMITIVE_RANKS] = {0}, at = 0;
	gradcomp_status st;
	for (int r = 0; r < P; r++) {
		for (uint64_t i = 0; i < whole_share(n, P, rank, r); i++)
			w->x[at++] = whole_number(rank, i, salt + (uint64_t)r);
		in[r] = 4 * whole_share(n, P, rank, r);
		out[r] = 4 * whole_share(n, P, r, rank);
	}
	st = c->alltoall(instance, w->x, in, w->y, out, err);
	at = 0;
	for (int r = 0; !st && r < P; r++)
		for (uint64_t i = 0; i < out[r] / 4; i++)
			*wrong += w->y[at++] != whole_number(r, i, salt + (uint64_t)rank);
	return st;
}

/* Runs one; *wrong counts the numbers that are not what they should be. Allocates
 * nothing itself. */
static inline gradcomp_status whole_run(const struct gradcomp_collective_v1 *c, void *instance, int what, workspace *w,
                                        uint64_t n, int rank, int P, uint64_t salt, int *wrong, gradcomp_error *err)
{
	test_code code = {.kind = CODE_EXACT, .host = w->host};
	test_merger merging = {.dropped = w->residual};
	gradcomp_codec codec = test_codec(&code);
	gradcomp_merger merger = {.struct_size = sizeof merger, .ctx = &merging, .merge = test_merge};
	gradcomp_payload payload = {w->x, 4 * n, 4 * n};
	uint64_t counts[PRIMITIVE_RANKS] = {0}, bytes[PRIMITIVE_RANKS] = {0}, own = 0, from = 0, to = n,
		 salts = salt * 31;
	gradcomp_exchange x = {.struct_size = sizeof x,
	                       .buf = w->x,
	                       .count = n,
	                       .scale = 1,
	                       .codec = &codec,
	                       .counter = salts,
	                       .residual = w->residual,
	                       .server_error = w->server_error};
	int gathers = what == ALLGATHER || what == CODED_ALLGATHER, root = (int)(salt % (uint64_t)P);
	gradcomp_status st = GRADCOMP_OK;
	if (what == BARRIER)
		return c->barrier(instance, err);
	if (what == ALLTOALL)
		return whole_alltoall(c, instance, w, n, rank, P, salt, wrong, err);
	whole_blocks(n, P, counts);
	for (int r = 0; r < P; r++) {
		own += r < rank ? counts[r] : 0;
		bytes[r] = 4 * counts[r];
	}
	for (uint64_t i = 0; i < n; i++)
		w->x[i] = gathers && (i < own || i >= own + counts[rank]) ? NAN
		          : what == BROADCAST && rank != root             ? NAN
		                                                          : whole_number(rank, i, salt);
	memset(w->residual, 0, 4 * n);
	memset(w->server_error, 0, 8 * w->most);
	switch (what) {
	case ALLREDUCE:
		st = c->allreduce(instance, w->x, n, GRADCOMP_F32, GRADCOMP_SUM, 1, err);
		break;
	case ALLREDUCE_MAX:
		st = c->allreduce(instance, w->x, n, GRADCOMP_F32, GRADCOMP_MAX, 1, err);
		break;
	case REDUCE_SCATTER:
		st = c->reduce_scatter(instance, w->x, counts, GRADCOMP_F32, GRADCOMP_SUM, 1, err);
		break;
	case CODED_REDUCE_SCATTER:
		st = c->coded_reduce_scatter(instance, w->x, counts, 1, &codec, salts, w->residual, err);
		break;
	case ALLGATHER:
		st = c->allgather(instance, w->x, bytes, err);
		break;
	case CODED_ALLGATHER:
		st = c->coded_allgather(instance, w->x, counts, &codec, salts, w->residual, err);
		break;
	case BROADCAST:
		st = c->broadcast(instance, w->x, 4 * n, root, err);
		break;
	case MERGE:
		st = c->merge(instance, &payload, 4 * n, &merger, err);
		break;
	case CODED_ALLREDUCE:
		st = c->coded_allreduce(instance, w->x, n, 1, &codec, salts, w->residual, err);
		break;
	case EXCHANGE:
		if (c->server_error && c->server_error(instance, n) > 2 * w->most)
			return w->host->fail(err, GRADCOMP_ERR_RANGE,
			                     "exchange wants a memory of %llu numbers for %llu",
			                     (unsigned long long)c->server_error(instance, n), (unsigned long long)n);
		st = c->exchange(instance, &x, err);
		break;
	}
	if (st)
		return st;
	if (what == REDUCE_SCATTER || what == CODED_REDUCE_SCATTER) {
		from = own;
		to = own + counts[rank];
	}
	for (uint64_t i = from, begin = 0, owner = 0; i < to; i++) {
		float want = whole_sum(P, i, salt);

		if (what == ALLREDUCE_MAX) {
			want = whole_number(0, i, salt);
			for (int r = 1; r < P; r++)
				want = fmaxf(want, whole_number(r, i, salt));
		}
		if (what == BROADCAST)
			want = whole_number(root, i, salt);
		if (gathers) {
			while (i >= begin + counts[owner])
				begin += counts[owner++];
			want = whole_number((int)owner, i, salt);
		}
		*wrong += !(w->x[i] == want);
	}
	return st;
}

#endif
