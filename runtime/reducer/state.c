/* Saving and loading a reducer's state.
 *
 * One byte string: a head, the error memory, the resident arrays, the plugin's
 * own bytes. The head has what the state belongs to and a checksum of the rest,
 * so that a wrong or damaged checkpoint is refused before anything changes. */
#include "gpu.h"

#include "error.h"

#include <stdlib.h>
#include <string.h>

static const char magic[8] = "GCSTATE1";

typedef struct head {
	char magic[8];
	uint64_t checksum; /* of all that follows it */
	uint64_t step, numel, tensors, plugin_bytes;
	uint32_t has_error, state_arrays, rank, nranks;
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

static void describe(const gradcomp_reducer *r, uint64_t plugin_bytes, head *h)
{
	memset(h, 0, sizeof *h);
	memcpy(h->magic, magic, sizeof magic);
	h->step = r->step;
	h->numel = r->layout.numel;
	for (uint32_t i = 0; i < r->layout.ntensors; i++)
		h->tensors = id_mix(h->tensors, layout_hash_tensor(&r->tensors[i]));
	h->plugin_bytes = plugin_bytes;
	h->has_error = !!r->error;
	h->state_arrays = r->compressor->state_arrays;
	h->rank = (uint32_t)r->layout.rank;
	h->nranks = (uint32_t)r->layout.nranks;
	strncpy(h->compressor, r->compressor_spec, sizeof h->compressor - 1);
}

static uint64_t array_bytes(const gradcomp_reducer *r)
{
	return (uint64_t)(!!r->error + r->compressor->state_arrays) * r->layout.numel * sizeof(float);
}

/* One of the arrays, to or from host memory. */
static gradcomp_status array_copy(const gradcomp_reducer *r, void *to, const void *from, gradcomp_error *err)
{
	size_t bytes = r->layout.numel * sizeof(float);
	const gpu *g = r->gpu;
	if (!g || g->way == GPU_WHOLE) {
		memcpy(to, from, bytes);
		return GRADCOMP_OK;
	}
	const char *why = g->d->copy(g->compute, to, from, bytes);
	gpu_drain(g);
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
	uint64_t own = 0, arrays = array_bytes(r);
	unsigned char *p = buf;
	gradcomp_status st;
	head h;
	pthread_mutex_lock(&r->lock);
	st = between_steps(r, "save", err);
	if (!st && r->compressor->save)
		st = r->compressor->save(r->instance, NULL, 0, &own, err);
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
	if (r->error) {
		st = array_copy(r, p, r->error, err);
		p += r->layout.numel * sizeof(float);
	}
	for (uint32_t s = 0; !st && s < r->compressor->state_arrays; s++, p += r->layout.numel * sizeof(float))
		st = array_copy(r, p, r->state[s], err);
	if (st)
		goto done;
	if (own)
		st = r->compressor->save(r->instance, p, own, &own, err);
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
	const unsigned char *p = buf;
	gradcomp_status st;
	head h = {0};
	pthread_mutex_lock(&r->lock);
	st = between_steps(r, "load", err);
	if (!st)
		st = check_head(r, buf, bytes, &h, err);
	if (!st && r->compressor->load)
		st = r->compressor->load(r->instance, p + sizeof h + array_bytes(r), h.plugin_bytes, err);
	if (!st) {
		p += sizeof h;
		if (r->error) {
			st = array_copy(r, r->error, p, err);
			p += r->layout.numel * sizeof(float);
		}
		for (uint32_t s = 0; !st && s < r->compressor->state_arrays; s++, p += r->layout.numel * sizeof(float))
			st = array_copy(r, r->state[s], p, err);
		r->step = h.step;
	}
	pthread_mutex_unlock(&r->lock);
	return st;
}
