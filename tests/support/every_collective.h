/* Every primitive of a collective once, plain or coded, on few numbers that tell whether it was right. */
#ifndef TESTS_SUPPORT_EVERY_COLLECTIVE_H
#define TESTS_SUPPORT_EVERY_COLLECTIVE_H

#include "tests/support/collective_codes.h"

#include "gradcomp/collective.h"

#include <stdlib.h>

enum { EVERY_NUMBERS = 1027 };

typedef struct every {
	const struct gradcomp_collective_v1 *c;
	void *instance;
	const gradcomp_host *host;
	int rank, P;
	float *x, *lost; /* numbers and four a rank */
	uint64_t *counts;
	uint64_t n; /* 0: a thousand */
	int coded;  /* those under a code, or the others */
	int failed; /* primitives that failed or were wrong */
	gradcomp_error err;
} every;

static void every_fill(every *e, int rank)
{
	for (uint64_t i = 0; i < e->n; i++)
		e->x[i] = (float)((uint64_t)rank + i % 5);
}

/* Elements from..to-1 are the sum of all ranks'. */
static void every_sum(every *e, gradcomp_status st, uint64_t from, uint64_t to)
{
	double all = 0.5 * e->P * (e->P - 1);
	int bad = st != GRADCOMP_OK;
	for (uint64_t i = from; i < to; i++)
		bad |= fabs((double)e->x[i] - (all + e->P * (double)(i % 5))) > 1e-6 * all;
	e->failed += bad;
}

/* Returns 1 when it is among those asked for, and served. */
static int every_wants(const every *e, uint32_t primitive)
{
	uint32_t coded =
		GRADCOMP_CAN_CODED_ALLREDUCE | GRADCOMP_CAN_CODED_REDUCE_SCATTER | GRADCOMP_CAN_CODED_ALLGATHER;
	return (e->c->serves & primitive) && !(primitive & coded) == !e->coded;
}

static void every_reduction(every *e, const gradcomp_codec *codec)
{
	const struct gradcomp_collective_v1 *c = e->c;
	uint64_t from = 0, to;
	for (int r = 0; r < e->P; r++) {
		e->counts[r] = e->n / (uint64_t)e->P + ((uint64_t)r < e->n % (uint64_t)e->P);
		from += r < e->rank ? e->counts[r] : 0;
	}
	to = from + e->counts[e->rank];
	every_fill(e, e->rank);
	if (every_wants(e, GRADCOMP_CAN_ALLREDUCE))
		every_sum(e, c->allreduce(e->instance, e->x, e->n, GRADCOMP_F32, GRADCOMP_SUM, 1.0, &e->err), 0, e->n);
	if (every_wants(e, GRADCOMP_CAN_CODED_ALLREDUCE))
		every_sum(e, c->coded_allreduce(e->instance, e->x, e->n, 1.0, codec, 0, e->lost, &e->err), 0, e->n);
	every_fill(e, e->rank);
	if (every_wants(e, GRADCOMP_CAN_REDUCE_SCATTER))
		every_sum(e, c->reduce_scatter(e->instance, e->x, e->counts, GRADCOMP_F32, GRADCOMP_SUM, 1.0, &e->err),
		          from, to);
	if (every_wants(e, GRADCOMP_CAN_CODED_REDUCE_SCATTER))
		every_sum(e, c->coded_reduce_scatter(e->instance, e->x, e->counts, 1.0, codec, 0, e->lost, &e->err),
		          from, to);
}

/* Four numbers a rank, which all ranks are to have. */
static void every_gather(every *e, const gradcomp_codec *codec)
{
	const struct gradcomp_collective_v1 *c = e->c;
	int bad = 0;
	if (!every_wants(e, e->coded ? GRADCOMP_CAN_CODED_ALLGATHER : GRADCOMP_CAN_ALLGATHER))
		return;
	for (int i = 0; i < 4 * e->P; i++)
		e->x[i] = i / 4 == e->rank ? (float)i : NAN;
	for (int r = 0; r < e->P; r++)
		e->counts[r] = e->coded ? 4 : 4 * sizeof(float);
	bad = e->coded ? c->coded_allgather(e->instance, e->x, e->counts, codec, 0, e->lost, &e->err)
	               : c->allgather(e->instance, e->x, e->counts, &e->err);
	for (int i = 0; i < 4 * e->P; i++)
		bad |= e->x[i] != (float)i;
	e->failed += bad != 0;
}

static void every_other(every *e)
{
	const struct gradcomp_collective_v1 *c = e->c;
	int bad = 0, root = e->P / 2;
	if (every_wants(e, GRADCOMP_CAN_BROADCAST)) {
		every_fill(e, e->rank);
		bad = c->broadcast(e->instance, e->x, e->n * sizeof(float), root, &e->err) != 0;
		for (uint64_t i = 0; i < e->n; i++)
			bad |= e->x[i] != (float)((uint64_t)root + i % 5);
	}
	if (every_wants(e, GRADCOMP_CAN_BARRIER))
		bad |= c->barrier(e->instance, &e->err) != 0;
	if (every_wants(e, GRADCOMP_CAN_ALLTOALL)) {
		float *out = malloc((size_t)e->P * sizeof *out);
		for (int r = 0; r < e->P; r++) {
			e->counts[r] = sizeof *out;
			e->x[r] = (float)(e->rank * e->P + r);
			out[r] = NAN;
		}
		bad |= c->alltoall(e->instance, e->x, e->counts, out, e->counts, &e->err) != 0;
		for (int r = 0; r < e->P; r++)
			bad |= out[r] != (float)(r * e->P + e->rank);
		free(out);
	}
	if (every_wants(e, GRADCOMP_CAN_MERGE)) {
		test_merger merging = {.dropped = e->lost};
		gradcomp_merger merger = {.struct_size = sizeof merger, .ctx = &merging, .merge = test_merge};
		gradcomp_payload p = {e->x, e->n * sizeof(float), e->n * sizeof(float)};
		every_fill(e, e->rank);
		every_sum(e, c->merge(e->instance, &p, e->n * sizeof(float), &merger, &e->err), 0, e->n);
	}
	e->failed += bad;
}

/* How many primitives went wrong; e.err has the last error there was. */
static int every_run(every *e)
{
	test_code code = {.kind = CODE_EXACT, .host = e->host};
	const gradcomp_codec codec = test_codec(&code);
	e->n = e->n ? e->n : EVERY_NUMBERS;
	e->x = malloc((e->n + 4 * (uint64_t)e->P) * sizeof *e->x);
	e->lost = calloc(e->n + 4 * (uint64_t)e->P, sizeof *e->lost);
	e->counts = malloc((uint64_t)e->P * sizeof *e->counts);
	every_reduction(e, &codec);
	every_gather(e, &codec);
	every_other(e);
	free(e->x);
	free(e->lost);
	free(e->counts);
	return e->failed;
}

#endif
