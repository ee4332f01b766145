/* Groups of ranks, their channels and the plain collectives. */
#include "job.h"

#include "error.h"

#include <stdlib.h>
#include <string.h>

uint64_t id_mix(uint64_t a, uint64_t b)
{
	uint64_t z = a * 0x9e3779b97f4a7c15u + b + 0x632be59bd9b4e019u;
	z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
	z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
	return z ^ (z >> 31);
}

gradcomp_status group_create(gradcomp_job *job, uint64_t id, const int *ranks, int n, int me, gradcomp_group **out,
                             gradcomp_error *err)
{
	gradcomp_group *g = calloc(1, sizeof *g);
	if (g)
		g->ranks = malloc((size_t)n * sizeof *g->ranks);
	if (!g || !g->ranks) {
		free(g);
		return error_set(err, GRADCOMP_ERR_NOMEM, "no memory for a group of %d ranks", n);
	}
	memcpy(g->ranks, ranks, (size_t)n * sizeof *g->ranks);
	g->job = job;
	g->id = id;
	g->nranks = n;
	g->me = me;
	pthread_mutex_init(&g->lock, NULL);
	*out = g;
	return GRADCOMP_OK;
}

void group_destroy(gradcomp_group *g)
{
	if (!g)
		return;
	port_close(&g->plain);
	pthread_mutex_destroy(&g->lock);
	free(g->ranks);
	free(g);
}

gradcomp_status port_open(gradcomp_group *g, const plugin *collective, const spec *spec, port *out,
                          gradcomp_error *err)
{
	gradcomp_job *job = g->job;
	gradcomp_status st;
	memset(out, 0, sizeof *out);
	st = channel_open(job->transport, id_mix(g->id, ++g->channels), g->ranks, g->nranks, g->me, &out->channel,
	                  err);
	if (st)
		return st;
	st = collective->collective->create(&job->host, spec->values, channel_links(out->channel), &out->instance, err);
	if (st) {
		channel_close(out->channel);
		memset(out, 0, sizeof *out);
		return st;
	}
	out->collective = collective->collective;
	return GRADCOMP_OK;
}

void port_close(port *p)
{
	if (p->collective)
		p->collective->destroy(p->instance);
	if (p->channel)
		channel_close(p->channel);
	memset(p, 0, sizeof *p);
}

/* The group's plain port, with its lock held on success. */
static gradcomp_status plain_lock(gradcomp_group *g, port **out, gradcomp_error *err)
{
	gradcomp_job *job = g->job;
	gradcomp_status st = GRADCOMP_OK;
	char name[SPEC_NAME_MAX];
	const char *text = config_str(job->config, "gradcomp.collective");
	const plugin *p;
	spec s;
	pthread_mutex_lock(&g->lock);
	if (!g->plain.channel) {
		st = spec_name(text, name, err);
		if (!st)
			st = registry_open(job->config, GRADCOMP_KIND_COLLECTIVE, name, &p, err);
		if (!st)
			st = spec_parse(p->info, text, &s, err);
		if (!st) {
			st = port_open(g, p, &s, &g->plain, err);
			spec_clear(&s);
		}
	}
	if (!st)
		st = transport_failure(job->transport, err);
	if (st)
		pthread_mutex_unlock(&g->lock);
	else
		*out = &g->plain;
	return st;
}

/* What a missing primitive means to the caller. */
static gradcomp_status lacks(const port *p, const char *what, gradcomp_error *err)
{
	return error_set(err, GRADCOMP_ERR_UNSUPPORTED, "collective '%s' serves no %s", p->collective->info.name, what);
}

static size_t dtype_size(gradcomp_dtype dtype)
{
	static const size_t size[] = {[GRADCOMP_F32] = 4, [GRADCOMP_F16] = 2, [GRADCOMP_BF16] = 2, [GRADCOMP_F64] = 8,
	                              [GRADCOMP_I32] = 4, [GRADCOMP_I64] = 8, [GRADCOMP_U8] = 1};
	return (unsigned)dtype < sizeof size / sizeof size[0] ? size[dtype] : 0;
}

static gradcomp_status check(const gradcomp_group *g, const void *buf, uint64_t count, gradcomp_dtype dtype,
                             gradcomp_error *err)
{
	if (!g)
		return error_set(err, GRADCOMP_ERR_INVALID, "group is NULL");
	if (!dtype_size(dtype))
		return error_set(err, GRADCOMP_ERR_INVALID, "element type %d: must be 0..%d", (int)dtype, GRADCOMP_U8);
	if (count && !buf)
		return error_set(err, GRADCOMP_ERR_INVALID, "buffer is NULL for %llu elements", (unsigned long long)count);
	if (count > INT64_MAX / dtype_size(dtype))
		return error_set(err, GRADCOMP_ERR_RANGE, "%llu elements of %zu bytes are more than memory can have",
		                 (unsigned long long)count, dtype_size(dtype));
	return GRADCOMP_OK;
}

gradcomp_status gradcomp_allreduce(gradcomp_group *g, void *buf, uint64_t count, gradcomp_dtype dtype,
                                   gradcomp_op op, gradcomp_error *err)
{
	port *p;
	gradcomp_status st = check(g, buf, count, dtype, err);
	if (!st && (unsigned)op > GRADCOMP_BOR)
		st = error_set(err, GRADCOMP_ERR_INVALID, "operation %d: must be 0..%d", (int)op, GRADCOMP_BOR);
	if (!st && op == GRADCOMP_BOR && dtype <= GRADCOMP_F64)
		st = error_set(err, GRADCOMP_ERR_UNSUPPORTED, "bitwise or has no meaning on floating types");
	if (!st)
		st = plain_lock(g, &p, err);
	if (st)
		return st;
	st = p->collective->allreduce ? p->collective->allreduce(p->instance, buf, count, dtype, op, 1.0, err)
	                              : lacks(p, "all-reduce", err);
	pthread_mutex_unlock(&g->lock);
	return st;
}

/* Bytes of every block, and of all; freed by the caller. */
static gradcomp_status block_bytes(const gradcomp_group *g, const uint64_t *counts, gradcomp_dtype dtype,
                                   uint64_t **bytes, uint64_t *before, gradcomp_error *err)
{
	uint64_t total = 0;
	if (!counts)
		return error_set(err, GRADCOMP_ERR_INVALID, "counts is NULL");
	*bytes = malloc((size_t)g->nranks * sizeof **bytes);
	if (!*bytes)
		return error_set(err, GRADCOMP_ERR_NOMEM, "no memory for %d counts", g->nranks);
	for (int r = 0; r < g->nranks; r++) {
		if (r == g->me)
			*before = total;
		if (counts[r] > (INT64_MAX - total) / dtype_size(dtype)) {
			free(*bytes);
			return error_set(err, GRADCOMP_ERR_RANGE, "counts up to rank %d are more than memory can have", r);
		}
		(*bytes)[r] = counts[r] * dtype_size(dtype);
		total += (*bytes)[r];
	}
	return GRADCOMP_OK;
}

gradcomp_status gradcomp_allgather(gradcomp_group *g, const void *in, void *out, const uint64_t *counts,
                                   gradcomp_dtype dtype, gradcomp_error *err)
{
	port *p;
	uint64_t *bytes, before;
	gradcomp_status st = check(g, out, 0, dtype, err);
	if (!st)
		st = block_bytes(g, counts, dtype, &bytes, &before, err);
	if (st)
		return st;
	st = plain_lock(g, &p, err);
	if (!st) {
		if (bytes[g->me] && (char *)out + before != (const char *)in)
			memmove((char *)out + before, in, bytes[g->me]);
		st = p->collective->allgather ? p->collective->allgather(p->instance, out, bytes, err)
		                              : lacks(p, "all-gather", err);
		pthread_mutex_unlock(&g->lock);
	}
	free(bytes);
	return st;
}

gradcomp_status gradcomp_reduce_scatter(gradcomp_group *g, void *in, void *out, const uint64_t *counts,
                                        gradcomp_dtype dtype, gradcomp_op op, gradcomp_error *err)
{
	port *p;
	uint64_t *bytes, before;
	gradcomp_status st = check(g, out, 0, dtype, err);
	if (!st)
		st = block_bytes(g, counts, dtype, &bytes, &before, err);
	if (st)
		return st;
	st = plain_lock(g, &p, err);
	if (!st) {
		st = p->collective->reduce_scatter
		             ? p->collective->reduce_scatter(p->instance, in, counts, dtype, op, 1.0, err)
		             : lacks(p, "reduce-scatter", err);
		if (!st && bytes[g->me])
			memmove(out, (char *)in + before, bytes[g->me]);
		pthread_mutex_unlock(&g->lock);
	}
	free(bytes);
	return st;
}

gradcomp_status gradcomp_broadcast(gradcomp_group *g, void *buf, uint64_t count, gradcomp_dtype dtype, int root,
                                   gradcomp_error *err)
{
	port *p;
	gradcomp_status st = check(g, buf, count, dtype, err);
	if (!st && (root < 0 || root >= g->nranks))
		st = error_set(err, GRADCOMP_ERR_INVALID, "root %d: must be 0..%d", root, g->nranks - 1);
	if (!st)
		st = plain_lock(g, &p, err);
	if (st)
		return st;
	st = p->collective->broadcast
	             ? p->collective->broadcast(p->instance, buf, count * dtype_size(dtype), root, err)
	             : lacks(p, "broadcast", err);
	pthread_mutex_unlock(&g->lock);
	return st;
}

gradcomp_status gradcomp_barrier(gradcomp_group *g, gradcomp_error *err)
{
	port *p;
	gradcomp_status st = check(g, NULL, 0, GRADCOMP_U8, err);
	if (!st)
		st = plain_lock(g, &p, err);
	if (st)
		return st;
	st = p->collective->barrier ? p->collective->barrier(p->instance, err) : lacks(p, "barrier", err);
	pthread_mutex_unlock(&g->lock);
	return st;
}

gradcomp_status group_exchange(gradcomp_group *g, const void *mine, void *all, size_t bytes, gradcomp_error *err)
{
	uint64_t *counts = malloc((size_t)g->nranks * sizeof *counts);
	gradcomp_status st;
	if (!counts)
		return error_set(err, GRADCOMP_ERR_NOMEM, "no memory for %d counts", g->nranks);
	for (int r = 0; r < g->nranks; r++)
		counts[r] = bytes;
	st = gradcomp_allgather(g, mine, all, counts, GRADCOMP_U8, err);
	free(counts);
	return st;
}

struct claim {
	int32_t colour, key, rank, world;
};

static int by_key(const void *a, const void *b)
{
	const struct claim *x = a, *y = b;
	return x->key != y->key ? (x->key > y->key) - (x->key < y->key) : (x->rank > y->rank) - (x->rank < y->rank);
}

gradcomp_status gradcomp_group_split(gradcomp_group *parent, int colour, int key, gradcomp_group **out,
                                     gradcomp_error *err)
{
	struct claim mine = {colour, key, 0, 0}, *all = NULL;
	int *ranks = NULL, n = 0, me = 0;
	gradcomp_status st;
	*out = NULL;
	if (!parent || colour < -1)
		return error_set(err, GRADCOMP_ERR_INVALID, "colour %d: must be -1 (in none) or more", colour);
	mine.rank = parent->me;
	mine.world = parent->ranks[parent->me];
	all = calloc((size_t)parent->nranks, sizeof *all);
	ranks = calloc((size_t)parent->nranks, sizeof *ranks);
	if (!all || !ranks) {
		st = error_set(err, GRADCOMP_ERR_NOMEM, "no memory to split a group of %d ranks", parent->nranks);
		goto done;
	}
	st = group_exchange(parent, &mine, all, sizeof mine, err);
	if (st)
		goto done;
	parent->splits++;
	if (colour < 0)
		goto done;
	qsort(all, (size_t)parent->nranks, sizeof *all, by_key);
	for (int r = 0; r < parent->nranks; r++) {
		if (all[r].colour != colour)
			continue;
		if (all[r].rank == parent->me)
			me = n;
		ranks[n++] = all[r].world;
	}
	st = group_create(parent->job, id_mix(id_mix(parent->id, parent->splits), (uint64_t)colour), ranks, n, me, out,
	                  err);
	if (!st)
		job_count(parent->job, 1);
done:
	free(all);
	free(ranks);
	return st;
}

void gradcomp_group_free(gradcomp_group *g)
{
	if (!g || g == g->job->world)
		return;
	job_count(g->job, -1);
	group_destroy(g);
}

int gradcomp_group_rank(const gradcomp_group *g)
{
	return g->me;
}

int gradcomp_group_nranks(const gradcomp_group *g)
{
	return g->nranks;
}

int gradcomp_group_world_rank(const gradcomp_group *g, int r)
{
	return r >= 0 && r < g->nranks ? g->ranks[r] : -1;
}
