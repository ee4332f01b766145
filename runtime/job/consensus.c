#include "job/consensus.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"

/* Where it fails another rank has gone or the job has failed, and nobody is to be waited for. */
void consensus_leave(gradcomp_group *g)
{
	gradcomp_error ignored;
	(void)group_barrier(g, &ignored);
}

/* The failed rank broadcasts what is wrong there. */
static gradcomp_status share_failure(gradcomp_group *g, const consensus_topic *t, int failed, gradcomp_status theirs,
                                     gradcomp_status mine, gradcomp_error *err)
{
	char text[sizeof err->text] = "";
	gradcomp_error own = {0};
	gradcomp_status st;
	if (mine)
		memcpy(text, err->text, sizeof text);
	st = group_broadcast(g, text, sizeof text, GRADCOMP_U8, failed, &own);
	if (mine)
		return mine;
	if (st)
		return error_set(err, st, "%s", own.text);
	text[sizeof text - 1] = 0;
	return error_set(err, t->same_status ? theirs : GRADCOMP_ERR_PEER, "rank %d on %s cannot %s: %s",
	                 g->ranks[failed], transport_host(g->job->transport, g->ranks[failed]), t->what, text);
}

gradcomp_status consensus_gather(gradcomp_group *g, const consensus_topic *t, gradcomp_status mine, void **all,
                                 gradcomp_error *err)
{
	const size_t row = sizeof(int32_t) + t->bytes, P = (size_t)g->nranks;
	unsigned char *rows = malloc((P + 1) * row), *own = rows ? rows + P * row : NULL;
	gradcomp_error why = {0};
	gradcomp_status st;
	int32_t status = 0;
	int failed = -1;
	*all = NULL;
	if (!rows) {
		job_fail(g->job, GRADCOMP_ERR_NOMEM, "no memory for what the ranks of a group exchange");
		return error_set(err, GRADCOMP_ERR_NOMEM, "no memory for what %d ranks exchange", g->nranks);
	}
	memcpy(own, &(int32_t){mine}, sizeof(int32_t));
	if (t->bytes)
		memcpy(own + sizeof(int32_t), t->claim, t->bytes);
	st = group_exchange(g, own, rows, row, &why);
	for (int r = 0; !st && failed < 0 && r < g->nranks; r++) {
		memcpy(&status, rows + (size_t)r * row, sizeof status);
		if (status)
			failed = r;
	}
	if (!st && failed >= 0) {
		st = share_failure(g, t, failed, (gradcomp_status)status, mine, err);
		consensus_leave(g);
	} else if (mine && st != GRADCOMP_ERR_PEER_LOST)
		st = mine;
	else if (st) /* the rank that is lost may be the reason for what is wrong here */
		error_set(err, st, "%s", why.text);
	/* The claims, without the statuses before them. */
	for (size_t r = 0; !st && r < P; r++)
		memmove(rows + r * t->bytes, rows + r * row + sizeof(int32_t), t->bytes);
	if (st)
		free(rows);
	else
		*all = rows;
	return st;
}

gradcomp_status consensus(gradcomp_group *g, const consensus_topic *t, gradcomp_status mine, gradcomp_error *err)
{
	void *all;
	gradcomp_status st = consensus_gather(g, t, mine, &all, err);
	const unsigned char *claims = all;
	for (int r = 1; !st && r < g->nranks; r++) {
		const void *theirs = claims + (size_t)r * t->bytes;
		char text[sizeof err->text];

		if (!memcmp(theirs, claims, t->bytes))
			continue;
		t->differs(theirs, claims, g->ranks[0], text, sizeof text);
		st = error_set(err, GRADCOMP_ERR_MISMATCH, "rank %d on %s %s", g->ranks[r],
		               transport_host(g->job->transport, g->ranks[r]), text);
		consensus_leave(g);
	}
	free(all);
	return st;
}
