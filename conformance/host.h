/* The services of the host, as a plugin under test sees them: memory that is
 * fenced in, counted, and that fails when told. */
#ifndef CONFORMANCE_HOST_H
#define CONFORMANCE_HOST_H

#include "gradcomp/abi.h"
#include "conformance/guard.h"

/* Allocations that have not been released; after how many the next ones fail (-1:
 * never). */
extern int host_allocated, host_fail_at;
/* A request beyond this is not granted, and then `host_refused` says how much it was. */
extern size_t host_most, host_refused;
/* Length + 1 of a block beside which bytes were written. 0: of none. */
extern size_t host_spoiled;
/* Everything that is allocated can be read only: nobody writes to an instance. */
void host_lock(int read_only);
void host_services(gradcomp_host *host, const struct gradcomp_operators *op);

/* The values of a plugin's parameters for one call: the array, and the strings in it, are gone with it. */
typedef struct host_values {
	guarded array, strings;
} host_values;
const gradcomp_value *host_lend(host_values *v, const gradcomp_plugin_info *info, const gradcomp_value *values);
void host_take_back(host_values *v);

gradcomp_status host_fail(gradcomp_error *err, gradcomp_status s, const char *fmt, ...) GRADCOMP_PRINTF(3, 4);

#endif
