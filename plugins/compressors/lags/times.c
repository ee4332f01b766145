/* Measuring, and making what was measured equal on all ranks.
 *
 * A bucket's backward pass lasts from the encoding of the bucket before it, in the
 * same step, to its own; its tensors share that by their numbers. An exchange lasts
 * from the end of encode to the beginning of decode; waiting behind others is no part
 * of it, so the shortest counts. Densities alternate while measuring, so that there
 * are two sizes to put a line through.
 *
 * A host that measures and compares by itself tells what it has found, at any time; that
 * takes the place of all this. An older one does not. */
#include "plugins/compressors/lags/lags_internal.h"

#include <math.h>
#include <time.h>

enum { TIMES = 3, EACH = 2 }; /* floats of a bucket, and of each of its tensors */

double lags_now(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static int holds(const lags *l, uint32_t tensor, uint64_t step)
{
	return l->agreed[tensor].step != LAGS_NEVER && l->agreed[tensor].step < step;
}

int lags_agrees(const lags *l, const gradcomp_bucket *bucket, uint64_t step)
{
	int missing = 0;
	for (uint32_t i = 0; l->adaptive && !l->on_device && i < bucket->ntensors; i++)
		missing |= !holds(l, bucket->first + i, step);
	return missing && step >= l->agree_step;
}

uint64_t lags_floats(const gradcomp_bucket *bucket)
{
	return TIMES + (uint64_t)EACH * bucket->ntensors;
}

/* No more than what the ring of a dense sum sends: 2 (P-1)/P of 4 d bytes, where a gather sends P - 1 payloads. */
static double affordable(const lags *l, uint64_t d, double density)
{
	const double ranks = (double)l->s.layout->nranks, most = 4 * (double)d * (ranks > 2 ? 2 / ranks : 1);
	uint64_t k = sdk_sparse_share(density, d);
	/* Fewer numbers take no fewer bytes each. */
	for (double bytes; k > 1 && (bytes = (double)sdk_sparse_bytes(l->s.host->operators, l->s.coding, d, k)) > most;)
		k = (uint64_t)((double)k * most / bytes) < k - 1 ? (uint64_t)((double)k * most / bytes) : k - 1;
	return k ? fmin(density, (double)k / (double)d) : density;
}

double lags_density_of(const lags *l, uint32_t tensor, uint64_t step, double otherwise)
{
	uint32_t n = l->s.layout->ntensors, next = tensor + 1;
	uint64_t d = l->s.layout->tensors[tensor].numel;
	int agreed = holds(l, tensor, step) && (next == n || holds(l, next, step));
	if (!agreed && step < l->agree_step)
		return (step - l->s.schedule.start_step) % 2 ? otherwise / 4 : otherwise;
	if (!agreed)
		return otherwise;
	if (next < n && !(l->agreed[next].known > 0))
		return otherwise;
	const lags_agreed *a = &l->agreed[tensor];
	lags_times t = {(double)a->latency, (double)a->per_byte, (double)a->per_number};
	double k = (double)sdk_sparse_share(otherwise, d);
	double pair = k > 0 ? (double)sdk_sparse_bytes(l->s.host->operators, l->s.coding, d, (uint64_t)k) / k : 0;
	const double hidden =
		lags_density(&t, (double)d, pair, next < n ? (double)l->agreed[next].backward : 0, l->max_ratio);
	return affordable(l, d, hidden);
}

uint64_t lags_line(const lags *l)
{
	return 4 * (uint64_t)l->s.layout->ntensors;
}

void lags_tell(const lags *l, const gradcomp_bucket *bucket, double *line, float *out)
{
	double *bytes = line, *seconds = line + lags_line(l) / 2;
	lags_times t = {0};
	size_t n = 0;
	for (uint32_t i = 0; i < l->s.layout->ntensors; i++)
		for (int k = 0; k < 2; k++)
			if (l->measured[i].seconds[k] > 0) {
				bytes[n] = l->measured[i].bytes[k];
				seconds[n++] = l->measured[i].seconds[k];
			}
	lags_fit(&t, bytes, seconds, n);
	*out++ = (float)t.latency;
	*out++ = (float)t.per_byte;
	*out++ = l->selected > 0 ? (float)(l->selecting / l->selected) : 0;
	for (uint32_t i = 0; i < bucket->ntensors; i++) {
		const lags_measured *m = &l->measured[bucket->first + i];
		*out++ = m->steps ? (float)(m->backward / (double)m->steps) : 0;
		*out++ = m->steps ? 1 : 0;
	}
}

/* Ranks that have no time for a tensor (their first step after a load) do not count. */
void lags_take(lags *l, const gradcomp_bucket *bucket, uint64_t step, const float *mean)
{
	for (uint32_t i = 0; i < bucket->ntensors; i++) {
		const float *of = mean + TIMES + EACH * i;
		l->agreed[bucket->first + i] = (lags_agreed){.step = step,
		                                             .latency = mean[0],
		                                             .per_byte = mean[1],
		                                             .per_number = mean[2],
		                                             .backward = of[1] > 0 ? of[0] / of[1] : 0,
		                                             .known = of[1]};
	}
}

static float seconds(double s)
{
	return s > 0 && s < 1e9 ? (float)s : 0;
}

gradcomp_status lags_told(void *instance, const gradcomp_measured *m, uint64_t step, gradcomp_error *err)
{
	lags *l = instance;
	const gradcomp_layout *layout = l->s.layout;
	if (!l->adaptive || !step)
		return GRADCOMP_OK;
	if (m->ntensors != layout->ntensors)
		return l->s.host->fail(err, GRADCOMP_ERR_INTERNAL, "lags: times of %u tensors, there are %u",
		                       m->ntensors, layout->ntensors);
	for (uint32_t i = 0; i < layout->ntensors; i++)
		l->agreed[i] = (lags_agreed){.step = step - 1,
		                             .latency = seconds(m->exchange_a),
		                             .per_byte = seconds(m->exchange_b),
		                             .per_number = seconds(m->encode_b),
		                             .backward = seconds(m->backward[i]),
		                             .known = 1};
	return GRADCOMP_OK;
}

void lags_note(lags *l, const gradcomp_bucket *bucket, uint64_t step, const lags_in_flight *f, double arrived)
{
	uint32_t first = bucket->first, size = (step - l->s.schedule.start_step) % 2;
	lags_measured *m = &l->measured[first], *end = m + bucket->ntensors - 1;
	double bytes = (double)sdk_sparse_payload_bytes(&l->s, bucket, step), took = arrived - f->chosen;
	l->selecting += f->chosen - f->began;
	l->selected += (double)bucket->numel;
	if (m->bytes[size] != bytes || took < m->seconds[size]) {
		m->bytes[size] = bytes;
		m->seconds[size] = took;
	}
	end->began = f->began;
	end->step = step;
	/* When the bucket before is decoded after this one, this step does not count. */
	if (!first || m[-1].step != step || !bucket->numel)
		return;
	for (uint32_t i = 0; i < bucket->ntensors; i++) {
		double part = (double)l->s.layout->tensors[first + i].numel / (double)bucket->numel;
		m[i].backward += (f->began - m[-1].began) * part;
		m[i].steps++;
	}
}
