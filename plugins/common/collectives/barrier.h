/* A barrier in ceil(log2 P) rounds (Hensgen, Finkel and Manber 1988): in round k
 * every rank sends to the rank 2^k further on. */
#ifndef PLUGINS_COMMON_COLLECTIVES_BARRIER_H
#define PLUGINS_COMMON_COLLECTIVES_BARRIER_H

#include "gradcomp/collective.h"

gradcomp_status barrier_disseminate(const gradcomp_links *links, gradcomp_error *err);

#endif
