/* What a saved state belongs to. A wrong or damaged one is refused before anything changes. */
#include "state.h"

#include "replan.h"
#include "shards.h"

#include "error.h"

#include <string.h>

static const char magic[8] = "GCSTATE3";
#define VERSION_AT (sizeof magic - 1)
#define OLDEST '2'

/* Eight bytes at a time; the tail is padded with zeroes. */
uint64_t state_checksum(const void *state, uint64_t bytes)
{
	const unsigned char *p = (const unsigned char *)state + offsetof(state_head, step);
	size_t n = bytes - offsetof(state_head, step);
	uint64_t h = n, w;
	for (; n >= 8; p += 8, n -= 8) {
		memcpy(&w, p, 8);
		h = (h ^ w) * 0x9e3779b97f4a7c15u;
		h ^= h >> 29;
	}
	w = 0;
	memcpy(&w, p, n);
	return id_mix(h, w);
}

const gradcomp_reducer *state_keeper(const gradcomp_reducer *r, const division *d)
{
	return d->shards ? shards_inner(d->shards) : r;
}

uint64_t state_array_bytes(const gradcomp_reducer *r, const division *d)
{
	const gradcomp_reducer *k = state_keeper(r, d);
	return ((uint64_t)(!!k->error + r->compressor->state_arrays) * k->layout.numel + d->nresident) * sizeof(float);
}

/* Shards and the collective's memory belong to places in buckets. */
static uint64_t places(const division *d)
{
	uint64_t h = 0;
	for (uint32_t i = 0; (d->shards || d->nresident) && i < d->nbuckets; i++) {
		h = id_mix(h, d->buckets[i].pub.numel);
		h = id_mix(h, d->shards ? shards_begin(d->shards, i) : 1);
	}
	return h;
}

void state_describe(const gradcomp_reducer *r, const division *d, uint64_t plugin_bytes, state_head *h)
{
	memset(h, 0, sizeof *h);
	memcpy(h->magic, magic, sizeof magic);
	h->step = r->step;
	h->numel = r->layout.numel;
	for (uint32_t i = 0; i < r->layout.ntensors; i++)
		h->tensors = id_mix(h->tensors, layout_hash_tensor(&r->tensors[i]));
	h->plugin_bytes = plugin_bytes;
	h->has_error = !!state_keeper(r, d)->error;
	h->state_arrays = r->compressor->state_arrays;
	h->rank = (uint32_t)r->layout.rank;
	h->nranks = (uint32_t)r->layout.nranks;
	h->kept = state_keeper(r, d)->layout.numel;
	h->nresident = d->nresident;
	h->places = places(d);
	strncpy(h->compressor, r->compressor_spec, sizeof h->compressor - 1);
	h->nbuckets = d->nbuckets;
	h->lag = d->schedule.lag;
	h->settled = (uint32_t)replan_settled(r);
}

gradcomp_status state_check(const gradcomp_reducer *r, const void *state, uint64_t bytes, state_head *h,
                            uint64_t *body, gradcomp_error *err)
{
	const division now = division_of(r);
	state_head want;
	memset(h, 0, sizeof *h);
	*body = offsetof(state_head, nbuckets);
	if (!state || bytes < *body)
		return error_set(err, GRADCOMP_ERR_INVALID, "load: %llu bytes are no saved state", (unsigned long long)bytes);
	memcpy(h, state, *body);
	h->compressor[sizeof h->compressor - 1] = 0;
	if (memcmp(h->magic, magic, VERSION_AT))
		return error_set(err, GRADCOMP_ERR_INVALID, "load: not a saved state of a reducer");
	if (h->magic[VERSION_AT] < OLDEST || h->magic[VERSION_AT] > magic[VERSION_AT])
		return error_set(err, GRADCOMP_ERR_UNSUPPORTED,
		                 "load: a state of version '%c', this library reads versions '%c' to '%c'", h->magic[VERSION_AT],
		                 OLDEST, magic[VERSION_AT]);
	state_describe(r, &now, h->plugin_bytes, &want);
	if (strcmp(h->compressor, want.compressor))
		return error_set(err, GRADCOMP_ERR_MISMATCH, "load: the state is of '%s', this reducer is '%s'", h->compressor,
		                 want.compressor);
	if (h->tensors != want.tensors || h->numel != want.numel)
		return error_set(err, GRADCOMP_ERR_MISMATCH, "load: the state is of a model of %llu parameters in other "
		                 "tensors; this one has %llu", (unsigned long long)h->numel, (unsigned long long)want.numel);
	if (h->rank != want.rank || h->nranks != want.nranks)
		return error_set(err, GRADCOMP_ERR_MISMATCH, "load: the state is of rank %u of %u, this is rank %u of %u",
		                 h->rank, h->nranks, want.rank, want.nranks);
	if (h->magic[VERSION_AT] > OLDEST) {
		if (bytes < sizeof *h)
			return error_set(err, GRADCOMP_ERR_INVALID, "load: %llu bytes are no saved state", (unsigned long long)bytes);
		memcpy(&h->nbuckets, (const char *)state + *body, sizeof *h - *body);
		*body = sizeof *h;
	}
	if (h->checksum != state_checksum(state, bytes))
		return error_set(err, GRADCOMP_ERR_INVALID, "load: the state of %llu bytes is damaged (its checksum differs)",
		                 (unsigned long long)bytes);
	if (h->plugin_bytes && !r->compressor->load)
		return error_set(err, GRADCOMP_ERR_INVALID, "load: compressor '%s' keeps no state of its own, this has %llu bytes",
		                 r->compressor->info.name, (unsigned long long)h->plugin_bytes);
	return GRADCOMP_OK;
}

gradcomp_status state_fits(const gradcomp_reducer *r, const division *d, const state_head *h, uint64_t body,
                           uint64_t bytes, gradcomp_error *err)
{
	const uint64_t arrays = state_array_bytes(r, d);
	state_head want;
	state_describe(r, d, h->plugin_bytes, &want);
	if (h->kept != want.kept || h->nresident != want.nresident || h->places != want.places)
		return error_set(err, GRADCOMP_ERR_MISMATCH,
		                 "load: the state keeps %llu numbers of this rank's and %llu of its collective, this reducer %llu "
		                 "and %llu%s: it was saved with another collective, other nodes%s",
		                 (unsigned long long)h->kept, (unsigned long long)h->nresident, (unsigned long long)want.kept,
		                 (unsigned long long)want.nresident, h->kept == want.kept ? ", of other places" : "",
		                 h->magic[VERSION_AT] > OLDEST ? "" : " or other buckets, of which a state of version 2 does "
		                 "not tell: make the reducer with the bucket_bytes it was saved with");
	if (h->has_error != want.has_error || h->state_arrays != want.state_arrays || h->plugin_bytes > bytes ||
	    body + arrays + h->plugin_bytes != bytes)
		return error_set(err, GRADCOMP_ERR_INVALID, "load: the state has %llu bytes and should have %llu",
		                 (unsigned long long)bytes,
		                 (unsigned long long)(body + arrays + (h->plugin_bytes > bytes ? 0 : h->plugin_bytes)));
	return GRADCOMP_OK;
}
