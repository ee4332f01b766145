/* A barrier in ceil(log2 P) trips (Hensgen, Finkel and Manber 1988): in round k
 * everybody tells the rank 2^k further on. */
#ifndef DISSEMINATE_H
#define DISSEMINATE_H

#include "gradcomp/collective.h"

gradcomp_status disseminate(const gradcomp_links *links, gradcomp_error *err);

#endif
