/* Finds out if the host has what a plugin uses, of what came after ABI 1. The list is the plugin's `needs`, which a
 * host of ABI 2 or later reads itself before it takes the plugin; what is here asks where there is no list, and for
 * plugins that can do without. */
#ifndef GRADCOMP_SDK_NEEDS_H
#define GRADCOMP_SDK_NEEDS_H

#include <string.h>

#include "gradcomp/compressor.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Rows of a plugin's `needs`, by the header of the SDK whose functions it calls. */
#define SDK_LOWRANK_NEEDS GRADCOMP_NEED(host, operators)
#define SDK_SPARSE_NEEDS GRADCOMP_NEED(host, operators)
#define SDK_CODES_NEEDS GRADCOMP_NEED(host, operators), GRADCOMP_NEED(operators, codes_sum)
#define SDK_SIGNS_NEEDS SDK_CODES_NEEDS

/* The first of n rows that `host` or its operators do not have; NULL: it has them all. Rows of other structures are
 * passed over: what comes with a call is asked for there, by GRADCOMP_HAS(). */
static inline const gradcomp_need *sdk_lacks(const gradcomp_host *host, const gradcomp_need *needs, uint32_t n)
{
	for (uint32_t i = 0; i < n; i++) {
		int of_operators = !strncmp(needs[i].name, "operators.", 10),
		    of_host = !strncmp(needs[i].name, "host.", 5);

		if ((of_host && needs[i].end > host->struct_size) ||
		    (of_operators && (!GRADCOMP_HAS(host, operators) || needs[i].end > host->operators->struct_size)))
			return &needs[i];
	}
	return NULL;
}

/* For create(), before anything is allocated: the SDK's functions that open or make something call it. */
static inline gradcomp_status sdk_needs(const gradcomp_host *host, const char *name, const gradcomp_need *needs,
                                        uint32_t n, gradcomp_error *err)
{
	const gradcomp_need *lack = sdk_lacks(host, needs, n);
	return !lack ? GRADCOMP_OK
	             : host->fail(err, GRADCOMP_ERR_UNSUPPORTED,
	                          "%s needs %s, which this gradcomp does not have: it is of ABI %u, the "
	                          "plugin of ABI %d",
	                          name, lack->name, host->abi_version, GRADCOMP_ABI_VERSION);
}

#ifdef __cplusplus
}
#endif
#endif
