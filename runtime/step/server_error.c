#include "step/server_error.h"

#include "base/error.h"

#include <stdlib.h>
#include <string.h>

static int keeps(const engine *eng)
{
	return eng->coll_ctx.collective->serves & GRADCOMP_CAN_EXCHANGE &&
	       eng->layout.patterns & GRADCOMP_PATTERN_BIT(GRADCOMP_CODED) &&
	       gradcomp_keeps_error(eng->compressor, eng->values);
}

gradcomp_status server_error_make(const engine *eng, bucket_list *d, gradcomp_error *err)
{
	uint64_t at = 0;
	if (!keeps(eng))
		return GRADCOMP_OK;
	for (uint32_t i = 0; i < d->nbuckets; i++) {
		d->buckets[i].nserver_error =
			eng->coll_ctx.collective->server_error(eng->coll_ctx.instance, d->buckets[i].pub.numel);
		if (d->buckets[i].nserver_error > NUMEL_MAX)
			return error_set(err, GRADCOMP_ERR_INTERNAL,
			                 "collective '%s' asks for a memory of more than 2^48 numbers",
			                 eng->coll_ctx.collective->info.name);
		at += d->buckets[i].nserver_error;
	}
	if (!at)
		return GRADCOMP_OK;
	d->server_error = calloc(at, sizeof *d->server_error);
	if (!d->server_error)
		return error_set(err, GRADCOMP_ERR_NOMEM, "no memory for %llu numbers that collective '%s' keeps",
		                 (unsigned long long)at, eng->coll_ctx.collective->info.name);
	d->nserver_error = at;
	at = 0;
	for (uint32_t i = 0; i < d->nbuckets; at += d->buckets[i++].nserver_error)
		d->buckets[i].server_error = d->buckets[i].nserver_error ? d->server_error + at : NULL;
	return GRADCOMP_OK;
}

gradcomp_status server_error_check(const engine *eng, gradcomp_error *err)
{
	const struct gradcomp_collective_v1 *c = eng->coll_ctx.collective;
	if (!c->server_error_begin)
		return error_set(err, GRADCOMP_ERR_UNSUPPORTED,
		                 "collective '%s' keeps a memory for each bucket and does not say "
		                 "of which numbers (server_error_begin): buckets stay as they are",
		                 c->info.name);
	for (uint32_t i = 0; i < eng->list.nbuckets; i++) {
		const bucket *b = &eng->list.buckets[i];
		uint64_t begin = b->nserver_error ? c->server_error_begin(eng->coll_ctx.instance, b->pub.numel) : 0;
		if (begin > b->pub.numel || b->nserver_error > b->pub.numel - begin)
			return error_set(err, GRADCOMP_ERR_INTERNAL,
			                 "collective '%s' keeps %llu numbers from the %lluth on of a bucket of "
			                 "%llu",
			                 c->info.name, (unsigned long long)b->nserver_error, (unsigned long long)begin,
			                 (unsigned long long)b->pub.numel);
	}
	return GRADCOMP_OK;
}

uint64_t server_error_offset(const engine *eng, const bucket *b)
{
	return b->pub.offset + eng->coll_ctx.collective->server_error_begin(eng->coll_ctx.instance, b->pub.numel);
}

gradcomp_status server_error_fold(engine *eng, float *room, gradcomp_error *err)
{
	gradcomp_status st = GRADCOMP_OK;
	for (uint32_t i = 0; !st && i < eng->list.nbuckets; i++) {
		const bucket *b = &eng->list.buckets[i];
		if (!b->nserver_error)
			continue;
		const uint64_t at = server_error_offset(eng, b);
		if (room)
			st = engine_read(eng, 0, at, b->nserver_error, room, err);
		if (!st)
			eng->job->host.operators->add(NULL, room ? room : eng->arrays.error + at, b->server_error,
			                              b->nserver_error);
		if (!st && room)
			st = engine_write(eng, 0, at, b->nserver_error, room, err);
	}
	if (!st)
		memset(eng->list.server_error, 0, eng->list.nserver_error * sizeof *eng->list.server_error);
	return st;
}
