/* lags: top-k of each tensor, with a density of its own (Shi, Tang, Wang, Zhao, Chu:
 * Layer-wise Adaptive Gradient Sparsification for Distributed Deep Learning with
 * Convergence Guarantees, ECAI 2020).
 *
 * The densities are given, one for all or one for each tensor; or adaptive: each tensor sends as much as can be
 * sent while the next one's gradient is computed (lags_density.h), one in max_ratio numbers at least, but never
 * more bytes than a dense ring would. What that takes is measured by the host (schedule.*), which tells it to all
 * ranks alike; where it has not by then, in the first measure_steps steps every rank times its backward pass, the
 * choosing and the exchanges itself, and a mean over the ranks of a few floats makes that equal. On a device, where
 * a call takes no longer than to enqueue its work, only the host can tell.
 *
 * Rounds: that mean, in the one step it is due; and the parts, GATHERED (sparse.h). */
#include <stdio.h>
#include <math.h>
#include <string.h>

#include "gradcomp/sdk/payload.h"
#include "plugins/compressors/lags/lags_internal.h"
#include "gradcomp/sdk/state.h"

enum { DENSITIES = SDK_SPARSE_PARAMS, ADAPTIVE, MAX_RATIO, MEASURE_STEPS };

static const gradcomp_param params[] = {
	SDK_SPARSE_SCHEDULE_ROWS,
	SDK_SPARSE_INDICES_ROW,
	SDK_SPARSE_VALUES_ROW,
	[DENSITIES] = {.name = "densities",
                       .type = GRADCOMP_PARAM_STRING,
                       .def = "",
                       .help = "one a tensor, in the order of the model, as 0.01/0.001; empty: density"},
	[ADAPTIVE] = {.name = "adaptive",
                      .type = GRADCOMP_PARAM_BOOL,
                      .def = "no",
                      .help = "as much as is sent while the next tensor is computed"},
	[MAX_RATIO] = {.name = "max_ratio",
                       .type = GRADCOMP_PARAM_FLOAT,
                       .def = "1000",
                       .min = 1,
                       .max = 1e9,
                       .help = "adaptive: at least one in so many numbers is sent"},
	[MEASURE_STEPS] = {.name = "measure_steps",
                           .type = GRADCOMP_PARAM_INT,
                           .def = "20",
                           .min = 2,
                           .max = 1e6,
                           .help = "adaptive: steps that are timed, at density and a quarter of it"},
};

static gradcomp_status refuse(const gradcomp_host *host, const char *text, gradcomp_error *err)
{
	return host->fail(err, GRADCOMP_ERR_INVALID,
	                  "lags: densities=%.80s: must be numbers from 1e-9 to 1, as 0.01/0.001", text);
}

/* How many densities the list has; out may be NULL. */
static gradcomp_status read_densities(const gradcomp_host *host, const char *text, float *out, uint32_t *count,
                                      gradcomp_error *err)
{
	*count = 0;
	for (const char *p = text; *p; p++) {
		double density;
		p = sdk_sparse_number(p, &density);
		if (!(density >= 1e-9 && density <= 1) || (*p && (*p != '/' || !p[1])))
			return refuse(host, text, err);
		if (out)
			out[*count] = (float)density;
		++*count;
		if (!*p)
			break;
	}
	return GRADCOMP_OK;
}

static gradcomp_status lags_check(const gradcomp_host *host, const gradcomp_value *values, gradcomp_error *err)
{
	sdk_sparse_schedule s;
	uint32_t count;
	if (values[ADAPTIVE].i && values[DENSITIES].s[0])
		return host->fail(err, GRADCOMP_ERR_INVALID, "lags: densities are given or adaptive, not both");
	gradcomp_status st = read_densities(host, values[DENSITIES].s, NULL, &count, err);
	return st ? st : sdk_sparse_schedule_read(&s, host, values, "lags", err);
}

static uint64_t kept(const sdk_sparse *s, const sdk_sparse_part *part, uint64_t step)
{
	const lags *l = (const lags *)s;
	double density = sdk_sparse_density(&s->schedule, step);
	if (l->given)
		density = (double)l->given[part->tensor];
	if (l->adaptive)
		density = lags_density_of(l, part->tensor, step, density);
	return sdk_sparse_share(density, part->d);
}

static void lags_destroy(void *instance)
{
	lags *l = instance;
	if (!l)
		return;
	const gradcomp_host *host = l->s.host;
	host->release(l->given);
	host->release(l->agreed);
	host->release(l->measured);
	host->release(l->choice);
	sdk_sparse_destroy(l);
}

/* The list is in the model's order, the layout in that of the backward pass. */
static gradcomp_status give(lags *l, const char *text, gradcomp_error *err)
{
	const gradcomp_host *host = l->s.host;
	uint32_t n = l->s.layout->ntensors, count;
	gradcomp_status st = read_densities(host, text, NULL, &count, err);
	if (st || !count)
		return st;
	if (count != n)
		return host->fail(err, GRADCOMP_ERR_INVALID, "lags: densities has %u numbers, the model %u tensors",
		                  count, n);
	l->given = host->alloc((n + 1) * sizeof *l->given);
	if (!l->given)
		return host->fail(err, GRADCOMP_ERR_NOMEM, "lags: no memory for %u densities", n);
	read_densities(host, text, l->given, &count, err);
	for (uint32_t i = 0; i < n / 2; i++) {
		float first = l->given[i];
		l->given[i] = l->given[n - 1 - i];
		l->given[n - 1 - i] = first;
	}
	return GRADCOMP_OK;
}

static gradcomp_status prepare(lags *l, const gradcomp_value *values, gradcomp_error *err)
{
	const gradcomp_host *host = l->s.host;
	uint32_t n = l->s.layout->ntensors;
	l->adaptive = values[ADAPTIVE].i != 0;
	l->max_ratio = values[MAX_RATIO].f;
	l->agree_step = l->s.schedule.start_step + (uint64_t)values[MEASURE_STEPS].i;
	l->choice = host->alloc((n + 1) * sizeof *l->choice);
	if (l->adaptive) {
		l->agreed = host->alloc((n + 1) * sizeof *l->agreed);
		l->measured = host->alloc((n + 1) * sizeof *l->measured);
	}
	if (!l->choice || (l->adaptive && (!l->agreed || !l->measured)))
		return host->fail(err, GRADCOMP_ERR_NOMEM, "lags: no memory for %u tensors", n);
	gradcomp_status st = give(l, values[DENSITIES].s, err);
	for (uint32_t i = 0; !st && i < n; i++) {
		if (l->adaptive) {
			l->agreed[i].step = l->measured[i].step = LAGS_NEVER;
			snprintf(l->choice[i], sizeof l->choice[i], "adaptive");
		} else {
			snprintf(l->choice[i], sizeof l->choice[i], "density %.3g",
			         l->given ? (double)l->given[i] : l->s.schedule.density);
		}
	}
	return st;
}

static gradcomp_status lags_create(const gradcomp_host *host, const gradcomp_value *values,
                                   const gradcomp_layout *layout, void **instance, gradcomp_error *err)
{
	void *made;
	gradcomp_status st = sdk_sparse_new(sizeof(lags), host, values, layout, "lags", SDK_SPARSE_PARAMS, &made, err);
	if (st)
		return st;
	lags *l = made;
	l->s.layerwise = 1;
	l->s.kept = kept;
	l->on_device = GRADCOMP_HAS(layout, device) && layout->device != GRADCOMP_HOST;
	st = prepare(l, values, err);
	if (st)
		lags_destroy(l);
	else
		*instance = l;
	return st;
}

/* A tensor hides behind the next one's gradient: neither may wait for others of a bucket. */
static const char *lags_schedule(const gradcomp_value *values)
{
	return values[ADAPTIVE].i ? "wfbp" : NULL;
}

static int times_this(const lags *l, uint64_t step)
{
	return l->adaptive && !l->on_device && step >= l->s.schedule.start_step && step < l->agree_step;
}

/* Scratch: what the parts need, a line's points when they are told; times follow. */
static uint64_t times_at(const lags *l, const gradcomp_bucket *bucket, uint64_t step)
{
	return sdk_sparse_scratch(&l->s, bucket, step) +
	       (lags_agrees(l, bucket, step) ? lags_line(l) * sizeof(double) : 0);
}

static gradcomp_status lags_plan(void *instance, const gradcomp_bucket *bucket, uint64_t step, gradcomp_plan *plan,
                                 gradcomp_error *err)
{
	const lags *l = instance;
	gradcomp_status st = sdk_sparse_plan(instance, bucket, step, plan, err);
	if (st || sdk_sparse_is_passthrough(&l->s, step))
		return st;
	if (lags_agrees(l, bucket, step)) {
		plan->rounds[1] = plan->rounds[0];
		plan->rounds[0] = sdk_passthrough_round(lags_floats(bucket));
		plan->nrounds = 2;
	}
	plan->scratch_bytes = times_at(l, bucket, step) + (times_this(l, step) ? sizeof(lags_in_flight) : 0);
	return GRADCOMP_OK;
}

static gradcomp_status lags_encode(void *instance, const gradcomp_work *work, uint32_t round, gradcomp_payload *out,
                                   gradcomp_error *err)
{
	const lags *l = instance;
	const gradcomp_bucket *b = work->bucket;
	char *scratch = work->scratch;
	gradcomp_status st;
	if (!round && lags_agrees(l, b, work->step)) {
		lags_tell(l, b, (double *)(void *)(scratch + sdk_sparse_scratch(&l->s, b, work->step)), out->data);
		out->bytes = lags_floats(b) * sizeof(float);
		return GRADCOMP_OK;
	}
	if (!times_this(l, work->step))
		return sdk_sparse_encode(instance, work, 0, out, err);
	lags_in_flight *f = (lags_in_flight *)(void *)(scratch + times_at(l, b, work->step));
	f->began = lags_now();
	st = sdk_sparse_encode(instance, work, 0, out, err);
	f->chosen = lags_now();
	return st;
}

static gradcomp_status lags_decode(void *instance, const gradcomp_work *work, uint32_t round,
                                   const gradcomp_payload *in, uint32_t n, gradcomp_error *err)
{
	lags *l = instance;
	const gradcomp_bucket *b = work->bucket;
	int timed = times_this(l, work->step);
	double arrived = timed ? lags_now() : 0;
	if (!round && lags_agrees(l, b, work->step)) {
		if (in->bytes != lags_floats(b) * sizeof(float))
			return l->s.host->fail(err, GRADCOMP_ERR_INTERNAL, "lags: times of %llu bytes, %llu are right",
			                       (unsigned long long)in->bytes,
			                       (unsigned long long)(lags_floats(b) * sizeof(float)));
		lags_take(l, b, work->step, in->data);
		return GRADCOMP_OK;
	}
	gradcomp_status st = sdk_sparse_decode(instance, work, 0, in, n, err);
	if (!st && timed)
		lags_note(l, b, work->step,
		          (const lags_in_flight *)(const void *)((char *)work->scratch + times_at(l, b, work->step)),
		          arrived);
	return st;
}

static gradcomp_status lags_cost(void *instance, const gradcomp_bucket *bucket, uint64_t step, gradcomp_cost *cost,
                                 gradcomp_error *err)
{
	const lags *l = instance;
	gradcomp_status st = sdk_sparse_cost(instance, bucket, step, cost, err);
	if (!sdk_sparse_is_passthrough(&l->s, step) && lags_agrees(l, bucket, step)) {
		cost->rounds++;
		cost->wire_bytes += 4.0 * (double)lags_floats(bucket);
	}
	return st;
}

static const char *lags_choice(void *instance, uint32_t tensor)
{
	const lags *l = instance;
	return tensor < l->s.layout->ntensors ? l->choice[tensor] : NULL;
}

/* Describes what the ranks have agreed on, for checkpoints; nothing unless adaptive. What was only measured is of a
 * machine and not saved: before the agreement a run that is resumed measures for the steps that are left. */
static sdk_state_header head(const lags *l)
{
	uint64_t parameters = sdk_state_digest_add(SDK_STATE_DIGEST_SEED, (uint64_t)l->adaptive);
	return sdk_state_header_make(l->s.layout, "lags", 1, parameters,
	                             l->adaptive ? l->s.layout->ntensors * sizeof *l->agreed : 0);
}

gradcomp_status lags_save(void *instance, void *out, uint64_t capacity, uint64_t *bytes, gradcomp_error *err)
{
	const lags *l = instance;
	sdk_state_header s = head(l);
	void *body;
	gradcomp_status st = sdk_state_header_write(l->s.host, &s, out, capacity, bytes, &body, err);
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
	sdk_state_header want = head(l);
	const char *body = (const char *)in + sizeof want;
	gradcomp_status st = sdk_state_header_check(l->s.host, &want, in, bytes, err);
	for (uint32_t i = 0; !st && l->adaptive && i < l->s.layout->ntensors; i++) {
		lags_agreed a;
		memcpy(&a, body + i * sizeof a, sizeof a);
		if (!sensible(a.latency) || !sensible(a.per_byte) || !sensible(a.per_number) || !sensible(a.backward) ||
		    !sensible(a.known) || a.reserved != 0)
			st = l->s.host->fail(err, GRADCOMP_ERR_INVALID,
			                     "lags: the state is damaged: a time of '%s' is no time",
			                     l->s.layout->tensors[i].name);
	}
	if (!st && want.bytes)
		memcpy(l->agreed, body, want.bytes);
	return st;
}

GRADCOMP_EXPORT const struct gradcomp_compressor_v1 gradcomp_compressor_v1 = {
	.info =
		{
			.abi_version = GRADCOMP_ABI_VERSION,
			.struct_size = sizeof gradcomp_compressor_v1,
			.name = "lags",
			.version = "1.0",
			.summary = "top-k of each tensor, as much of it as hides behind the backward pass",
			.licence = "MIT",
			.params = params,
			.nparams = sizeof params / sizeof params[0],
		},
	.traits = GRADCOMP_TRAIT_ERROR_FEEDBACK | GRADCOMP_TRAIT_CUDA | GRADCOMP_TRAIT_HOLDS | GRADCOMP_TRAIT_ALIKE,
	.patterns = GRADCOMP_PATTERN_BIT(GRADCOMP_GATHERED) | GRADCOMP_PATTERN_BIT(GRADCOMP_SUMMED),
	.max_bucket = UINT32_MAX,
	.check = lags_check,
	.create = lags_create,
	.destroy = lags_destroy,
	.plan = lags_plan,
	.encode = lags_encode,
	.decode = lags_decode,
	.save = lags_save,
	.load = lags_load,
	.cost = lags_cost,
	.choice = lags_choice,
	.measured = lags_told,
	.schedule = lags_schedule,
};
