/* The services of the host, as a plugin under test sees them: memory that is
 * fenced in, counted, and that fails when told. */
#ifndef TOOLS_CONFORMANCE_HOST_H
#define TOOLS_CONFORMANCE_HOST_H

#include "gradcomp/abi.h"

/* Allocations that have not been released; after how many the next ones fail (-1:
 * never). */
extern int host_allocated, host_fail_at;
/* Everything that is allocated can be read only: nobody writes to an instance. */
void host_lock(int read_only);
void host_services(gradcomp_host *host, const struct gradcomp_operators *op);
gradcomp_status host_fail(gradcomp_error *err, gradcomp_status s, const char *fmt, ...) GRADCOMP_PRINTF(3, 4);

#endif
