#include "reducer/reducer_consensus.h"

#include "reducer/layout.h"

#include "base/error.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct declaration {
	int32_t status;
	uint32_t ntensors;
	uint64_t tensors; /* hash of all */
	uint64_t bucket_bytes, first_bucket_bytes, seed;
	uint64_t schedule; /* hash of what the SPEC of the schedule does not say */
	char text[472];    /* SPECs, or what is wrong */
} declaration;

static void fill(const reducer_request *q, gradcomp_status mine, const gradcomp_error *err, declaration *d)
{
	memset(d, 0, sizeof *d);
	d->status = mine;
	if (mine) {
		snprintf(d->text, sizeof d->text, "%.*s", (int)sizeof d->text - 1, err->text);
		return;
	}
	d->ntensors = q->layout->ntensors;
	d->tensors = layout_hash(q->layout);
	d->bucket_bytes = q->bucket_bytes;
	d->first_bucket_bytes = q->first_bucket_bytes;
	d->seed = q->layout->seed;
	d->schedule = q->schedule_hash;
	snprintf(d->text, sizeof d->text, "%s + %s, schedule %s", q->compressor, q->collective, q->schedule);
}

static int shape_text(const gradcomp_tensor *t, char *out, size_t capacity)
{
	int n = snprintf(out, capacity, "'%s' of shape (", t->name);
	for (uint32_t k = 0; k < t->ndim && n < (int)capacity; k++)
		n += snprintf(out + n, capacity - (size_t)n, "%s%llu", k ? "," : "",
		              (unsigned long long)t->dims[k]);
	if (n < (int)capacity)
		n += snprintf(out + n, capacity - (size_t)n, ")");
	return n;
}

/* The ranks that declared other tensors than rank 0 of the group, and the first
 * tensor in declaration order that differs. */
static gradcomp_status name_tensors(gradcomp_group *g, const gradcomp_layout *l, const declaration *all,
                                    gradcomp_error *err)
{
	uint32_t n = all[0].ntensors, first = UINT32_MAX, own = l->ntensors;
	uint64_t *theirs = malloc(n * sizeof *theirs);
	struct differing {
		uint32_t first;
		char text[124];
	} mine, *shown = calloc((size_t)g->nranks, sizeof *shown);
	gradcomp_status st = GRADCOMP_OK;
	if (!theirs || !shown) {
		st = error_set(err, GRADCOMP_ERR_NOMEM, "no memory to compare %u tensors", n);
		job_fail(g->job, st, "no memory to compare tensors");
		goto done;
	}
	for (uint32_t i = 0; g->me == 0 && i < n; i++)
		theirs[i] = layout_hash_tensor(&l->tensors[n - 1 - i]);
	st = gradcomp_broadcast(g, theirs, n, GRADCOMP_I64, 0, err);
	if (st)
		goto done;
	for (uint32_t i = 0; first == UINT32_MAX && i < (n > own ? n : own); i++)
		if (i >= n || i >= own || theirs[i] != layout_hash_tensor(&l->tensors[own - 1 - i]))
			first = i;
	memset(&mine, 0, sizeof mine);
	mine.first = first;
	if (first < own)
		shape_text(&l->tensors[own - 1 - first], mine.text, sizeof mine.text);
	st = group_exchange(g, &mine, shown, sizeof mine, err);
	for (int p = 0; !st && p < g->nranks; p++) {
		if (all[p].tensors == all[0].tensors && all[p].ntensors == n)
			continue;
		shown[p].text[sizeof shown[p].text - 1] = 0;
		int world = g->ranks[p];
		st = error_set(err, GRADCOMP_ERR_MISMATCH,
		               "rank %d on %s declared %u tensors, rank %d declared %u; the first that differs is "
		               "tensor %u, "
		               "%s on rank %d",
		               world, transport_host(g->job->transport, world), all[p].ntensors, g->ranks[0], n,
		               shown[p].first, *shown[p].text ? shown[p].text : "which is missing", world);
	}
done:
	free(theirs);
	free(shown);
	return st;
}

gradcomp_status reducer_consensus(gradcomp_group *g, const reducer_request *q, gradcomp_status mine,
                                  gradcomp_error *err)
{
	declaration own, *all = calloc((size_t)g->nranks, sizeof *all);
	gradcomp_status st;
	if (!all) {
		job_fail(g->job, GRADCOMP_ERR_NOMEM, "no memory for what the ranks declare");
		return error_set(err, GRADCOMP_ERR_NOMEM, "no memory for what %d ranks declare", g->nranks);
	}
	fill(q, mine, err, &own);
	st = group_exchange(g, &own, all, sizeof own, err);
	if (mine)
		st = error_set(err, mine, "%s", own.text);
	for (int p = 0; !st && p < g->nranks; p++) {
		int world = g->ranks[p];
		const char *host = transport_host(g->job->transport, world);
		all[p].text[sizeof all[p].text - 1] = 0;
		if (all[p].status)
			st = error_set(err, GRADCOMP_ERR_PEER, "rank %d on %s cannot make its reducer: %s", world,
			               host, all[p].text);
		else if (strcmp(all[p].text, all[0].text))
			st = error_set(err, GRADCOMP_ERR_MISMATCH, "rank %d on %s asks for '%s', rank %d for '%s'",
			               world, host, all[p].text, g->ranks[0], all[0].text);
		else if (all[p].schedule != all[0].schedule)
			st = error_set(err, GRADCOMP_ERR_MISMATCH,
			               "rank %d on %s has other settings schedule.* or another plan in its file "
			               "than rank %d (schedule %s)",
			               world, host, g->ranks[0], q->schedule);
		else if (all[p].bucket_bytes != all[0].bucket_bytes || all[p].seed != all[0].seed ||
		         all[p].first_bucket_bytes != all[0].first_bucket_bytes)
			st = error_set(err, GRADCOMP_ERR_MISMATCH,
			               "rank %d on %s has buckets of %llu and %llu bytes and seed %llu, rank %d of "
			               "%llu and %llu and seed %llu",
			               world, host, (unsigned long long)all[p].first_bucket_bytes,
			               (unsigned long long)all[p].bucket_bytes, (unsigned long long)all[p].seed,
			               g->ranks[0], (unsigned long long)all[0].first_bucket_bytes,
			               (unsigned long long)all[0].bucket_bytes, (unsigned long long)all[0].seed);
	}
	for (int p = 0; !st && p < g->nranks; p++)
		if (all[p].tensors != all[0].tensors || all[p].ntensors != all[0].ntensors) {
			st = name_tensors(g, q->layout, all, err);
			break;
		}
	free(all);
	return st;
}
