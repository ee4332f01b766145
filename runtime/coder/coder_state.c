/* Saving and loading a coder: residuals, and how many calls there were. Its compressor keeps nothing.
 * What is loaded is hostile until it has been checked, before anything changes. */
#include "coder/coder_gpu.h"

#include "base/error.h"
#include "job/saved_state.h"

#include <stddef.h>
#include <stdlib.h>
#include <string.h>

/* Begins a state. Behind it come the slots, by number, each a slot_head, its counts and its numbers, filled up to
 * 8 bytes. */
typedef struct state_head {
	saved_head saved;
	uint64_t calls, seed, reserved0;
	uint32_t rank, nranks, nslots, reserved1;
	char compressor[256];
} state_head;

typedef struct slot_head {
	uint64_t total;
	uint32_t number, reserved0;
} slot_head;

/* Bytes of a slot; 0 for more than there can be. */
static uint64_t slot_bytes(const gradcomp_coder *c, uint64_t total)
{
	if (total > INT64_MAX / sizeof(float) - 4096)
		return 0;
	return sizeof(slot_head) + (uint64_t)c->layout.nranks * sizeof(uint64_t) + (total * sizeof(float) + 7) / 8 * 8;
}

static gradcomp_status idle(const gradcomp_coder *c, const char *what, gradcomp_error *err)
{
	return c->inflight ? error_set(err, GRADCOMP_ERR_STATE,
	                               "coder '%s': %s with %llu calls in flight: wait for them first", c->name, what,
	                               (unsigned long long)c->inflight)
	                   : GRADCOMP_OK;
}

static void describe(const gradcomp_coder *c, state_head *h)
{
	memset(h, 0, sizeof *h);
	h->calls = c->calls;
	h->seed = c->layout.seed;
	h->rank = (uint32_t)c->layout.rank;
	h->nranks = (uint32_t)c->layout.nranks;
	h->nslots = c->nslots;
	strncpy(h->compressor, c->spec, sizeof h->compressor - 1);
}

/* Its numbers are put there apart, where they are on a device. */
static char *put_slot(gradcomp_coder *c, const coder_slot *s, char *p, gradcomp_status *st, gradcomp_error *err)
{
	const slot_head h = {.total = s->total, .number = s->number};
	size_t counts = (size_t)c->layout.nranks * sizeof *s->counts;
	uint64_t bytes = slot_bytes(c, s->total);
	memset(p + bytes - 8, 0, 8);
	memcpy(p, &h, sizeof h);
	memcpy(p + sizeof h, s->counts, counts);
	if (c->gpu && !*st)
		*st = coder_gpu_read_slot(c, s, (float *)(void *)(p + sizeof h + counts), err);
	else if (!c->gpu)
		memcpy(p + sizeof h + counts, s->e, s->total * sizeof *s->e);
	return p + bytes;
}

/* Called with the lock held. */
static gradcomp_status save(gradcomp_coder *c, char *buf, uint64_t capacity, uint64_t *bytes, gradcomp_error *err)
{
	state_head h;
	gradcomp_status st = idle(c, "save", err);
	if (st)
		return st;
	*bytes = sizeof h;
	for (uint32_t i = 0; i < c->nslots; i++)
		*bytes += slot_bytes(c, c->slots[i]->total);
	if (!buf)
		return GRADCOMP_OK;
	if (capacity < *bytes)
		return error_set(err, GRADCOMP_ERR_INVALID,
		                 "coder '%s': the buffer has %llu bytes, the state takes %llu", c->name,
		                 (unsigned long long)capacity, (unsigned long long)*bytes);
	char *p = buf + sizeof h;
	for (uint32_t i = 0; i < c->nslots; i++)
		p = put_slot(c, c->slots[i], p, &st, err);
	if (st)
		return st;
	describe(c, &h);
	memcpy(buf, &h, sizeof h);
	saved_seal(SAVED_CODER, buf, *bytes);
	return GRADCOMP_OK;
}

gradcomp_status gradcomp_coder_save(gradcomp_coder *c, void *buf, uint64_t capacity, uint64_t *bytes,
                                    gradcomp_error *err)
{
	if (!c || !bytes)
		return error_set(err, GRADCOMP_ERR_INVALID, "%s is NULL", c ? "bytes" : "coder");
	pthread_mutex_lock(&c->lock);
	gradcomp_status st = save(c, buf, capacity, bytes, err);
	pthread_mutex_unlock(&c->lock);
	return st;
}

static gradcomp_status damaged(const gradcomp_coder *c, uint64_t bytes, gradcomp_error *err)
{
	return error_set(err, GRADCOMP_ERR_INVALID, "coder '%s': the state of %llu bytes is damaged", c->name,
	                 (unsigned long long)bytes);
}

static gradcomp_status check_head(const gradcomp_coder *c, const void *buf, uint64_t bytes, state_head *h,
                                  gradcomp_error *err)
{
	state_head want;
	gradcomp_error why = {0};
	gradcomp_status st = saved_read(SAVED_CODER, buf, bytes, h, sizeof *h, &why);
	if (!st)
		st = saved_check(SAVED_CODER, buf, bytes, &why);
	if (st)
		return error_set(err, st, "coder '%s': %s", c->name, why.text);
	describe(c, &want);
	h->compressor[sizeof h->compressor - 1] = 0;
	if (strcmp(h->compressor, want.compressor))
		return error_set(err, GRADCOMP_ERR_MISMATCH, "coder '%s': the state is of '%s', this coder is '%s'",
		                 c->name, h->compressor, want.compressor);
	if (h->rank != want.rank || h->nranks != want.nranks)
		return error_set(err, GRADCOMP_ERR_MISMATCH,
		                 "coder '%s': the state is of rank %u of %u, this is rank %u of %u", c->name, h->rank,
		                 h->nranks, want.rank, want.nranks);
	if (h->seed != want.seed)
		return error_set(err, GRADCOMP_ERR_MISMATCH, "coder '%s': the state has seed %llu, this coder %llu",
		                 c->name, (unsigned long long)h->seed, (unsigned long long)want.seed);
	return GRADCOMP_OK;
}

/* The slot at *at, of which the state has *left bytes; NULL when it is none, or has a number that is
 * not finite. */
static coder_slot *take_slot(const gradcomp_coder *c, const char **at, uint64_t *left, const coder_slot *before,
                             bool *nomem)
{
	size_t P = (size_t)c->layout.nranks, counts = P * sizeof(uint64_t);
	uint64_t sum = 0, n;
	slot_head h;
	if (*left < sizeof h + counts)
		return NULL;
	memcpy(&h, *at, sizeof h);
	uint64_t bytes = slot_bytes(c, h.total);
	if (!bytes || bytes > *left || h.number == GRADCOMP_CODER_NO_SLOT || (before && before->number >= h.number))
		return NULL;
	for (size_t r = 0; r < P; r++) {
		memcpy(&n, *at + sizeof h + r * sizeof n, sizeof n);
		if (n > h.total - sum)
			return NULL;
		sum += n;
	}
	if (sum != h.total)
		return NULL;
	uint64_t *copy = malloc(counts);
	if (copy)
		memcpy(copy, *at + sizeof h, counts);
	coder_slot *s = copy ? coder_slot_make(h.number, copy, c->layout.nranks, h.total, NULL) : NULL;
	free(copy);
	*nomem = !s;
	if (!s)
		return NULL;
	int bad = 0;
	memcpy(s->e, *at + sizeof h + counts, h.total * sizeof *s->e);
	c->job->host.operators->nonfinite(NULL, s->e, h.total, &bad);
	if (bad) {
		coder_slot_free(s);
		return NULL;
	}
	*at += bytes;
	*left -= bytes;
	return s;
}

/* Called with the lock held. */
static gradcomp_status load(gradcomp_coder *c, const char *buf, uint64_t bytes, gradcomp_error *err)
{
	coder_slot **slots = NULL;
	uint32_t n = 0;
	state_head h;
	gradcomp_status st = idle(c, "load", err);
	if (!st)
		st = check_head(c, buf, bytes, &h, err);
	if (st)
		return st;
	const char *at = buf + sizeof h;
	uint64_t left = bytes - sizeof h, numbers = 0;
	bool nomem = false;
	if (h.nslots > left / sizeof(slot_head))
		return damaged(c, bytes, err);
	slots = malloc(((size_t)h.nslots + 1) * sizeof(coder_slot *));
	while (slots && n < h.nslots && (slots[n] = take_slot(c, &at, &left, n ? slots[n - 1] : NULL, &nomem)))
		numbers += slots[n++]->total;
	bool whole = slots && n == h.nslots && !left;
	if (!slots || nomem)
		st = error_set(err, GRADCOMP_ERR_NOMEM, "coder '%s': no memory for a state of %llu bytes", c->name,
		               (unsigned long long)bytes);
	else if (!whole)
		st = damaged(c, bytes, err);
	for (uint32_t i = 0; c->gpu && !st && i < n; i++)
		st = coder_gpu_move_slot(c, slots[i], err);
	/* Calls that have ended may be at work on the slots there were. */
	if (!st && c->gpu)
		st = coder_gpu_settle(c, err);
	if (st) {
		coder_slots_free(slots, n);
		return st;
	}
	coder_slots_free(c->slots, c->nslots);
	c->slots = slots;
	c->nslots = c->stats.slots = n;
	c->stats.residual_bytes = numbers * sizeof(float);
	c->calls = h.calls;
	return GRADCOMP_OK;
}

gradcomp_status gradcomp_coder_load(gradcomp_coder *c, const void *buf, uint64_t bytes, gradcomp_error *err)
{
	if (!c)
		return error_set(err, GRADCOMP_ERR_INVALID, "coder is NULL");
	pthread_mutex_lock(&c->lock);
	gradcomp_status st = load(c, buf, bytes, err);
	pthread_mutex_unlock(&c->lock);
	return st;
}

gradcomp_status gradcomp_coder_read_slot(gradcomp_coder *c, uint32_t slot, float *numbers, uint64_t capacity,
                                         uint64_t *total, gradcomp_error *err)
{
	if (!c || !total)
		return error_set(err, GRADCOMP_ERR_INVALID, "%s is NULL", c ? "total" : "coder");
	pthread_mutex_lock(&c->lock);
	gradcomp_status st = idle(c, "read_slot", err);
	const coder_slot *s = st ? NULL : coder_slot_find(c, slot);
	*total = s ? s->total : 0;
	if (s && numbers && capacity < s->total)
		st = error_set(err, GRADCOMP_ERR_INVALID,
		               "coder '%s': slot %u has %llu numbers, and there is room for %llu", c->name, slot,
		               (unsigned long long)s->total, (unsigned long long)capacity);
	else if (s && numbers && c->gpu)
		st = coder_gpu_read_slot(c, s, numbers, err);
	else if (s && numbers)
		memcpy(numbers, s->e, s->total * sizeof *numbers);
	pthread_mutex_unlock(&c->lock);
	return st;
}

static gradcomp_status check_numbers(const gradcomp_coder *c, uint32_t slot, const uint64_t *counts,
                                     const float *numbers, uint64_t *total, gradcomp_error *err)
{
	int bad = 0;
	*total = 0;
	if (!c->keeps)
		return error_set(err, GRADCOMP_ERR_UNSUPPORTED,
		                 "coder '%s': '%s' loses nothing, so that it keeps no slot", c->name, c->spec);
	if (slot == GRADCOMP_CODER_NO_SLOT)
		return error_set(err, GRADCOMP_ERR_INVALID, "coder '%s': %u is the number of no slot", c->name, slot);
	for (int r = 0; r < c->layout.nranks; r++) {
		if (counts[r] > INT64_MAX / sizeof(float) - 4096 - *total)
			return error_set(err, GRADCOMP_ERR_RANGE,
			                 "coder '%s': slot %u: more numbers than can be counted", c->name, slot);
		*total += counts[r];
	}
	if (*total && !numbers)
		return error_set(err, GRADCOMP_ERR_INVALID, "numbers is NULL");
	if (*total)
		c->job->host.operators->nonfinite(NULL, numbers, *total, &bad);
	return bad ? error_set(err, GRADCOMP_ERR_INVALID, "coder '%s': slot %u: NaN or Inf among the numbers", c->name,
	                       slot)
	           : GRADCOMP_OK;
}

gradcomp_status gradcomp_coder_write_slot(gradcomp_coder *c, uint32_t slot, const uint64_t *counts,
                                          const float *numbers, gradcomp_error *err)
{
	uint64_t total;
	if (!c || !counts)
		return error_set(err, GRADCOMP_ERR_INVALID, "%s is NULL", c ? "counts" : "coder");
	gradcomp_status st = check_numbers(c, slot, counts, numbers, &total, err);
	if (st)
		return st;
	pthread_mutex_lock(&c->lock);
	st = idle(c, "write_slot", err);
	coder_slot *s = st ? NULL : coder_slot_make(slot, counts, c->layout.nranks, total, NULL);
	if (s)
		memcpy(s->e, numbers, total * sizeof *numbers);
	if (s && c->gpu) {
		st = coder_gpu_move_slot(c, s, err);
		st = st ? st : coder_gpu_settle(c, err);
	}
	if (!st)
		st = coder_slot_put(c, slot, total, s, err);
	else if (s)
		coder_slot_free(s);
	pthread_mutex_unlock(&c->lock);
	return st;
}
