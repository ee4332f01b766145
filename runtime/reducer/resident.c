/* The memory that a collective keeps for itself (GRADCOMP_CAN_EXCHANGE): what was lost
 * where a complete sum was coded, in units of the sum, by bucket and by the stripe that
 * this rank owns of it. Zero at first; saved and loaded with the state; a step with NaN
 * leaves it alone.
 *
 * It is about places in buckets. Were buckets rebuilt, each rank would add what it has to
 * its own error memory at those places, which conserves the sum over ranks of both, and
 * begin again with zero. */
#include "reducer.h"

#include "error.h"

#include <stdlib.h>

static int keeps(const gradcomp_reducer *r)
{
	return r->port.collective->serves & GRADCOMP_CAN_EXCHANGE &&
	       r->layout.patterns & GRADCOMP_PATTERN_BIT(GRADCOMP_CODED) &&
	       r->compressor->traits & GRADCOMP_TRAIT_ERROR_FEEDBACK;
}

gradcomp_status resident_open(gradcomp_reducer *r, gradcomp_error *err)
{
	uint64_t at = 0;
	if (!keeps(r))
		return GRADCOMP_OK;
	for (uint32_t i = 0; i < r->nbuckets; i++) {
		r->buckets[i].nresident = r->port.collective->resident(r->port.instance, r->buckets[i].pub.numel);
		if (r->buckets[i].nresident > LAYOUT_MAX_NUMEL)
			return error_set(err, GRADCOMP_ERR_INTERNAL, "collective '%s' asks for a memory of more than 2^48 numbers",
			                 r->port.collective->info.name);
		at += r->buckets[i].nresident;
	}
	if (!at)
		return GRADCOMP_OK;
	r->resident = calloc(at, sizeof *r->resident);
	if (!r->resident)
		return error_set(err, GRADCOMP_ERR_NOMEM, "no memory for %llu numbers that collective '%s' keeps",
		                 (unsigned long long)at, r->port.collective->info.name);
	r->nresident = at;
	at = 0;
	for (uint32_t i = 0; i < r->nbuckets; at += r->buckets[i++].nresident)
		r->buckets[i].resident = r->buckets[i].nresident ? r->resident + at : NULL;
	return GRADCOMP_OK;
}
