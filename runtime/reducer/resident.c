/* A memory of the collective's, see resident.h. */
#include "resident.h"

#include "division.h"
#include "gpu.h"

#include "error.h"

#include <stdlib.h>
#include <string.h>

static int keeps(const gradcomp_reducer *r)
{
	return r->port.collective->serves & GRADCOMP_CAN_EXCHANGE &&
	       r->layout.patterns & GRADCOMP_PATTERN_BIT(GRADCOMP_CODED) &&
	       r->compressor->traits & GRADCOMP_TRAIT_ERROR_FEEDBACK;
}

gradcomp_status division_resident(const gradcomp_reducer *r, division *d, gradcomp_error *err)
{
	uint64_t at = 0;
	if (!keeps(r))
		return GRADCOMP_OK;
	for (uint32_t i = 0; i < d->nbuckets; i++) {
		d->buckets[i].nresident = r->port.collective->resident(r->port.instance, d->buckets[i].pub.numel);
		if (d->buckets[i].nresident > NUMEL_MAX)
			return error_set(err, GRADCOMP_ERR_INTERNAL, "collective '%s' asks for a memory of more than 2^48 numbers",
			                 r->port.collective->info.name);
		at += d->buckets[i].nresident;
	}
	if (!at)
		return GRADCOMP_OK;
	d->resident = calloc(at, sizeof *d->resident);
	if (!d->resident)
		return error_set(err, GRADCOMP_ERR_NOMEM, "no memory for %llu numbers that collective '%s' keeps",
		                 (unsigned long long)at, r->port.collective->info.name);
	d->nresident = at;
	at = 0;
	for (uint32_t i = 0; i < d->nbuckets; at += d->buckets[i++].nresident)
		d->buckets[i].resident = d->buckets[i].nresident ? d->resident + at : NULL;
	return GRADCOMP_OK;
}

gradcomp_status resident_check(const gradcomp_reducer *r, gradcomp_error *err)
{
	const struct gradcomp_collective_v1 *c = r->port.collective;
	if (!c->resident_begin)
		return error_set(err, GRADCOMP_ERR_UNSUPPORTED, "collective '%s' keeps a memory for each bucket and does not say "
		                 "of which places (resident_begin): buckets stay as they are", c->info.name);
	for (uint32_t i = 0; i < r->nbuckets; i++) {
		const bucket *b = &r->buckets[i];
		uint64_t begin = b->nresident ? c->resident_begin(r->port.instance, b->pub.numel) : 0;
		if (begin > b->pub.numel || b->nresident > b->pub.numel - begin)
			return error_set(err, GRADCOMP_ERR_INTERNAL,
			                 "collective '%s' keeps %llu numbers from the %lluth on of a bucket of %llu", c->info.name,
			                 (unsigned long long)b->nresident, (unsigned long long)begin,
			                 (unsigned long long)b->pub.numel);
	}
	return GRADCOMP_OK;
}

uint64_t resident_at(const gradcomp_reducer *r, const bucket *b)
{
	return b->pub.offset + r->port.collective->resident_begin(r->port.instance, b->pub.numel);
}

gradcomp_status resident_move(gradcomp_reducer *r, float *room, gradcomp_error *err)
{
	gradcomp_status st = GRADCOMP_OK;
	for (uint32_t i = 0; !st && i < r->nbuckets; i++) {
		const bucket *b = &r->buckets[i];
		if (!b->nresident)
			continue;
		float *e = r->error + resident_at(r, b), *to = room ? room : e;
		if (room)
			st = gpu_copy(r, room, e, b->nresident * sizeof *e, err);
		if (!st)
			r->job->host.operators->add(NULL, to, b->resident, b->nresident);
		if (!st && room)
			st = gpu_copy(r, e, room, b->nresident * sizeof *e, err);
	}
	if (!st)
		memset(r->resident, 0, r->nresident * sizeof *r->resident);
	return st;
}
