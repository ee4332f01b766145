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

/* Divides the pieces into runs by their seconds, or by bytes where no time passed. Returns the longest. */
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

/* Takes the slowest rank's times, which all ranks know then. */
static gradcomp_status agree_times(gradcomp_parallel *p, gradcomp_error *err)
{
	return p->coll_ctx.collective->allreduce(p->coll_ctx.instance, p->seconds, p->n + 1, GRADCOMP_F64, GRADCOMP_MAX,
	                                         1.0, err);
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

static const char *copy(const gradcomp_parallel *p, void *to, const void *from, uint64_t bytes)
{
	if (p->device)
		return device_coll_device(p->device)->copy(p->queue, to, from, bytes);
	memcpy(to, from, bytes);
	return NULL;
}

/* Copies between `out` and p->gathered: this rank's pieces into it, or all others out of it. */
static gradcomp_status move(const gradcomp_parallel *p, void *const *out, int in, gradcomp_error *err)
{
	const char *why = NULL;
	uint32_t from = p->cut[p->group->me], to = p->cut[p->group->me + 1];
	uint64_t at = 0;
	for (uint32_t i = 0; !why && i < p->n; at += p->bytes[i++]) {
		int mine = i >= from && i < to;
		if (in && mine && p->bytes[i])
			why = copy(p, p->gathered + at, out[i], p->bytes[i]);
		else if (!in && !mine && p->bytes[i])
			why = copy(p, out[i], p->gathered + at, p->bytes[i]);
	}
	return device_check(why, "a piece could not be copied", err);
}

/* Gathers all ranks' runs, from their places in buf. */
static gradcomp_status allgather(const gradcomp_parallel *p, char *buf, gradcomp_error *err)
{
	const coll_ctx *c = &p->coll_ctx;
	uint64_t before = 0;
	if (!p->device)
		return c->collective->allgather(c->instance, buf, p->blocks, err);
	for (int r = 0; r < p->group->me; r++)
		before += p->blocks[r];
	return device_coll_run(p->device,
	                       &(device_coll_call){.kind = DEVICE_ALLGATHER,
	                                           .buf = buf,
	                                           .in = buf ? buf + before : NULL,
	                                           .counts = p->blocks,
	                                           .dtype = GRADCOMP_U8,
	                                           .queue = p->queue},
	                       err);
}

static gradcomp_status gather(gradcomp_parallel *p, void *const *out, gradcomp_error *err)
{
	char *buf = contiguous(p, out);
	int apart = !buf && p->total;
	gradcomp_status st = GRADCOMP_OK;
	if (apart) {
		buf = p->gathered;
		st = move(p, out, 1, err);
	}
	if (!st)
		st = allgather(p, buf, err);
	return !st && apart ? move(p, out, 0, err) : st;
}

/* Pieces are work on the stream, which is timed there. */
static gradcomp_status do_all_timed(gradcomp_parallel *p, void (*work)(void *ctx, uint32_t piece), void *ctx,
                                    gradcomp_error *err)
{
	const device_calls *d = device_coll_device(p->device);
	double took = 0;
	const char *why = d->record(p->marks[0], p->queue);
	for (uint32_t i = 0; !why && i < p->n; i++) {
		work(ctx, i);
		why = d->record(p->marks[i + 1], p->queue);
	}
	if (!why)
		why = d->wait(p->marks[p->n]);
	for (uint32_t i = 0; !why && i < p->n; i++) {
		why = d->elapsed(p->marks[i], p->marks[i + 1], &took);
		faster(&p->seconds[i], took);
	}
	return device_check(why, "the time of a piece", err);
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

/* Does this rank's run, and gets the others' from them. Timed from when all ranks have done theirs. */
static gradcomp_status do_share(gradcomp_parallel *p, void *const *out, void (*work)(void *ctx, uint32_t piece),
                                void *ctx, int timed, gradcomp_error *err)
{
	gradcomp_status st = GRADCOMP_OK;
	double before = 0;
	for (uint32_t i = p->cut[p->group->me]; i < p->cut[p->group->me + 1]; i++)
		work(ctx, i);
	if (timed && p->device) {
		const device_calls *d = device_coll_device(p->device);
		const char *why = d->record(p->marks[0], p->queue);
		st = device_check(why ? why : d->wait(p->marks[0]), "the caller's stream", err);
	}
	if (timed && !st) {
		st = p->coll_ctx.collective->allreduce(p->coll_ctx.instance, &before, 1, GRADCOMP_F64, GRADCOMP_MAX,
		                                       1.0, err);
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

gradcomp_status gradcomp_parallel_apply(gradcomp_parallel *p, void *const *out, void (*work)(void *ctx, uint32_t piece),
                                        void *ctx, gradcomp_error *err)
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
		return group_commit(p->group, st, err);
	if (st)
		return given_up(p, st, &own);
	timed = timed_call(p->calls++, &last);
	for (uint32_t i = 0; timed == 0 && i <= p->n; i++)
		p->seconds[i] = -1;
	if (timed < 0 ? p->shared : timed % 2)
		st = do_share(p, out, work, ctx, timed > 0, &own);
	else if (p->device && timed >= 0)
		st = do_all_timed(p, work, ctx, &own);
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
	return group_commit(p->group, given_up(p, st, &own), err);
}

typedef struct pieces {
	uint64_t n, hash, total, on_device;
} pieces;

static void differing_pieces(const void *claim, const void *claim0, int first, char *out, size_t capacity)
{
	const pieces *a = claim, *b = claim0;
	if (a->on_device != b->on_device)
		snprintf(out, capacity, "has its pieces in %s memory, rank %d in %s memory",
		         a->on_device ? "CUDA" : "host", first, b->on_device ? "CUDA" : "host");
	else
		snprintf(
			out, capacity,
			"has %llu pieces that make %llu bytes, rank %d has %llu that make %llu; sizes must be equal piece by piece",
			(unsigned long long)a->n, (unsigned long long)a->total, first, (unsigned long long)b->n,
			(unsigned long long)b->total);
}

/* That all ranks have the same pieces, before one waits for another. */
static gradcomp_status same_pieces(gradcomp_parallel *p, bool on_device, gradcomp_status mine, gradcomp_error *err)
{
	pieces own = {.n = p->n, .total = p->total, .on_device = on_device};
	for (uint32_t i = 0; !mine && i < p->n; i++)
		own.hash = id_mix(own.hash, p->bytes[i]);
	return consensus(p->group, &(consensus_topic){"share its work", &own, sizeof own, differing_pieces, false},
	                 mine, err);
}

static gradcomp_status open_device(gradcomp_parallel *p, gradcomp_error *err)
{
	gradcomp_status st = device_coll_open(p->group, NULL, &p->device, err);
	const device_calls *d = st ? NULL : device_coll_device(p->device);
	const char *why = NULL;
	void *memory = NULL;
	if (st)
		return st;
	p->marks = calloc((size_t)p->n + 1, sizeof *p->marks);
	for (uint32_t i = 0; p->marks && !why && i <= p->n; i++)
		why = d->timer(&p->marks[i]);
	if (p->marks && !why)
		why = d->alloc(&memory, p->total + 1);
	p->gathered = memory;
	if (p->marks && !why)
		return GRADCOMP_OK;
	return given_up(p,
	                error_set(err, GRADCOMP_ERR_NOMEM, "no CUDA memory for pieces of %llu bytes: %s",
	                          (unsigned long long)p->total, why ? why : "no memory of the host"),
	                err);
}

static void close_device(gradcomp_parallel *p)
{
	if (!p->device)
		return;
	const device_calls *d = device_coll_device(p->device);
	for (uint32_t i = 0; p->marks && i <= p->n; i++)
		if (p->marks[i])
			d->event_free(p->marks[i]);
	free(p->marks);
	if (p->gathered)
		d->release(p->gathered);
	p->gathered = NULL;
	device_coll_close(p->device);
}

static gradcomp_status open_collective(gradcomp_parallel *p, bool on_device, gradcomp_error *err)
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
		if (on_device)
			st = open_device(p, err);
		else
			p->gathered = malloc(p->total + 1);
		if (st)
			return st;
		st = p->gathered ? group_coll_open(p->group, collective, values, &p->coll_ctx, err)
		                 : error_set(err, GRADCOMP_ERR_NOMEM, "no memory for pieces of %llu bytes",
		                             (unsigned long long)p->total);
		given_up(p, st, err);
	}
	return st;
}

gradcomp_status gradcomp_parallel_create(gradcomp_group *group, const uint64_t *bytes, uint32_t n,
                                         gradcomp_parallel **out, gradcomp_error *err)
{
	return gradcomp_parallel_create_on(group, NULL, bytes, n, out, err);
}

gradcomp_status gradcomp_parallel_create_on(gradcomp_group *group, const gradcomp_memory_options *where,
                                            const uint64_t *bytes, uint32_t n, gradcomp_parallel **out,
                                            gradcomp_error *err)
{
	const bool on_device = where && where->device != GRADCOMP_HOST;
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
	else if (on_device)
		st = group_memory_options_check(where, &own);
	if (!st && on_device)
		p->queue = where->queue;
	for (uint32_t i = 0; !st && i < n; i++) {
		if (bytes[i] > INT64_MAX - p->total)
			st = error_set(&own, GRADCOMP_ERR_RANGE,
			               "the pieces up to %u make more bytes than memory can have", i);
		else
			p->total += p->bytes[i] = bytes[i];
	}
	st = same_pieces(p, on_device, st, &own);
	if (!st)
		st = open_collective(p, on_device, &own);
	job_count(group->job, 1);
	st = group_commit(group, st, &own);
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
	group_coll_close(&p->coll_ctx);
	close_device(p);
	free(p->bytes);
	free(p->seconds);
	free(p->cut);
	free(p->blocks);
	free(p->gathered);
	free(p);
}

/* Puts as many pieces into every run as weigh no more than `most`. Returns whether that was all of them; the
 * heaviest run is in *heaviest. */
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
