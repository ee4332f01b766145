/* Before a reducer is made, all ranks show what they are about to do. A rank that
 * cannot go on says so here, so that no other waits for it. */
#include "reducer/bucketing/replan.h"

#include "base/error.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct claim {
	int32_t status;
	uint32_t ntensors;
	uint64_t tensors; /* hash of all */
	uint64_t bucket_bytes, first_bucket_bytes, seed;
	uint64_t schedule; /* hash of what the SPEC of the schedule does not say */
	char text[472]; /* SPECs, or what is wrong */
} claim;

static void fill(const gradcomp_reducer *r, gradcomp_status mine, const gradcomp_error *err, claim *c)
{
	memset(c, 0, sizeof *c);
	c->status = mine;
	if (mine) {
		snprintf(c->text, sizeof c->text, "%.*s", (int)sizeof c->text - 1, err->text);
		return;
	}
	c->ntensors = r->layout.ntensors;
	for (uint32_t i = 0; i < r->layout.ntensors; i++)
		c->tensors = id_mix(c->tensors, layout_hash_tensor(&r->tensors[i]));
	c->bucket_bytes = r->bucket_bytes;
	c->first_bucket_bytes = r->first_bucket_bytes;
	c->seed = r->layout.seed;
	c->schedule = replan_hash(r);
	snprintf(c->text, sizeof c->text, "%s + %s, schedule %s", r->compressor_spec, r->collective_spec, replan_asked(r));
}

static int shape_text(const gradcomp_tensor *t, char *out, size_t capacity)
{
	int n = snprintf(out, capacity, "'%s' of shape (", t->name);
	for (uint32_t k = 0; k < t->ndim && n < (int)capacity; k++)
		n += snprintf(out + n, capacity - (size_t)n, "%s%llu", k ? "," : "", (unsigned long long)t->dims[k]);
	if (n < (int)capacity)
		n += snprintf(out + n, capacity - (size_t)n, ")");
	return n;
}

/* The ranks that declared other tensors than rank 0 of the group, and the first
 * tensor in declaration order that differs. */
static gradcomp_status name_tensors(gradcomp_reducer *r, gradcomp_group *g, const claim *all, gradcomp_error *err)
{
	uint32_t n = all[0].ntensors, first = UINT32_MAX, own = r->layout.ntensors;
	uint64_t *theirs = malloc(n * sizeof *theirs);
	struct place {
		uint32_t first;
		char text[124];
	} mine, *places = calloc((size_t)g->nranks, sizeof *places);
	gradcomp_status st = GRADCOMP_OK;
	if (!theirs || !places) {
		st = error_set(err, GRADCOMP_ERR_NOMEM, "no memory to compare %u tensors", n);
		job_fail(g->job, st, "no memory to compare tensors");
		goto done;
	}
	for (uint32_t i = 0; g->me == 0 && i < n; i++)
		theirs[i] = layout_hash_tensor(&r->tensors[n - 1 - i]);
	st = gradcomp_broadcast(g, theirs, n, GRADCOMP_I64, 0, err);
	if (st)
		goto done;
	for (uint32_t i = 0; first == UINT32_MAX && i < (n > own ? n : own); i++)
		if (i >= n || i >= own || theirs[i] != layout_hash_tensor(&r->tensors[own - 1 - i]))
			first = i;
	memset(&mine, 0, sizeof mine);
	mine.first = first;
	if (first < own)
		shape_text(&r->tensors[own - 1 - first], mine.text, sizeof mine.text);
	st = group_exchange(g, &mine, places, sizeof mine, err);
	for (int p = 0; !st && p < g->nranks; p++) {
		if (all[p].tensors == all[0].tensors && all[p].ntensors == n)
			continue;
		places[p].text[sizeof places[p].text - 1] = 0;
		int world = g->ranks[p];
		st = error_set(err, GRADCOMP_ERR_MISMATCH,
		               "rank %d on %s declared %u tensors, rank %d declared %u; the first that differs is tensor %u, "
		               "%s on rank %d",
		               world, transport_host(g->job->transport, world), all[p].ntensors, g->ranks[0], n,
		               places[p].first, *places[p].text ? places[p].text : "which is missing", world);
	}
done:
	free(theirs);
	free(places);
	return st;
}

gradcomp_status reducer_consensus(gradcomp_reducer *r, gradcomp_group *g, gradcomp_status mine, gradcomp_error *err)
{
	claim own, *all = calloc((size_t)g->nranks, sizeof *all);
	gradcomp_status st;
	if (!all) {
		job_fail(g->job, GRADCOMP_ERR_NOMEM, "no memory for what the ranks declare");
		return error_set(err, GRADCOMP_ERR_NOMEM, "no memory for what %d ranks declare", g->nranks);
	}
	fill(r, mine, err, &own);
	st = group_exchange(g, &own, all, sizeof own, err);
	if (mine)
		st = error_set(err, mine, "%s", own.text);
	for (int p = 0; !st && p < g->nranks; p++) {
		int world = g->ranks[p];
		const char *host = transport_host(g->job->transport, world);
		all[p].text[sizeof all[p].text - 1] = 0;
		if (all[p].status)
			st = error_set(err, GRADCOMP_ERR_PEER, "rank %d on %s cannot make its reducer: %s", world, host,
			               all[p].text);
		else if (strcmp(all[p].text, all[0].text))
			st = error_set(err, GRADCOMP_ERR_MISMATCH, "rank %d on %s asks for '%s', rank %d for '%s'", world, host,
			               all[p].text, g->ranks[0], all[0].text);
		else if (all[p].schedule != all[0].schedule)
			st = error_set(err, GRADCOMP_ERR_MISMATCH,
			               "rank %d on %s has other settings schedule.* or another plan in its file than rank %d (schedule %s)",
			               world, host, g->ranks[0], replan_asked(r));
		else if (all[p].bucket_bytes != all[0].bucket_bytes || all[p].seed != all[0].seed ||
		         all[p].first_bucket_bytes != all[0].first_bucket_bytes)
			st = error_set(err, GRADCOMP_ERR_MISMATCH,
			               "rank %d on %s has buckets of %llu and %llu bytes and seed %llu, rank %d of %llu and %llu and seed %llu",
			               world, host, (unsigned long long)all[p].first_bucket_bytes,
			               (unsigned long long)all[p].bucket_bytes, (unsigned long long)all[p].seed, g->ranks[0],
			               (unsigned long long)all[0].first_bucket_bytes,
			               (unsigned long long)all[0].bucket_bytes, (unsigned long long)all[0].seed);
	}
	for (int p = 0; !st && p < g->nranks; p++)
		if (all[p].tensors != all[0].tensors || all[p].ntensors != all[0].ntensors) {
			st = name_tensors(r, g, all, err);
			break;
		}
	free(all);
	return st;
}
