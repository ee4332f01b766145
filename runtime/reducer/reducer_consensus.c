#include "reducer/reducer_consensus.h"

#include "step/layout.h"

#include "job/consensus.h"

#include "base/error.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct declaration {
	uint32_t ntensors, delay;
	uint64_t verify;
	uint64_t tensors; /* hash of all */
	uint64_t bucket_bytes, first_bucket_bytes, seed;
	uint64_t schedule; /* hash of what the SPEC of the schedule does not say */
	char text[480];    /* SPECs */
	char plugins[PLUGIN_PAIR_TEXT];
	char aside[160]; /* not compared */
} declaration;

static void fill(const reducer_request *q, declaration *d)
{
	memset(d, 0, sizeof *d);
	d->ntensors = q->layout->ntensors;
	d->tensors = layout_hash(q->layout);
	d->bucket_bytes = q->bucket_bytes;
	d->first_bucket_bytes = q->first_bucket_bytes;
	d->seed = q->layout->seed;
	d->schedule = q->schedule_hash;
	d->delay = q->delay;
	d->verify = q->verify;
	snprintf(d->text, sizeof d->text, "%s + %s%s, schedule %s", q->compressor, q->collective,
	         q->through_host ? ", through host memory" : "", q->schedule);
	snprintf(d->aside, sizeof d->aside, "%s", q->aside ? q->aside : "");
	if (q->plugins[0] && q->plugins[1])
		registry_identities(q->plugins, d->plugins);
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

/* Names the ranks that declared other tensors than rank 0 of the group, and the first tensor in declaration order
 * that differs. */
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
	st = group_broadcast(g, theirs, n, GRADCOMP_I64, 0, err);
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

/* Says how a rank's declaration, but for tensors, differs from that of the group's first. */
static gradcomp_status compare(const gradcomp_group *g, int rank, const declaration *d, const declaration *d0,
                               gradcomp_error *err)
{
	int world = g->ranks[rank], first = g->ranks[0];
	const char *host = transport_host(g->job->transport, world);
	if (strcmp(d->text, d0->text))
		return error_set(err, GRADCOMP_ERR_MISMATCH, "rank %d on %s asks for '%s', rank %d for '%s'%s%s%s",
		                 world, host, d->text, first, d0->text, *d->aside || *d0->aside ? " (" : "",
		                 *d->aside ? d->aside : d0->aside, *d->aside || *d0->aside ? ")" : "");
	if (strcmp(d->plugins, d0->plugins))
		return error_set(
			err, GRADCOMP_ERR_MISMATCH,
			"rank %d on %s has the plugins %s, rank %d on %s has %s: all nodes must have the same files",
			world, host, d->plugins, first, transport_host(g->job->transport, first), d0->plugins);
	if (d->delay != d0->delay)
		return error_set(err, GRADCOMP_ERR_MISMATCH,
		                 "rank %d on %s asks for a delay of %u steps, rank %d for %u", world, host, d->delay,
		                 first, d0->delay);
	if (d->verify != d0->verify)
		return error_set(err, GRADCOMP_ERR_MISMATCH,
		                 "rank %d on %s has gradcomp.verify=%s, rank %d has %s: all ranks must have the same",
		                 world, host, d->verify ? "yes" : "no", first, d0->verify ? "yes" : "no");
	if (d->schedule != d0->schedule)
		return error_set(
			err, GRADCOMP_ERR_MISMATCH,
			"rank %d on %s has other settings schedule.* or another plan in its file than rank %d (%s)",
			world, host, first, d0->text);
	if (d->bucket_bytes != d0->bucket_bytes || d->seed != d0->seed ||
	    d->first_bucket_bytes != d0->first_bucket_bytes)
		return error_set(
			err, GRADCOMP_ERR_MISMATCH,
			"rank %d on %s has buckets of %llu and %llu bytes and seed %llu, rank %d of %llu and %llu and seed %llu",
			world, host, (unsigned long long)d->first_bucket_bytes, (unsigned long long)d->bucket_bytes,
			(unsigned long long)d->seed, first, (unsigned long long)d0->first_bucket_bytes,
			(unsigned long long)d0->bucket_bytes, (unsigned long long)d0->seed);
	return GRADCOMP_OK;
}

gradcomp_status reducer_consensus(gradcomp_group *g, const reducer_request *q, gradcomp_status mine,
                                  gradcomp_error *err)
{
	declaration own = {0}, *all;
	void *claims;
	if (!mine)
		fill(q, &own);
	gradcomp_status st = consensus_gather(g, &(consensus_topic){"make its reducer", &own, sizeof own, NULL, false},
	                                      mine, &claims, err);
	bool gathered = !st;
	all = claims;
	for (int p = 0; !st && p < g->nranks; p++) {
		all[p].text[sizeof all[p].text - 1] = 0;
		all[p].plugins[sizeof all[p].plugins - 1] = 0;
		all[p].aside[sizeof all[p].aside - 1] = 0;
		st = compare(g, p, &all[p], &all[0], err);
	}
	for (int p = 0; !st && p < g->nranks; p++)
		if (all[p].tensors != all[0].tensors || all[p].ntensors != all[0].ntensors) {
			st = name_tensors(g, q->layout, all, err);
			break;
		}
	if (gathered && st)
		consensus_leave(g);
	free(claims);
	return st;
}
