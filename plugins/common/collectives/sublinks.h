/* Some of a group's ranks as a group of their own, over the same links: what a collective
 * of several levels gives to those it is made of. */
#ifndef PLUGINS_COMMON_COLLECTIVES_SUBLINKS_H
#define PLUGINS_COMMON_COLLECTIVES_SUBLINKS_H

#include "gradcomp/collective.h"

typedef struct sublinks {
	gradcomp_links links; /* to be given away; valid as long as this is */
	const gradcomp_host *host;
	const gradcomp_links *parent;
	const int *ranks; /* in the parent */
	int *peers;       /* a multicast's, likewise */
} sublinks;

/* Makes links among ranks[0..n-1] of `parent`, `me` of which is this rank. ranks stays the caller's, and in place.
 * Two groups that share two ranks must not be used at the same time: their transfers match in the order of posting. */
gradcomp_status sublinks_create(const gradcomp_host *host, const gradcomp_links *parent, const int *ranks, int n,
                                int me, sublinks **out, gradcomp_error *err);
void sublinks_destroy(sublinks *s);

#endif
