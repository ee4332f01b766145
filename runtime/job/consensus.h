/* A check before the ranks of a group begin something together: can each of them, and do all
 * mean the same? If one cannot, no rank is left waiting for it: all return what was wrong, with
 * the first rank on which it was. */
#ifndef JOB_CONSENSUS_H
#define JOB_CONSENSUS_H

#include <stdbool.h>

#include "job/job.h"

typedef struct consensus_topic {
	/* Ends "rank 3 on node7 cannot ...": "make its reducer". */
	const char *what;
	/* This must be the same on all ranks: the same number of bytes everywhere, compared as they are, so that
	 * padding must be zero. */
	const void *claim;
	size_t bytes;
	/* Writes how a claim differs from the first rank's, after "rank 3 on node7 ": "has 4
	 * pieces, rank 0 has 5". `first` is that rank's number in the world. */
	void (*differs)(const void *claim, const void *claim0, int first, char *out, size_t capacity);
	/* All ranks return the status of the one that cannot. Else the others return PEER. */
	bool same_status;
} consensus_topic;

/* `mine` is this rank's own status so far; then *err, which must not be NULL, says what is wrong
 * and comes back unchanged. PEER (but see same_status): another rank cannot; MISMATCH: one claims something
 * else. Collective. */
gradcomp_status consensus(gradcomp_group *g, const consensus_topic *t, gradcomp_status mine, gradcomp_error *err);
/* The same, but claims may differ: *all, freed by the caller, has those of all ranks one after
 * another. NULL on failure. */
gradcomp_status consensus_gather(gradcomp_group *g, const consensus_topic *t, gradcomp_status mine, void **all,
                                 gradcomp_error *err);
/* After a check of the caller's own has found on all ranks that they cannot begin: stays until
 * each of them knows. The end of a rank that has gone before would be what the others report. */
void consensus_leave(gradcomp_group *g);

#endif
