/* Saving and loading what delayed averages owe, with the state of the reducer behind.
 *
 * One byte string: a head, the corrections of the steps that are pending, the oldest first, as
 * floats, and what the reducer behind saves. Averages that are on their way are waited for,
 * so all that is pending is corrections, and when they come does not matter: a resumed run has
 * the same bits. A state that ranks share has nothing pending, and is that of the reducer behind. */
#include "kinds/delay/delay_gpu.h"

#include "base/error.h"
#include "job/consensus.h"
#include "job/saved_state.h"

#include <string.h>

typedef struct head {
	saved_head saved; /* its checksum ends before what the reducer behind saves */
	uint64_t numel;
	uint32_t delay, n_pending;
} head;

static uint64_t pending_bytes(const delay *d, uint32_t n_pending)
{
	return (uint64_t)n_pending * d->model.numel * sizeof(float);
}

gradcomp_status delay_save(gradcomp_reducer *base, void *buf, uint64_t capacity, uint64_t *bytes, gradcomp_error *err)
{
	delay *d = (delay *)base;
	uint64_t behind = 0;
	pthread_mutex_lock(&d->lock);
	gradcomp_status st = delay_settle(d, "save", err);
	if (!st)
		st = d->inner->ops->save(d->inner, NULL, 0, &behind, err);
	uint64_t own = sizeof(head) + pending_bytes(d, d->n_pending);
	if (!st)
		*bytes = own + behind;
	if (!st && buf && capacity < *bytes)
		st = error_set(err, GRADCOMP_ERR_INVALID, "save: the buffer has %llu bytes, the state takes %llu",
		               (unsigned long long)capacity, (unsigned long long)*bytes);
	if (!st && buf) {
		head h = {.numel = d->model.numel, .delay = d->delay, .n_pending = d->n_pending};
		char *p = buf;
		memcpy(p, &h, sizeof h);
		for (uint32_t j = 0; !st && j < d->n_pending; j++)
			st = delay_gpu_copy(d, p + sizeof h + pending_bytes(d, j), delay_correction(d, j),
			                    pending_bytes(d, 1), err);
		saved_seal(SAVED_DELAY, buf, own);
		if (!st)
			st = d->inner->ops->save(d->inner, p + own, behind, &behind, err);
	}
	pthread_mutex_unlock(&d->lock);
	return st;
}

gradcomp_status delay_save_shared(gradcomp_reducer *base, void *buf, uint64_t capacity, uint64_t *bytes,
                                  gradcomp_error *err)
{
	delay *d = (delay *)base;
	gradcomp_error why = {0};
	pthread_mutex_lock(&d->lock);
	gradcomp_status st = delay_settle(d, "save", &why);
	if (!st && d->n_pending)
		st = error_set(&why, GRADCOMP_ERR_STATE,
		               "save: %u steps still owe what their averages correct, of this rank's gradients: call "
		               "gradcomp_reducer_drain() before a shared state is saved",
		               d->n_pending);
	if (buf)
		st = consensus(d->group, &(consensus_topic){.what = "save a shared state", .same_status = true}, st,
		               &why);
	if (!st)
		st = d->inner->ops->save_shared(d->inner, buf, capacity, bytes, &why);
	pthread_mutex_unlock(&d->lock);
	return st ? error_set(err, st, "%s", why.text) : GRADCOMP_OK;
}

static gradcomp_status check(const delay *d, const void *buf, uint64_t bytes, head *h, gradcomp_error *err)
{
	gradcomp_status st = saved_read(SAVED_DELAY, buf, bytes, h, sizeof *h, err);
	if (st)
		return st;
	if (h->delay != d->delay)
		return error_set(err, GRADCOMP_ERR_MISMATCH,
		                 "load: the state is of a delay of %u steps, this reducer has %u", h->delay, d->delay);
	if (h->numel != d->model.numel)
		return error_set(err, GRADCOMP_ERR_MISMATCH,
		                 "load: the state is of a model of %llu parameters; this one has %llu",
		                 (unsigned long long)h->numel, (unsigned long long)d->model.numel);
	if (h->n_pending > d->delay || bytes - sizeof *h < pending_bytes(d, h->n_pending))
		return error_set(err, GRADCOMP_ERR_INVALID, "load: %llu bytes do not hold the averages of %u steps",
		                 (unsigned long long)bytes, h->n_pending);
	return saved_check(SAVED_DELAY, buf, sizeof *h + pending_bytes(d, h->n_pending), err);
}

gradcomp_status delay_load(gradcomp_reducer *base, const void *buf, uint64_t bytes, gradcomp_error *err)
{
	delay *d = (delay *)base;
	head h = {0};
	gradcomp_error why = {0};
	pthread_mutex_lock(&d->lock);
	gradcomp_status st = delay_settle(d, "load", &why);
	/* One that ranks share was saved when nothing was owed. */
	const bool shared = saved_is_shared(buf, bytes);
	if (!st && !shared)
		st = check(d, buf, bytes, &h, &why);
	const uint64_t own = shared ? 0 : sizeof h + pending_bytes(d, h.n_pending);
	st = consensus(d->group, &(consensus_topic){.what = "load its state", .same_status = true}, st, &why);
	if (!st)
		st = d->inner->ops->load(d->inner, (const char *)buf + own, bytes - own, &why);
	if (!st) {
		d->n_pending = h.n_pending;
		for (uint32_t j = 0; !st && j < d->n_pending; j++)
			st = delay_gpu_copy(d, delay_correction(d, j),
			                    (const char *)buf + sizeof h + pending_bytes(d, j), pending_bytes(d, 1),
			                    &why);
	}
	pthread_mutex_unlock(&d->lock);
	return st ? error_set(err, st, "%s", why.text) : GRADCOMP_OK;
}
