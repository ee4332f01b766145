/* Work that every rank would do in the same way, shared between them where that is faster. */
#include "job/parallel_internal.h"

#include "job/consensus.h"

#include "base/error.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A reason of this rank's own: the others must not wait for it. */
static gradcomp_status given_up(const gradcomp_parallel *p, gradcomp_status st, const gradcomp_error *err)
{
	if (st)
		job_fail(p->group->job, st, err->text);
	return st;
}

/* The pieces' seconds, or bytes where no time passed, into runs. Returns the longest. */
static double divide(gradcomp_parallel *p)
{
	uint32_t P = (uint32_t)p->group->nranks;
	double all = 0, longest = 0;
	for (uint32_t i = 0; i < p->n; i++)
		all += p->seconds[i];
	if (all > 0) {
		longest = parallel_cut(p->seconds, p->n, P, p->cut);
	} else {
		double *weight = p->seconds;
		for (uint32_t i = 0; i < p->n; i++)
			weight[i] = (double)p->bytes[i] + 1;
		parallel_cut(weight, p->n, P, p->cut);
		memset(weight, 0, p->n * sizeof *weight);
	}
	for (uint32_t r = 0; r < P; r++) {
		p->blocks[r] = 0;
		for (uint32_t i = p->cut[r]; i < p->cut[r + 1]; i++)
			p->blocks[r] += p->bytes[i];
	}
	return longest;
}

/* The slowest rank's times, which all ranks know then. */
static gradcomp_status agree_times(gradcomp_parallel *p, gradcomp_error *err)
{
	return p->coll_ctx.collective->allreduce(p->coll_ctx.instance, p->seconds, p->n + 1, GRADCOMP_F64, GRADCOMP_MAX, 1.0, err);
}

static void decide(gradcomp_parallel *p)
{
	double work = 0, gathering = p->seconds[p->n], longest = divide(p);
	for (uint32_t i = 0; i < p->n; i++)
		work += p->seconds[i];
	p->shared = work - longest > gathering;
	snprintf(p->reason, sizeof p->reason,
	         "%s: %.3g ms of work, %.3g ms as the longest of %d shares, and %.3g ms to gather %llu bytes",
	         p->shared ? "shared" : "not shared", work * 1e3, longest * 1e3, p->group->nranks, gathering * 1e3,
	         (unsigned long long)p->total);
}

static void faster(double *shortest, double seconds)
{
	if (seconds < 0)
		seconds = 0;
	if (*shortest < 0 || seconds < *shortest)
		*shortest = seconds;
}

/* The first piece, when all of them are one after another in memory; else NULL. */
static char *contiguous(const gradcomp_parallel *p, void *const *out)
{
	char *first = NULL, *next = NULL;
	for (uint32_t i = 0; i < p->n; i++) {
		if (!p->bytes[i])
			continue;
		if (next && (char *)out[i] != next)
			return NULL;
		if (!first)
			first = out[i];
		next = (char *)out[i] + p->bytes[i];
	}
	return first;
}

/* Copies between `out` and p->gathered: this rank's pieces into it, or all others out of it. */
static void move(const gradcomp_parallel *p, void *const *out, int in)
{
	uint32_t from = p->cut[p->group->me], to = p->cut[p->group->me + 1];
	uint64_t at = 0;
	for (uint32_t i = 0; i < p->n; at += p->bytes[i++]) {
		int mine = i >= from && i < to;
		if (in && mine && p->bytes[i])
			memcpy(p->gathered + at, out[i], p->bytes[i]);
		else if (!in && !mine && p->bytes[i])
			memcpy(out[i], p->gathered + at, p->bytes[i]);
	}
}

static gradcomp_status gather(gradcomp_parallel *p, void *const *out, gradcomp_error *err)
{
	char *buf = contiguous(p, out);
	int apart = !buf && p->total;
	if (apart) {
		buf = p->gathered;
		move(p, out, 1);
	}
	gradcomp_status st = p->coll_ctx.collective->allgather(p->coll_ctx.instance, buf, p->blocks, err);
	if (!st && apart)
		move(p, out, 0);
	return st;
}

static void do_all(gradcomp_parallel *p, void (*work)(void *ctx, uint32_t piece), void *ctx, int timed)
{
	double before = timed ? p->now() : 0;
	for (uint32_t i = 0; i < p->n; i++) {
		work(ctx, i);
		if (timed) {
			double after = p->now();
			faster(&p->seconds[i], after - before);
			before = after;
		}
	}
}

/* This rank's run, and the others' from them. Timed from when all ranks have done theirs. */
static gradcomp_status do_share(gradcomp_parallel *p, void *const *out, void (*work)(void *ctx, uint32_t piece),
                                void *ctx, int timed, gradcomp_error *err)
{
	gradcomp_status st = GRADCOMP_OK;
	double before = 0;
	for (uint32_t i = p->cut[p->group->me]; i < p->cut[p->group->me + 1]; i++)
		work(ctx, i);
	if (timed) {
		st = p->coll_ctx.collective->allreduce(p->coll_ctx.instance, &before, 1, GRADCOMP_F64, GRADCOMP_MAX, 1.0, err);
		before = p->now();
	}
	if (!st)
		st = gather(p, out, err);
	if (timed)
		faster(&p->seconds[p->n], p->now() - before);
	return st;
}

/* Which call of a measurement this is, or -1; *last when the measurement ends with it. */
static int timed_call(uint64_t call, int *last)
{
	uint64_t at = call < PARALLEL_FIRST ? call : call % PARALLEL_AGAIN;
	uint64_t calls = call < PARALLEL_FIRST ? PARALLEL_FIRST : 2;
	*last = at == calls - 1;
	return at < calls ? (int)at : -1;
}

gradcomp_status gradcomp_parallel_apply(gradcomp_parallel *p, void *const *out,
                                        void (*work)(void *ctx, uint32_t piece), void *ctx, gradcomp_error *err)
{
	gradcomp_error own = {0};
	gradcomp_status st = transport_failure(p->group->job->transport, &own);
	int last, timed;
	for (uint32_t i = 0; !st && i < p->n; i++)
		if (p->bytes[i] && (!out || !out[i]))
			st = error_set(&own, GRADCOMP_ERR_INVALID, "piece %u makes %llu bytes, and out[%u] is NULL", i,
			               (unsigned long long)p->bytes[i], i);
	if (st)
		error_set(err, st, "%s", own.text);
	if (!st && !p->gathered)
		do_all(p, work, ctx, 0);
	if (!p->gathered)
		return st;
	if (st)
		return given_up(p, st, &own);
	timed = timed_call(p->calls++, &last);
	for (uint32_t i = 0; timed == 0 && i <= p->n; i++)
		p->seconds[i] = -1;
	if (timed < 0 ? p->shared : timed % 2)
		st = do_share(p, out, work, ctx, timed > 0, &own);
	else
		do_all(p, work, ctx, timed >= 0);
	if (!st && timed == 0) {
		st = agree_times(p, &own);
		divide(p);
	}
	if (!st && last) {
		st = agree_times(p, &own);
		decide(p);
	}
	if (st)
		error_set(err, st, "%s", own.text);
	return given_up(p, st, &own);
}

typedef struct pieces {
	uint64_t n, hash, total;
} pieces;

static void differing_pieces(const void *claim, const void *claim0, int first, char *out, size_t capacity)
{
	const pieces *a = claim, *b = claim0;
	snprintf(out, capacity,
	         "has %llu pieces that make %llu bytes, rank %d has %llu that make %llu; sizes must be equal piece by piece",
	         (unsigned long long)a->n, (unsigned long long)a->total, first, (unsigned long long)b->n,
	         (unsigned long long)b->total);
}

/* That all ranks have the same pieces, before one waits for another. */
static gradcomp_status same_pieces(gradcomp_parallel *p, gradcomp_status mine, gradcomp_error *err)
{
	pieces own = {.n = p->n, .total = p->total};
	for (uint32_t i = 0; !mine && i < p->n; i++)
		own.hash = id_mix(own.hash, p->bytes[i]);
	return consensus(p->group, &(consensus_topic){"share its work", &own, sizeof own, differing_pieces, false}, mine, err);
}

static gradcomp_status open_collective(gradcomp_parallel *p, gradcomp_error *err)
{
	const plugin *collective;
	const spec *values;
	gradcomp_status st = job_collective(p->group->job, &collective, &values, err);
	if (st)
		return given_up(p, st, err);
	if (p->group->nranks == 1) {
		snprintf(p->reason, sizeof p->reason, "not shared: there is one rank");
	} else if (!collective->collective->allgather || !collective->collective->allreduce) {
		snprintf(p->reason, sizeof p->reason, "not shared: collective '%s' serves no all-gather and all-reduce",
		         collective->info->name);
	} else {
		snprintf(p->reason, sizeof p->reason, "being timed both ways");
		p->gathered = malloc(p->total + 1);
		st = p->gathered ? coll_ctx_open(p->group, collective, values, &p->coll_ctx, err)
		             : error_set(err, GRADCOMP_ERR_NOMEM, "no memory for pieces of %llu bytes", (unsigned long long)p->total);
		given_up(p, st, err);
	}
	return st;
}

gradcomp_status gradcomp_parallel_create(gradcomp_group *group, const uint64_t *bytes, uint32_t n,
                                         gradcomp_parallel **out, gradcomp_error *err)
{
	gradcomp_error own = {0};
	gradcomp_status st = GRADCOMP_OK;
	gradcomp_parallel *p;
	if (!out)
		return error_set(err, GRADCOMP_ERR_INVALID, "out is NULL");
	*out = NULL;
	if (!group)
		return error_set(err, GRADCOMP_ERR_INVALID, "group is NULL");
	p = calloc(1, sizeof *p);
	if (!p) {
		job_fail(group->job, GRADCOMP_ERR_NOMEM, "no memory for shared work");
		return error_set(err, GRADCOMP_ERR_NOMEM, "no memory for shared work");
	}
	p->group = group;
	p->n = n;
	p->now = clock_now;
	p->bytes = malloc(((size_t)n + 1) * sizeof *p->bytes);
	p->seconds = calloc((size_t)n + 1, sizeof *p->seconds);
	p->cut = calloc((size_t)group->nranks + 1, sizeof *p->cut);
	p->blocks = calloc((size_t)group->nranks, sizeof *p->blocks);
	if (!p->bytes || !p->seconds || !p->cut || !p->blocks)
		st = error_set(&own, GRADCOMP_ERR_NOMEM, "no memory for %u pieces", n);
	else if (n && !bytes)
		st = error_set(&own, GRADCOMP_ERR_INVALID, "bytes is NULL for %u pieces", n);
	for (uint32_t i = 0; !st && i < n; i++) {
		if (bytes[i] > INT64_MAX - p->total)
			st = error_set(&own, GRADCOMP_ERR_RANGE, "the pieces up to %u make more bytes than memory can have", i);
		else
			p->total += p->bytes[i] = bytes[i];
	}
	st = same_pieces(p, st, &own);
	if (!st)
		st = open_collective(p, &own);
	job_count(group->job, 1);
	if (st) {
		error_set(err, st, "%s", own.text);
		gradcomp_parallel_free(p);
		return st;
	}
	*out = p;
	return GRADCOMP_OK;
}

const char *gradcomp_parallel_reason(const gradcomp_parallel *p)
{
	return p->reason;
}

void gradcomp_parallel_free(gradcomp_parallel *p)
{
	if (!p)
		return;
	job_count(p->group->job, -1);
	coll_ctx_close(&p->coll_ctx);
	free(p->bytes);
	free(p->seconds);
	free(p->cut);
	free(p->blocks);
	free(p->gathered);
	free(p);
}

/* ---- pieces of work in runs of neighbours ---- */

/* As many pieces into every run as weigh no more than `most`. Returns whether that
 * was all of them; the heaviest run is in *heaviest. */
static bool fill(const double *weight, uint32_t n, uint32_t runs, double most, uint32_t *cut, double *heaviest)
{
	uint32_t at = 0;
	*heaviest = 0;
	for (uint32_t r = 0; r < runs; r++) {
		double sum = 0;
		cut[r] = at;
		while (at < n && sum + weight[at] <= most)
			sum += weight[at++];
		if (sum > *heaviest)
			*heaviest = sum;
	}
	cut[runs] = n;
	return at == n;
}

double parallel_cut(const double *weight, uint32_t n, uint32_t runs, uint32_t *cut)
{
	double too_little = 0, enough = 0, heaviest = 0;
	for (uint32_t i = 0; i < n; i++)
		enough += weight[i];
	/* Halving a double comes to its end: there is nothing between. */
	for (;;) {
		double most = too_little + (enough - too_little) / 2;
		if (most <= too_little || most >= enough)
			break;
		if (fill(weight, n, runs, most, cut, &heaviest))
			enough = heaviest;
		else
			too_little = most;
	}
	fill(weight, n, runs, enough, cut, &heaviest);
	return heaviest;
}
