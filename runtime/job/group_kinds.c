/* The collectives of a group: what a call is to be, and how each kind is carried out. They go through the job's
 * collective plugin; what that does not serve goes from each rank to every other one. */
#include "job/device_coll.h"
#include "job/group_calls.h"

#include "base/error.h"
#include "base/first_sizes.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Sums of more bytes than that go to their root as blocks that the ranks have summed. */
#define REDUCE_WHOLE_BYTES (64u << 10)
/* Transfers that exchange() has posted each way. */
#define EXCHANGE_AHEAD 8
/* Of a rank's buffer at a time, where the plugin does not serve a reduction. */
#define ALONE_BYTES (256u << 10)
/* More room is given back after a call. */
#define ROOM_KEPT ((size_t)64 << 20)

enum {
	KIND_REDUCES = 1,
	KIND_ROOTED = 2,
	KIND_MESSAGE = 4,
};

/* A call that is carried out. */
typedef struct collective_run {
	gradcomp_group *g;
	const coll_ctx *p;
	const gradcomp_links *l;
	const gradcomp_call *c;
	size_t size; /* bytes of an element */
	int me, n;
	bool plain;
	/* What the plugin and the operators are asked for, in place of GRADCOMP_AVG. */
	gradcomp_op op;
	double scale;
	bool divides; /* integers, by the number of ranks */
} collective_run;

/* What goes to a rank, and comes from it. */
typedef struct block_transfer {
	const void *out;
	void *in;
	uint64_t sent, received; /* bytes */
} block_transfer;

static bool is_float(gradcomp_dtype dtype)
{
	return dtype <= GRADCOMP_F64;
}

static gradcomp_status check(const gradcomp_group *g, const void *buf, uint64_t count, gradcomp_dtype dtype,
                             gradcomp_error *err)
{
	if (!g)
		return error_set(err, GRADCOMP_ERR_INVALID, "group is NULL");
	if (!gradcomp_dtype_bytes(dtype))
		return error_set(err, GRADCOMP_ERR_INVALID, "element type %d: must be 0..%d", (int)dtype, GRADCOMP_I16);
	if (count && !buf)
		return error_set(err, GRADCOMP_ERR_INVALID, "buffer is NULL for %llu elements",
		                 (unsigned long long)count);
	if (count > INT64_MAX / gradcomp_dtype_bytes(dtype))
		return error_set(err, GRADCOMP_ERR_RANGE, "%llu elements of %zu bytes are more than memory can have",
		                 (unsigned long long)count, gradcomp_dtype_bytes(dtype));
	return GRADCOMP_OK;
}

static gradcomp_status check_op(gradcomp_dtype dtype, gradcomp_op op, gradcomp_error *err)
{
	bool bits = op == GRADCOMP_BOR || op == GRADCOMP_BAND || op == GRADCOMP_BXOR;
	if ((unsigned)op > GRADCOMP_AVG)
		return error_set(err, GRADCOMP_ERR_INVALID, "operation %d: must be 0..%d", (int)op, GRADCOMP_AVG);
	if (dtype == GRADCOMP_F8E4M3 || dtype == GRADCOMP_F8E5M2)
		return error_set(err, GRADCOMP_ERR_UNSUPPORTED, "floats of 8 bits are not added up");
	return bits && is_float(dtype)
	               ? error_set(err, GRADCOMP_ERR_UNSUPPORTED, "bitwise %s has no meaning on floating types",
	                           op == GRADCOMP_BOR    ? "or"
	                           : op == GRADCOMP_BAND ? "and"
	                                                 : "exclusive or")
	               : GRADCOMP_OK;
}

static gradcomp_status check_root(const gradcomp_group *g, int root, gradcomp_error *err)
{
	return root < 0 || root >= g->nranks
	               ? error_set(err, GRADCOMP_ERR_INVALID, "root %d: must be 0..%d", root, g->nranks - 1)
	               : GRADCOMP_OK;
}

/* *total: bytes of all blocks. */
static gradcomp_status check_counts(const gradcomp_group *g, const uint64_t *counts, gradcomp_dtype dtype,
                                    uint64_t *total, gradcomp_error *err)
{
	*total = 0;
	if (!counts)
		return error_set(err, GRADCOMP_ERR_INVALID, "counts is NULL");
	for (int r = 0; r < g->nranks; r++) {
		if (counts[r] > (INT64_MAX - *total) / gradcomp_dtype_bytes(dtype))
			return error_set(err, GRADCOMP_ERR_RANGE, "counts up to rank %d are more than memory can have",
			                 r);
		*total += counts[r] * gradcomp_dtype_bytes(dtype);
	}
	return GRADCOMP_OK;
}

/* Checks the blocks that this rank has of one side of a call: all, or with `own` alone its own. */
static gradcomp_status check_side(const gradcomp_group *g, const gradcomp_call *c, const uint64_t *counts,
                                  const void *all, const void *const *each, bool own, gradcomp_error *err)
{
	gradcomp_dtype dtype = (gradcomp_dtype)c->dtype;
	uint64_t total = 0, mine = counts ? counts[g->me] : c->count;
	gradcomp_status st = GRADCOMP_OK;
	if (counts)
		st = check_counts(g, counts, dtype, &total, err);
	else if (c->count > INT64_MAX / gradcomp_dtype_bytes(dtype) / (uint64_t)g->nranks)
		st = error_set(err, GRADCOMP_ERR_RANGE, "%d blocks of %llu elements are more than memory can have",
		               g->nranks, (unsigned long long)c->count);
	else
		total = c->count * (uint64_t)g->nranks;
	if (st)
		return st;
	if (own)
		return mine && !all ? check(g, NULL, mine, dtype, err) : GRADCOMP_OK;
	for (int r = 0; each && r < g->nranks; r++)
		if ((counts ? counts[r] : c->count) && !each[r])
			return error_set(err, GRADCOMP_ERR_INVALID, "block %d is NULL for %llu elements", r,
			                 (unsigned long long)(counts ? counts[r] : c->count));
	return total && !all && !each ? check(g, NULL, total, dtype, err) : GRADCOMP_OK;
}

static gradcomp_status check_message(const gradcomp_group *g, const gradcomp_call *c, gradcomp_error *err)
{
	if (c->kind == GRADCOMP_CALL_RECV && c->peer == GRADCOMP_ANY_RANK)
		return GRADCOMP_OK;
	if (c->peer < 0 || c->peer >= g->nranks)
		return error_set(err, GRADCOMP_ERR_INVALID, "rank %d: must be 0..%d", c->peer, g->nranks - 1);
	return c->peer == g->me ? error_set(err, GRADCOMP_ERR_INVALID, "a message of rank %d to itself", g->me)
	                        : GRADCOMP_OK;
}

static gradcomp_status check_factor(const gradcomp_call *c, gradcomp_error *err)
{
	if (c->factor == 0 || c->factor == 1)
		return GRADCOMP_OK;
	if (!isfinite(c->factor))
		return error_set(err, GRADCOMP_ERR_INVALID, "factor %g: must be finite", c->factor);
	return is_float((gradcomp_dtype)c->dtype) && (c->op == GRADCOMP_SUM || c->op == GRADCOMP_AVG)
	               ? GRADCOMP_OK
	               : error_set(err, GRADCOMP_ERR_UNSUPPORTED,
	                           "a factor goes with sums and averages of floating types alone");
}

/* INVALID where a buffer that the kind needs is not given. */
static gradcomp_status check_buffers(const gradcomp_group *g, const gradcomp_call *c, gradcomp_error *err)
{
	gradcomp_dtype dtype = (gradcomp_dtype)c->dtype;
	bool root = c->peer == g->me;
	gradcomp_status st = GRADCOMP_OK;
	switch ((gradcomp_call_kind)c->kind) {
	case GRADCOMP_CALL_BARRIER:
		return GRADCOMP_OK;
	case GRADCOMP_CALL_ALLREDUCE:
	case GRADCOMP_CALL_BROADCAST:
	case GRADCOMP_CALL_RECV:
		return check(g, c->out, c->count, dtype, err);
	case GRADCOMP_CALL_REDUCE:
		return check(g, root || !c->in ? c->out : c->in, c->count, dtype, err);
	case GRADCOMP_CALL_SEND:
		return check(g, c->in, c->count, dtype, err);
	case GRADCOMP_CALL_ALLGATHER:
		return check_side(g, c, c->out_counts, c->out, (const void *const *)c->out_blocks, false, err);
	case GRADCOMP_CALL_GATHER:
		return root ? check_side(g, c, c->out_counts, c->out, (const void *const *)c->out_blocks, false, err)
		            : check_side(g, c, c->out_counts, c->in, NULL, true, err);
	case GRADCOMP_CALL_SCATTER:
		return root ? check_side(g, c, c->in_counts, c->in, c->in_blocks, false, err)
		            : check_side(g, c, c->in_counts, c->out, NULL, true, err);
	case GRADCOMP_CALL_REDUCE_SCATTER:
		st = check_side(g, c, c->in_counts, c->in, c->in_blocks, false, err);
		return st ? st : check_side(g, c, c->in_counts, c->out, NULL, true, err);
	case GRADCOMP_CALL_ALLTOALL:
		st = check_side(g, c, c->in_counts, c->in, c->in_blocks, false, err);
		if (!st && (c->in_counts ? c->in_counts[g->me] : c->count) !=
		                   (c->out_counts ? c->out_counts[g->me] : c->count))
			st = error_set(err, GRADCOMP_ERR_INVALID,
			               "this rank sends itself another number of elements than it receives");
		return st ? st
		          : check_side(g, c, c->out_counts, c->out, (const void *const *)c->out_blocks, false, err);
	}
	return error_set(err, GRADCOMP_ERR_INVALID, "kind %u of a call: must be 0..%d", c->kind, GRADCOMP_CALL_RECV);
}

static const unsigned traits_of[] = {
	[GRADCOMP_CALL_ALLREDUCE] = KIND_REDUCES,
	[GRADCOMP_CALL_REDUCE] = KIND_REDUCES | KIND_ROOTED,
	[GRADCOMP_CALL_BROADCAST] = KIND_ROOTED,
	[GRADCOMP_CALL_GATHER] = KIND_ROOTED,
	[GRADCOMP_CALL_SCATTER] = KIND_ROOTED,
	[GRADCOMP_CALL_REDUCE_SCATTER] = KIND_REDUCES,
	[GRADCOMP_CALL_ALLTOALL] = 0,
	[GRADCOMP_CALL_SEND] = KIND_MESSAGE,
	[GRADCOMP_CALL_RECV] = KIND_MESSAGE,
};

gradcomp_status group_call_check(const gradcomp_group *g, const gradcomp_call *c, gradcomp_error *err)
{
	unsigned traits = c->kind <= GRADCOMP_CALL_RECV ? traits_of[c->kind] : 0;
	gradcomp_status st = check(g, NULL, 0, (gradcomp_dtype)c->dtype, err);
	if (!st)
		st = check_buffers(g, c, err);
	if (!st && traits & KIND_REDUCES)
		st = check_op((gradcomp_dtype)c->dtype, (gradcomp_op)c->op, err);
	if (!st && traits & KIND_REDUCES)
		st = check_factor(c, err);
	if (!st && traits & KIND_ROOTED)
		st = check_root(g, c->peer, err);
	if (!st && traits & KIND_MESSAGE)
		st = check_message(g, c, err);
	if (!st && c->flags & ~GRADCOMP_CALL_OVERWRITE)
		st = error_set(err, GRADCOMP_ERR_INVALID, "flags 0x%x: must be 0 or 0x%x", c->flags,
		               GRADCOMP_CALL_OVERWRITE);
	if (!st && !(c->timeout >= 0 && isfinite(c->timeout)))
		st = error_set(err, GRADCOMP_ERR_INVALID, "timeout %g: must be 0 or more seconds", c->timeout);
	return st;
}

/* Room, and blocks. */

void group_room_free(group_room *room)
{
	free(room->bytes);
	free(room->sizes);
	free(room->transfers);
	*room = (group_room){0};
}

static gradcomp_status room_get(const collective_run *x, uint64_t bytes, char **out, gradcomp_error *err)
{
	group_room *room = &x->g->room;
	if (bytes > room->capacity) {
		free(room->bytes);
		room->capacity = (bytes + 4095) & ~(uint64_t)4095;
		room->bytes = aligned_alloc(4096, room->capacity);
	}
	*out = room->bytes;
	if (bytes && !room->bytes) {
		room->capacity = 0;
		return error_set(err, GRADCOMP_ERR_NOMEM, "no memory for %llu bytes of a collective",
		                 (unsigned long long)bytes);
	}
	return GRADCOMP_OK;
}

static gradcomp_status room_open(group_room *room, int n, gradcomp_error *err)
{
	if (room->sizes)
		return GRADCOMP_OK;
	room->sizes = calloc((size_t)n, sizeof *room->sizes);
	room->transfers = calloc((size_t)n, sizeof *room->transfers);
	if (room->sizes && room->transfers)
		return GRADCOMP_OK;
	group_room_free(room);
	return error_set(err, GRADCOMP_ERR_NOMEM, "no memory for %d blocks", n);
}

/* Elements of block r of one side. */
static uint64_t block_count(const collective_run *x, const uint64_t *counts, int r)
{
	return counts ? counts[r] : x->c->count;
}

/* Bytes before block r. */
static uint64_t block_begin(const collective_run *x, const uint64_t *counts, int r)
{
	uint64_t at = 0;
	if (!counts)
		return x->c->count * (uint64_t)r * x->size;
	for (int i = 0; i < r; i++)
		at += counts[i];
	return at * x->size;
}

static void copy(void *to, const void *from, uint64_t bytes)
{
	if (bytes && to != from)
		memmove(to, from, bytes);
}

/* Describes the blocks of `out` in all transfers: NULL for none. */
static void outgoing(const collective_run *x, const uint64_t *counts, const void *all, const void *const *each)
{
	uint64_t at = 0;
	for (int r = 0; r < x->n; r++) {
		block_transfer *t = &x->g->room.transfers[r];
		t->sent = block_count(x, counts, r) * x->size;
		t->out = each ? each[r] : (const char *)all + at;
		at += t->sent;
	}
}

static void incoming(const collective_run *x, const uint64_t *counts, void *all, void *const *each)
{
	uint64_t at = 0;
	for (int r = 0; r < x->n; r++) {
		block_transfer *t = &x->g->room.transfers[r];
		t->received = block_count(x, counts, r) * x->size;
		t->in = each ? each[r] : (char *)all + at;
		at += t->received;
	}
}

static block_transfer *no_transfers(const collective_run *x)
{
	memset(x->g->room.transfers, 0, (size_t)x->n * sizeof *x->g->room.transfers);
	return x->g->room.transfers;
}

/* Carries out the transfers with all other ranks, at distance 1, 2, ...; this rank's own is a copy. */
static gradcomp_status exchange(const collective_run *x, gradcomp_error *err)
{
	const gradcomp_links *l = x->l;
	const block_transfer *t = x->g->room.transfers;
	gradcomp_request in[EXCHANGE_AHEAD], out[EXCHANGE_AHEAD];
	gradcomp_status st = GRADCOMP_OK;
	int n = x->n, posted = 1;
	if (t[x->me].received && t[x->me].sent)
		copy(t[x->me].in, t[x->me].out, t[x->me].received);
	for (int d = 1; !st && d < n; d++) {
		for (; !st && posted < n && posted < d + EXCHANGE_AHEAD; posted++) {
			int k = posted % EXCHANGE_AHEAD, from = (x->me + n - posted) % n, to = (x->me + posted) % n;
			if (t[from].received)
				st = l->recv(l->ctx, from, t[from].in, t[from].received, &in[k], err);
			if (!st && t[to].sent)
				st = l->send(l->ctx, to, t[to].out, t[to].sent, &out[k], err);
		}
		if (!st && t[(x->me + n - d) % n].received)
			st = l->wait(l->ctx, &in[d % EXCHANGE_AHEAD], err);
		if (!st && t[(x->me + d) % n].sent)
			st = l->wait(l->ctx, &out[d % EXCHANGE_AHEAD], err);
	}
	return st;
}

/* The collective has no such primitive. */
static gradcomp_status unserved(const collective_run *x, const char *what, gradcomp_error *err)
{
	return error_set(err, GRADCOMP_ERR_UNSUPPORTED, "collective '%s' serves no %s", x->p->collective->info.name,
	                 what);
}

/* Reductions. */

/* Returns true when the plugin's reductions take the type and the operation. */
static bool takes(const collective_run *x)
{
	return x->p->collective->traits & GRADCOMP_TRAIT_ALL_TYPES ||
	       (x->c->dtype <= GRADCOMP_U8 && x->op <= GRADCOMP_BOR);
}

#define DIVIDE(type) \
	do { \
		type *y = buf; \
		for (uint64_t i = 0; i < count; i++) \
			y[i] = (type)(y[i] / x->n); \
	} while (0)

/* What is left to do with a sum. */
static void divide(const collective_run *x, void *buf, uint64_t count)
{
	if (!x->divides)
		return;
	switch (x->size) {
	case 1:
		if (x->c->dtype == GRADCOMP_U8)
			DIVIDE(uint8_t);
		else
			DIVIDE(int8_t);
		break;
	case 2:
		DIVIDE(int16_t);
		break;
	case 4:
		DIVIDE(int32_t);
		break;
	default:
		DIVIDE(int64_t);
	}
}

static gradcomp_status reduce_in(const collective_run *x, void *acc, const void *in, uint64_t count,
                                 gradcomp_error *err)
{
	gradcomp_status st =
		x->g->job->host.operators->reduce(NULL, acc, in, count, (gradcomp_dtype)x->c->dtype, x->op);
	return st ? error_set(err, st, "operation %d has no meaning on elements of type %d", (int)x->op,
	                      (int)x->c->dtype)
	          : GRADCOMP_OK;
}

/* Multiplies what is there by `scale`, which floats alone have. */
static gradcomp_status scale_by(const collective_run *x, void *buf, uint64_t count, double scale, gradcomp_error *err)
{
	gradcomp_status st = GRADCOMP_OK;
	if (scale != 1 && count)
		st = x->g->job->host.operators->scale_as(NULL, buf, scale, count, (gradcomp_dtype)x->c->dtype);
	return st ? error_set(err, st, "elements of type %d are not scaled", (int)x->c->dtype) : GRADCOMP_OK;
}

/* Every rank gets all parts, piece by piece, and reduces them in the order of ranks. */
static gradcomp_status all_reduce_alone(const collective_run *x, char *buf, uint64_t count, gradcomp_error *err)
{
	uint64_t piece = ALONE_BYTES / x->size, n;
	char *parts = malloc((size_t)x->n * (count < piece ? count : piece) * x->size + 1);
	gradcomp_status st =
		parts ? GRADCOMP_OK : error_set(err, GRADCOMP_ERR_NOMEM, "no memory for the parts of %d ranks", x->n);
	for (uint64_t at = 0; !st && at < count; at += n) {
		char *here = buf + at * x->size;
		n = count - at < piece ? count - at : piece;
		for (int r = 0; r < x->n; r++)
			x->g->room.transfers[r] =
				(block_transfer){here, parts + (uint64_t)r * n * x->size, n * x->size, n * x->size};
		st = exchange(x, err);
		if (!st)
			memcpy(here, parts, n * x->size);
		for (int r = 1; !st && r < x->n; r++)
			st = reduce_in(x, here, parts + (uint64_t)r * n * x->size, n, err);
	}
	free(parts);
	return st ? st : scale_by(x, buf, count, x->scale, err);
}

/* In place. */
static gradcomp_status all_reduce(const collective_run *x, void *buf, uint64_t count, gradcomp_error *err)
{
	const struct gradcomp_collective_v1 *k = x->p->collective;
	gradcomp_status st;
	if (!k->allreduce && x->plain)
		return unserved(x, "all-reduce", err);
	st = k->allreduce && takes(x)
	             ? k->allreduce(x->p->instance, buf, count, (gradcomp_dtype)x->c->dtype, x->op, x->scale, err)
	             : all_reduce_alone(x, buf, count, err);
	if (!st)
		divide(x, buf, count);
	return st;
}

/* Every rank gets all parts of its block; on return it is reduced in place. */
static gradcomp_status reduce_scatter_alone(const collective_run *x, char *buf, const uint64_t *counts,
                                            gradcomp_error *err)
{
	uint64_t own = counts[x->me], begin = 0;
	char *parts = malloc((size_t)x->n * own * x->size + 1);
	gradcomp_status st = GRADCOMP_OK;
	if (!parts)
		return error_set(err, GRADCOMP_ERR_NOMEM, "no memory for %d blocks of %llu elements", x->n,
		                 (unsigned long long)own);
	for (int r = 0; r < x->me; r++)
		begin += counts[r] * x->size;
	outgoing(x, counts, buf, NULL);
	for (int r = 0; r < x->n; r++) {
		x->g->room.transfers[r].in = parts + (uint64_t)r * own * x->size;
		x->g->room.transfers[r].received = own * x->size;
	}
	st = exchange(x, err);
	if (!st && own)
		memcpy(buf + begin, parts, own * x->size);
	for (int r = 1; !st && r < x->n; r++)
		st = reduce_in(x, buf + begin, parts + (uint64_t)r * own * x->size, own, err);
	free(parts);
	return st ? st : scale_by(x, buf + begin, own, x->scale, err);
}

/* This rank's block in place. */
static gradcomp_status reduce_scatter(const collective_run *x, char *buf, const uint64_t *counts, gradcomp_error *err)
{
	const struct gradcomp_collective_v1 *k = x->p->collective;
	uint64_t begin = 0;
	gradcomp_status st;
	if (!k->reduce_scatter && x->plain)
		return unserved(x, "reduce-scatter", err);
	st = k->reduce_scatter && takes(x)
	             ? k->reduce_scatter(x->p->instance, buf, counts, (gradcomp_dtype)x->c->dtype, x->op, x->scale, err)
	             : reduce_scatter_alone(x, buf, counts, err);
	for (int r = 0; r < x->me; r++)
		begin += counts[r] * x->size;
	if (!st)
		divide(x, buf + begin, counts[x->me]);
	return st;
}

static gradcomp_status premultiply(const collective_run *x, void *buf, uint64_t count, gradcomp_error *err)
{
	return x->c->factor == 0 ? GRADCOMP_OK : scale_by(x, buf, count, x->c->factor, err);
}

/* The kinds. */

static gradcomp_status run_allreduce(const collective_run *x, gradcomp_error *err)
{
	const gradcomp_call *c = x->c;
	gradcomp_status st;
	if (c->in)
		copy(c->out, c->in, c->count * x->size);
	st = premultiply(x, c->out, c->count, err);
	return st ? st : all_reduce(x, c->out, c->count, err);
}

/* The ranks sum a block each, which then go to the root. */
static gradcomp_status reduce_by_blocks(const collective_run *x, char *buf, gradcomp_error *err)
{
	uint64_t *counts = x->g->room.sizes, count = x->c->count, P = (uint64_t)x->n, at = 0;
	gradcomp_status st;
	for (uint64_t r = 0; r < P; r++)
		counts[r] = count / P + (r < count % P);
	st = reduce_scatter(x, buf, counts, err);
	if (st)
		return st;
	block_transfer *t = no_transfers(x);
	for (int r = 0; r < x->n; at += counts[r++] * x->size) {
		if (x->me == x->c->peer && r != x->me)
			t[r] = (block_transfer){.in = buf + at, .received = counts[r] * x->size};
		else if (x->me != x->c->peer && r == x->me)
			t[x->c->peer] = (block_transfer){.out = buf + at, .sent = counts[r] * x->size};
	}
	return exchange(x, err);
}

static gradcomp_status run_reduce(const collective_run *x, gradcomp_error *err)
{
	const gradcomp_call *c = x->c;
	uint64_t bytes = c->count * x->size;
	char *buf = c->out;
	gradcomp_status st = GRADCOMP_OK;
	/* Where `out` is not this rank's input it is not to be touched. */
	bool apart = x->me != c->peer && c->in && c->in != c->out;
	if (apart)
		st = room_get(x, bytes, &buf, err);
	if (st)
		return st;
	if (c->in)
		copy(buf, c->in, bytes);
	st = premultiply(x, buf, c->count, err);
	if (!st)
		st = bytes > REDUCE_WHOLE_BYTES && x->n > 1 ? reduce_by_blocks(x, buf, err)
		                                            : all_reduce(x, buf, c->count, err);
	return st;
}

static gradcomp_status run_broadcast(const collective_run *x, gradcomp_error *err)
{
	const gradcomp_call *c = x->c;
	uint64_t bytes = c->count * x->size;
	if (c->in && x->me == c->peer)
		copy(c->out, c->in, bytes);
	if (x->p->collective->broadcast)
		return x->p->collective->broadcast(x->p->instance, c->out, bytes, c->peer, err);
	if (x->plain)
		return unserved(x, "broadcast", err);
	block_transfer *t = no_transfers(x);
	for (int r = 0; x->me == c->peer && r < x->n; r++)
		t[r] = (block_transfer){.out = c->out, .sent = bytes};
	if (x->me != c->peer)
		t[c->peer] = (block_transfer){.in = c->out, .received = bytes};
	return exchange(x, err);
}

/* Over the plugin, into `out`, whose blocks stand one after another. */
static gradcomp_status gather_in_place(const collective_run *x, char *out, gradcomp_error *err)
{
	const gradcomp_call *c = x->c;
	uint64_t *bytes = x->g->room.sizes;
	for (int r = 0; r < x->n; r++)
		bytes[r] = block_count(x, c->out_counts, r) * x->size;
	if (c->in)
		copy(out + block_begin(x, c->out_counts, x->me), c->in, bytes[x->me]);
	return x->p->collective->allgather(x->p->instance, out, bytes, err);
}

static gradcomp_status run_allgather(const collective_run *x, gradcomp_error *err)
{
	const gradcomp_call *c = x->c;
	bool served = x->p->collective->allgather != NULL;
	uint64_t own = block_count(x, c->out_counts, x->me) * x->size, at = 0;
	char *room;
	gradcomp_status st;
	if (!served && x->plain)
		return unserved(x, "all-gather", err);
	if (served && !c->out_blocks)
		return gather_in_place(x, c->out, err);
	if (served && x->l->nnodes > 1 && c->in) {
		/* The plugin knows what the network is like. */
		st = room_get(x, block_begin(x, c->out_counts, x->n), &room, err);
		if (!st)
			st = gather_in_place(x, room, err);
		for (int r = 0; !st && r < x->n; at += x->g->room.sizes[r++])
			copy(c->out_blocks[r], room + at, x->g->room.sizes[r]);
		return st;
	}
	incoming(x, c->out_counts, c->out, c->out_blocks);
	block_transfer *t = x->g->room.transfers;
	for (int r = 0; r < x->n; r++) {
		t[r].out = c->in ? c->in : t[x->me].in;
		t[r].sent = own;
	}
	return exchange(x, err);
}

static gradcomp_status run_gather(const collective_run *x, gradcomp_error *err)
{
	const gradcomp_call *c = x->c;
	block_transfer *t = no_transfers(x), *own = &t[c->peer];
	if (x->me == c->peer)
		incoming(x, c->out_counts, c->out, c->out_blocks);
	own->out = c->in || x->me != c->peer ? c->in : own->in;
	own->sent = block_count(x, c->out_counts, x->me) * x->size;
	return exchange(x, err);
}

static gradcomp_status run_scatter(const collective_run *x, gradcomp_error *err)
{
	const gradcomp_call *c = x->c;
	block_transfer *t = no_transfers(x), *own = &t[c->peer];
	if (x->me == c->peer)
		outgoing(x, c->in_counts, c->in, c->in_blocks);
	own->in = c->out || x->me != c->peer ? c->out : (void *)(uintptr_t)own->out;
	own->received = block_count(x, c->in_counts, x->me) * x->size;
	return exchange(x, err);
}

static gradcomp_status run_reduce_scatter(const collective_run *x, gradcomp_error *err)
{
	const gradcomp_call *c = x->c;
	uint64_t *counts = x->g->room.sizes, total = block_begin(x, c->in_counts, x->n), at = 0;
	/* With blocks apart, there is no buffer to work in. */
	bool here = c->flags & GRADCOMP_CALL_OVERWRITE && !c->in_blocks;
	char *buf = (char *)(uintptr_t)c->in;
	gradcomp_status st = GRADCOMP_OK;
	if (!here) {
		st = room_get(x, total, &buf, err);
		for (int r = 0; !st && r < x->n; r++) {
			uint64_t bytes = block_count(x, c->in_counts, r) * x->size;
			copy(buf + at, c->in_blocks ? c->in_blocks[r] : (const char *)c->in + at, bytes);
			at += bytes;
		}
	}
	for (int r = 0; r < x->n; r++)
		counts[r] = block_count(x, c->in_counts, r);
	if (!st)
		st = premultiply(x, buf, total / x->size, err);
	if (!st)
		st = reduce_scatter(x, buf, counts, err);
	if (!st)
		copy(c->out, buf + block_begin(x, c->in_counts, x->me), counts[x->me] * x->size);
	return st;
}

static gradcomp_status run_alltoall(const collective_run *x, gradcomp_error *err)
{
	const gradcomp_call *c = x->c;
	outgoing(x, c->in_counts, c->in, c->in_blocks);
	incoming(x, c->out_counts, c->out, c->out_blocks);
	return exchange(x, err);
}

static gradcomp_status run_barrier(const collective_run *x, gradcomp_error *err)
{
	if (x->p->collective->barrier)
		return x->p->collective->barrier(x->p->instance, err);
	return x->plain ? unserved(x, "barrier", err) : group_meet(x->p->channel, err);
}

gradcomp_status group_collective(gradcomp_group *g, const gradcomp_call *c, bool plain, gradcomp_error *err)
{
	static gradcomp_status (*const run[])(const collective_run *, gradcomp_error *) = {
		[GRADCOMP_CALL_BARRIER] = run_barrier,     [GRADCOMP_CALL_ALLREDUCE] = run_allreduce,
		[GRADCOMP_CALL_REDUCE] = run_reduce,       [GRADCOMP_CALL_BROADCAST] = run_broadcast,
		[GRADCOMP_CALL_ALLGATHER] = run_allgather, [GRADCOMP_CALL_GATHER] = run_gather,
		[GRADCOMP_CALL_SCATTER] = run_scatter,     [GRADCOMP_CALL_REDUCE_SCATTER] = run_reduce_scatter,
		[GRADCOMP_CALL_ALLTOALL] = run_alltoall,
	};
	bool average = traits_of[c->kind] & KIND_REDUCES && c->op == GRADCOMP_AVG;
	collective_run x = {.g = g,
	                    .p = &g->blocking,
	                    .l = channel_links(g->blocking.channel),
	                    .c = c,
	                    .size = gradcomp_dtype_bytes((gradcomp_dtype)c->dtype),
	                    .me = g->me,
	                    .n = g->nranks,
	                    .plain = plain,
	                    .op = average ? GRADCOMP_SUM : (gradcomp_op)c->op,
	                    .scale = average && is_float((gradcomp_dtype)c->dtype) ? 1.0 / g->nranks : 1.0,
	                    .divides = average && !is_float((gradcomp_dtype)c->dtype)};
	gradcomp_status st = room_open(&g->room, g->nranks, err);
	if (!st)
		st = run[c->kind](&x, err);
	if (g->room.capacity > ROOM_KEPT)
		group_room_free(&g->room);
	return st;
}
