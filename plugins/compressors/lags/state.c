/* What the ranks have agreed on, for checkpoints; nothing unless adaptive. What was
 * only measured is of a machine and not saved: before the agreement a run that is
 * resumed measures for the steps that are left. */
#include <math.h>
#include <string.h>

#include "lags.h"
#include "saved.h"

static saved head(const lags *l)
{
	uint64_t parameters = saved_mix(SAVED_SEED, (uint64_t)l->adaptive);
	return saved_head(l->s.layout, "lags", 1, parameters,
	                  l->adaptive ? l->s.layout->ntensors * sizeof *l->agreed : 0);
}

gradcomp_status lags_save(void *instance, void *out, uint64_t capacity, uint64_t *bytes, gradcomp_error *err)
{
	const lags *l = instance;
	saved s = head(l);
	void *body;
	gradcomp_status st = saved_begin(l->s.host, &s, out, capacity, bytes, &body, err);
	if (body && s.bytes)
		memcpy(body, l->agreed, s.bytes);
	return st;
}

static int sensible(float v)
{
	return isfinite(v) && v >= 0;
}

gradcomp_status lags_load(void *instance, const void *in, uint64_t bytes, gradcomp_error *err)
{
	lags *l = instance;
	saved want = head(l);
	const char *body = (const char *)in + sizeof want;
	gradcomp_status st = saved_check(l->s.host, &want, in, bytes, err);
	for (uint32_t i = 0; !st && l->adaptive && i < l->s.layout->ntensors; i++) {
		lags_agreed a;
		memcpy(&a, body + i * sizeof a, sizeof a);
		if (!sensible(a.latency) || !sensible(a.per_byte) || !sensible(a.per_number) ||
		    !sensible(a.backward) || !sensible(a.known))
			st = l->s.host->fail(err, GRADCOMP_ERR_INVALID,
			                     "lags: the state is damaged: a time of '%s' is no time",
			                     l->s.layout->tensors[i].name);
	}
	if (!st && want.bytes)
		memcpy(l->agreed, body, want.bytes);
	return st;
}
