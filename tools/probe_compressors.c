/* Measures what compressors cost a rank, all ranks at the same time, by the plugin's own functions: past any
 * warm-up, which a reducer that has just been made is not. What the reducer itself does to a bucket before it is
 * encoded is added. */
#include "tools/probe.h"

#include "tools/bench.h"
#include "tools/bench_local.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { SIZES = 3, PARTS = 4, RUN = 4096 };

/* A matrix of about so many numbers: compressors of low rank look at shapes. */
static uint64_t side(uint64_t numbers)
{
	uint64_t s = (uint64_t)sqrt((double)numbers);
	return s ? s : 1;
}

/* Begins a bucket like the reducer does: is it finite, and what error memory holds is added. */
static double begin(float *x, const float *error, uint64_t n)
{
	const gradcomp_operators *ops = gradcomp_host_operators();
	double start = clock_now();
	int bad;
	for (uint64_t at = 0; at < n; at += RUN) {
		uint64_t len = n - at < RUN ? n - at : RUN;
		ops->nonfinite(NULL, x + at, len, &bad);
		if (error)
			ops->add(NULL, x + at, error + at, len);
	}
	return clock_now() - start;
}

typedef struct local_times {
	double encode, decode;
	uint64_t bytes;
} local_times;

/* The middle of a few steps of the plugin by itself, decoding `parts` payloads. */
static gradcomp_status steps(probe *p, const bench_spec *spec, uint64_t s, const float *u, int parts, double seconds,
                             local_times *out, gradcomp_error *err)
{
	probe_samples encode = {.most = seconds / 2}, decode = encode;
	local l;
	gradcomp_status st = local_open(&l, spec->path, spec->spec, s, s, parts, err);
	if (st)
		return st;
	st = local_step(&l, u, err);
	while (!st && (probe_wants(&encode) || probe_wants(&decode))) {
		double t[2];
		st = probe_barrier(p, err);
		if (!st)
			st = local_step(&l, u, err);
		t[0] = l.cost.encode + l.cost.lost;
		t[1] = l.cost.decode;
		if (!st)
			st = gradcomp_allreduce(p->world, t, 2, GRADCOMP_F64, GRADCOMP_MAX, err);
		probe_add(&encode, t[0]);
		probe_add(&decode, t[1]);
	}
	*out = (local_times){probe_median(&encode), probe_median(&decode), l.cost.bytes};
	local_close(&l);
	return st;
}

static gradcomp_status gathered(probe *p, const bench_spec *spec, uint64_t s, const float *u, double seconds,
                                double *out, gradcomp_error *err)
{
	local_times single = {0}, many = {0};
	gradcomp_status st = steps(p, spec, s, u, 1, seconds / 2, &single, err);
	if (!st)
		st = steps(p, spec, s, u, PARTS, seconds / 2, &many, err);
	if (!st && many.bytes)
		*out = fmax(many.decode - single.decode, 0) / (PARTS - 1) / (double)many.bytes;
	return st;
}

static gradcomp_status curve(probe *p, const bench_spec *spec, const struct gradcomp_compressor_v1 *plugin,
                             const gradcomp_value *values, const float *u, float *room, double seconds,
                             compressor_curve *out, gradcomp_error *err)
{
	fit_point encode[SIZES], decode[SIZES];
	int coded = !!(plugin->patterns & GRADCOMP_PATTERN_BIT(GRADCOMP_CODED));
	const float *error = gradcomp_keeps_error(plugin, values) ? u : NULL;
	gradcomp_status st = GRADCOMP_OK;
	for (int k = 0; !st && k < SIZES; k++) {
		uint64_t s = side(p->numbers >> 3 * (SIZES - 1 - k));
		local_times t = {0};
		double x = (double)(s * s), begun;
		st = steps(p, spec, s, u, 1, seconds / (SIZES + 2), &t, err);
		begin(room, error, s * s);
		begun = begin(room, error, s * s);
		if (!st)
			st = probe_slowest(p, &begun, err);
		/* A code works in the exchange: a run is coded, decoded for what was lost, and decoded
		 * onto another. */
		encode[k] = (fit_point){1, x, begun + (coded ? 0 : t.encode)};
		decode[k] = (fit_point){1, x, coded ? (t.encode + t.decode) / 3 : t.decode};
	}
	if (!st && plugin->patterns & GRADCOMP_PATTERN_BIT(GRADCOMP_GATHERED))
		st = gathered(p, spec, side(p->numbers), u, 2 * seconds / (SIZES + 2), &out->gathered, err);
	if (st)
		return st;
	out->encode = probe_line(p, encode, SIZES, spec->spec);
	*(coded ? &out->code : &out->decode) = probe_line(p, decode, SIZES, spec->spec);
	return GRADCOMP_OK;
}

/* One that cannot run here says why, and the others are measured all the same. */
static gradcomp_status one(probe *p, const bench_spec *spec, const float *u, float *room, double seconds,
                           gradcomp_error *err)
{
	const gradcomp_plugin_info *info;
	gradcomp_plugin_kind kind;
	gradcomp_spec *text = NULL;
	compressor_curve *c = &p->m->curves[p->m->ncurves];
	local try;
	gradcomp_error why = {0};
	double bad;
	gradcomp_status st = gradcomp_plugin_open(spec->path, &kind, &info, &why);
	if (!st)
		st = gradcomp_spec_parse(info, spec->spec, &text, &why);
	if (!st)
		st = local_open(&try, spec->path, spec->spec, 16, 16, 1, &why);
	if (!st)
		local_close(&try);
	bad = st != GRADCOMP_OK;
	/* All ranks measure it or none. */
	st = probe_slowest(p, &bad, err);
	if (!st && (bad || !text)) {
		gradcomp_spec_free(text);
		return probe_leave_out(p, p->named_compressors, spec->spec, why.text, err);
	}
	if (!st)
		st = curve(p, spec, (const struct gradcomp_compressor_v1 *)(const void *)info, text->values, u, room,
		           seconds, c, err);
	if (!st && text)
		c->compressor = strdup(text->text);
	if (!st && !c->compressor) {
		probe_nomem(err, spec->spec);
		st = GRADCOMP_ERR_NOMEM;
	}
	if (!st)
		p->m->ncurves++;
	gradcomp_spec_free(text);
	return st;
}

gradcomp_status probe_compressors(probe *p, double seconds, gradcomp_error *err)
{
	uint64_t n = side(p->numbers) * side(p->numbers);
	float *u = malloc((n + 16) * sizeof *u), *room = calloc(n + 16, sizeof *room);
	gradcomp_status st = GRADCOMP_OK;
	p->m->curves = calloc((size_t)p->ncompressors + 1, sizeof *p->m->curves);
	if (!u || !room || !p->m->curves) {
		probe_nomem(err, "gradients");
		st = GRADCOMP_ERR_NOMEM;
	} else {
		gradcomp_host_operators()->random_normal(NULL, u, n, 1, 1, (uint64_t)p->rank << 40);
	}
	for (int k = 0; !st && k < p->ncompressors; k++)
		st = one(p, &p->compressors[k], u, room, seconds / p->ncompressors, err);
	free(room);
	free(u);
	return st;
}
