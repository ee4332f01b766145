/* Decides who is in the job, when it may outlive ranks (gradcomp.on_failure=shrink).
 *
 * The members of epoch e decide together who those of epoch e + 1 are: single-decree Paxos
 * (Lamport, 2001), one instance an epoch. A quorum is more than half of the members, or exactly
 * half with the lowest of them. Any two quorums have a member in common, so there are never two
 * jobs, whatever dies or comes back meanwhile. Ranks here are those that the job began with.
 *
 * A thread listens on a port of its own and answers, whatever the program does; it sleeps until
 * somebody calls. Every call is a connection that begins with the proof of the job's secret, and
 * carries one question and one answer. Nothing is sent before a rank has failed. Of many members
 * the one that leads asks about the square root of their number, each of which asks as many others
 * and adds up what they say; a set of ranks is a bitmap.
 *
 * Any thread, but roster_agree() by one at a time. */
#ifndef SURVIVORS_ROSTER_H
#define SURVIVORS_ROSTER_H

#include "transport/core/transport.h"

typedef struct roster roster;

/* Members of an epoch. They are reached where they always were. */
typedef struct roster_view {
	uint64_t epoch;
	int n;
	int *ranks; /* ascending */
	unsigned char nonce[TRANSPORT_SECRET_BYTES];
} roster_view;

void roster_view_clear(roster_view *v);
/* Where `rank` is among them, or -1. */
int roster_view_find(const roster_view *v, int rank);

/* Listens; *port is for the other ranks. */
gradcomp_status roster_listen(int *port, roster **out, gradcomp_error *err);
/* From now on it answers for rank `rank` of `n`, whose endpoint records and ports these are. `t`
 * has been started; it fails when another rank says that one is lost. */
gradcomp_status roster_begin(roster *m, transport *t, int rank, int n, const char *const *endpoints, const int *ports,
                             const log_sink *log, gradcomp_error *err);
/* The transport that is in use from now on; NULL: none. */
void roster_watch(roster *m, transport *t);
/* Takes part in the agreement on the next epoch. Returns when it is decided: *out is the view, to be
 * cleared. PEER: this rank was left out, or there is no majority, and the text says which; TIMEOUT: a
 * rank lives but does not call this for `patience` seconds. After a failure this rank takes part in
 * nothing more. */
gradcomp_status roster_agree(roster *m, double patience, roster_view *out, gradcomp_error *err);
/* Derives the secret of an epoch's transport. */
void roster_secret(const roster *m, const roster_view *v, unsigned char secret[TRANSPORT_SECRET_BYTES]);
/* Returns the host of a rank that the job began with. */
const char *roster_host(const roster *m, int rank);
/* Counts what this rank has asked of others so far: connections begun, and bytes of the questions on them. */
void roster_stats(const roster *m, uint64_t *calls, uint64_t *bytes);
/* NULL is fine. */
void roster_close(roster *m);

#endif
