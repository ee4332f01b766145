/* Saving and loading a reducer's state.
 *
 * One byte string: a head, the error memory, the resident arrays, the collective's
 * memory, the plugin's own bytes. The head has what the state belongs to and a checksum of the rest,
 * so that a wrong or damaged checkpoint is refused before anything changes. */
#include "gpu.h"
#include "shards.h"

#include "error.h"

#include <stdlib.h>
#include <string.h>

static const char magic[8] = "GCSTATE2";

typedef struct head {
	char magic[8];
	uint64_t checksum; /* of all that follows it */
	uint64_t step, numel, tensors, plugin_bytes;
	uint32_t has_error, state_arrays, rank, nranks;
	uint64_t kept;      /* numbers of an array: all, or those of this rank's shards */
	uint64_t nresident; /* numbers of the collective's memory */
	uint64_t places;    /* which they are: by buckets; 0: of every parameter */
	char compressor[256];
} head;

/* Eight bytes at a time; the tail is padded with zeroes. */
static uint64_t checksum(const unsigned char *p, size_t n)
{
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

/* Whose the arrays and the plugin are: with two levels those of the shards. */
static const gradcomp_reducer *keeper(const gradcomp_reducer *r)
{
	return r->shards ? shards_inner(r) : r;
}

/* Shards and the collective's memory belong to places in buckets. */
static uint64_t places(const gradcomp_reducer *r)
{
	uint64_t h = 0;
	for (uint32_t i = 0; (r->shards || r->nresident) && i < r->nbuckets; i++) {
		h = id_mix(h, r->buckets[i].pub.numel);
		h = id_mix(h, r->shards ? shards_begin(r, i) : 1);
	}
	return h;
}

static void describe(const gradcomp_reducer *r, uint64_t plugin_bytes, head *h)
{
	memset(h, 0, sizeof *h);
	memcpy(h->magic, magic, sizeof magic);
	h->step = r->step;
	h->numel = r->layout.numel;
	for (uint32_t i = 0; i < r->layout.ntensors; i++)
		h->tensors = id_mix(h->tensors, layout_hash_tensor(&r->tensors[i]));
	h->plugin_bytes = plugin_bytes;
	h->has_error = !!keeper(r)->error;
	h->state_arrays = r->compressor->state_arrays;
	h->rank = (uint32_t)r->layout.rank;
	h->nranks = (uint32_t)r->layout.nranks;
	h->kept = keeper(r)->layout.numel;
	h->nresident = r->nresident;
	h->places = places(r);
	strncpy(h->compressor, r->compressor_spec, sizeof h->compressor - 1);
}

static uint64_t array_bytes(const gradcomp_reducer *r)
{
	const gradcomp_reducer *k = keeper(r);
	return ((uint64_t)(!!k->error + r->compressor->state_arrays) * k->layout.numel + r->nresident) * sizeof(float);
}

/* One of the arrays, to or from host memory. */
static gradcomp_status array_copy(const gradcomp_reducer *r, void *to, const void *from, gradcomp_error *err)
{
	size_t bytes = keeper(r)->layout.numel * sizeof(float);
	const gpu *g = r->gpu;
	if (!g || g->way == GPU_WHOLE) {
		memcpy(to, from, bytes);
		return GRADCOMP_OK;
	}
	const char *why = g->d->copy(g->compute, to, from, bytes);
	if (!why)
		why = g->d->record(g->exchanged, g->compute);
	if (!why)
		why = g->d->wait(g->exchanged);
	return gpu_check(why, "the reducer's state could not be copied", err);
}

/* With the lock held. */
static gradcomp_status between_steps(const gradcomp_reducer *r, const char *what, gradcomp_error *err)
{
	if (r->failed)
		return error_set(err, r->failed, "%s", r->failure.text);
	if (r->ngiven)
		return error_set(err, GRADCOMP_ERR_STATE, "%s in the middle of a step: wait for it first", what);
	return GRADCOMP_OK;
}

gradcomp_status gradcomp_reducer_save(gradcomp_reducer *r, void *buf, uint64_t capacity, uint64_t *bytes,
                                      gradcomp_error *err)
{
	const gradcomp_reducer *k = keeper(r);
	uint64_t own = 0, arrays = array_bytes(r);
	unsigned char *p = buf;
	gradcomp_status st;
	head h;
	pthread_mutex_lock(&r->lock);
	st = between_steps(r, "save", err);
	if (!st && k->instance && r->compressor->save)
		st = r->compressor->save(k->instance, NULL, 0, &own, err);
	if (st)
		goto done;
	*bytes = sizeof h + arrays + own;
	if (!buf)
		goto done;
	if (capacity < *bytes) {
		st = error_set(err, GRADCOMP_ERR_INVALID, "save: the buffer has %llu bytes, the state takes %llu",
		               (unsigned long long)capacity, (unsigned long long)*bytes);
		goto done;
	}
	describe(r, own, &h);
	p += sizeof h;
	if (k->error) {
		st = array_copy(r, p, k->error, err);
		p += k->layout.numel * sizeof(float);
	}
	for (uint32_t s = 0; !st && s < r->compressor->state_arrays; s++, p += k->layout.numel * sizeof(float))
		st = array_copy(r, p, k->state[s], err);
	if (st)
		goto done;
	if (r->nresident)
		memcpy(p, r->resident, r->nresident * sizeof(float));
	p += r->nresident * sizeof(float);
	if (own)
		st = r->compressor->save(k->instance, p, own, &own, err);
	memcpy(buf, &h, sizeof h);
	h.checksum = checksum((unsigned char *)buf + offsetof(head, step), *bytes - offsetof(head, step));
	memcpy(buf, &h, sizeof h);
done:
	pthread_mutex_unlock(&r->lock);
	return st;
}

static gradcomp_status check_head(const gradcomp_reducer *r, const void *buf, uint64_t bytes, head *h,
                                  gradcomp_error *err)
{
	head want;
	if (!buf || bytes < sizeof *h)
		return error_set(err, GRADCOMP_ERR_INVALID, "load: %llu bytes are no saved state", (unsigned long long)bytes);
	memcpy(h, buf, sizeof *h);
	h->compressor[sizeof h->compressor - 1] = 0;
	if (!memcmp(h->magic, magic, sizeof magic - 1) && h->magic[sizeof magic - 1] != magic[sizeof magic - 1])
		return error_set(err, GRADCOMP_ERR_UNSUPPORTED, "load: a state of version '%c', this library reads version '%c'",
		                 h->magic[sizeof magic - 1], magic[sizeof magic - 1]);
	if (memcmp(h->magic, magic, sizeof magic))
		return error_set(err, GRADCOMP_ERR_INVALID, "load: not a saved state of a reducer");
	describe(r, h->plugin_bytes, &want);
	if (strcmp(h->compressor, want.compressor))
		return error_set(err, GRADCOMP_ERR_MISMATCH, "load: the state is of '%s', this reducer is '%s'", h->compressor,
		                 want.compressor);
	if (h->tensors != want.tensors || h->numel != want.numel)
		return error_set(err, GRADCOMP_ERR_MISMATCH, "load: the state is of a model of %llu parameters in other "
		                 "tensors; this one has %llu", (unsigned long long)h->numel, (unsigned long long)want.numel);
	if (h->rank != want.rank || h->nranks != want.nranks)
		return error_set(err, GRADCOMP_ERR_MISMATCH, "load: the state is of rank %u of %u, this is rank %u of %u",
		                 h->rank, h->nranks, want.rank, want.nranks);
	if (h->kept != want.kept || h->nresident != want.nresident || h->places != want.places)
		return error_set(err, GRADCOMP_ERR_MISMATCH,
		                 "load: the state keeps %llu numbers of this rank's and %llu of its collective, this reducer %llu "
		                 "and %llu%s: it was saved with another collective, other nodes or other buckets",
		                 (unsigned long long)h->kept, (unsigned long long)h->nresident, (unsigned long long)want.kept,
		                 (unsigned long long)want.nresident, h->kept == want.kept ? ", of other places" : "");
	if (h->has_error != want.has_error || h->state_arrays != want.state_arrays ||
	    h->plugin_bytes > bytes || sizeof *h + array_bytes(r) + h->plugin_bytes != bytes)
		return error_set(err, GRADCOMP_ERR_INVALID, "load: the state has %llu bytes and should have %llu",
		                 (unsigned long long)bytes,
		                 (unsigned long long)(sizeof *h + array_bytes(r) + (h->plugin_bytes > bytes ? 0 : h->plugin_bytes)));
	if (h->checksum != checksum((const unsigned char *)buf + offsetof(head, step), bytes - offsetof(head, step)))
		return error_set(err, GRADCOMP_ERR_INVALID, "load: the state is damaged (its checksum differs)");
	if (h->plugin_bytes && !r->compressor->load)
		return error_set(err, GRADCOMP_ERR_INVALID, "load: compressor '%s' keeps no state of its own, this has %llu bytes",
		                 r->compressor->info.name, (unsigned long long)h->plugin_bytes);
	return GRADCOMP_OK;
}

gradcomp_status gradcomp_reducer_load(gradcomp_reducer *r, const void *buf, uint64_t bytes, gradcomp_error *err)
{
	const gradcomp_reducer *k = keeper(r);
	const unsigned char *p = buf;
	gradcomp_status st;
	head h = {0};
	pthread_mutex_lock(&r->lock);
	st = between_steps(r, "load", err);
	if (!st)
		st = check_head(r, buf, bytes, &h, err);
	if (!st && k->instance && r->compressor->load)
		st = r->compressor->load(k->instance, p + sizeof h + array_bytes(r), h.plugin_bytes, err);
	if (!st) {
		p += sizeof h;
		if (k->error) {
			st = array_copy(r, k->error, p, err);
			p += k->layout.numel * sizeof(float);
		}
		for (uint32_t s = 0; !st && s < r->compressor->state_arrays; s++, p += k->layout.numel * sizeof(float))
			st = array_copy(r, k->state[s], p, err);
		if (!st && r->nresident)
			memcpy(r->resident, p, r->nresident * sizeof(float));
		r->step = h.step;
	}
	pthread_mutex_unlock(&r->lock);
	return st;
}
