#include "tools/bench_local.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "tools/bench.h"
#include "conformance/host.h"

/* Floats of a piece under a code: a ring's pieces stay in the second-level cache. */
enum { PIECE = 65536 };

static void say(void *ctx, gradcomp_log_level level, const char *fmt, ...)
{
	va_list ap;
	(void)ctx;
	if (level > GRADCOMP_LOG_WARN)
		return;
	va_start(ap, fmt);
	vfprintf(stderr, fmt, ap);
	va_end(ap);
	putc('\n', stderr);
}

static void *aligned(size_t bytes)
{
	size_t whole = (bytes + 64) & ~(size_t)63;
	void *p = aligned_alloc(64, whole);
	return p ? memset(p, 0, whole) : NULL;
}

void local_host(gradcomp_host *host)
{
	*host = (gradcomp_host){.struct_size = sizeof *host,
	                        .abi_version = GRADCOMP_ABI_VERSION,
	                        .log = say,
	                        .fail = host_fail,
	                        .alloc = aligned,
	                        .release = free,
	                        .operators = gradcomp_host_operators()};
}

gradcomp_status local_open(local *l, const char *path, const char *spec, uint64_t rows, uint64_t columns, int parts,
                           gradcomp_error *err)
{
	const gradcomp_plugin_info *info;
	gradcomp_plugin_kind kind;
	gradcomp_status st = gradcomp_plugin_open(path, &kind, &info, err);
	size_t bytes = (size_t)(rows * columns) * sizeof(float);
	memset(l, 0, sizeof *l);
	if (!st)
		st = gradcomp_spec_parse(info, spec, &l->spec, err);
	if (st)
		return st;
	l->plugin = (const struct gradcomp_compressor_v1 *)(const void *)info;
	local_host(&l->host);
	l->dims[0] = rows;
	l->dims[1] = columns;
	l->tensor = (gradcomp_tensor){.name = "gradient", .numel = rows * columns, .dims = l->dims, .ndim = 2};
	l->layout = (gradcomp_layout){.struct_size = sizeof l->layout,
	                              .ntensors = 1,
	                              .tensors = &l->tensor,
	                              .numel = rows * columns,
	                              .nranks = parts,
	                              .seed = 1};
	l->parts = parts;
	l->bucket = (gradcomp_bucket){.struct_size = sizeof l->bucket, .ntensors = 1, .numel = rows * columns};
	/* Past every warm-up. */
	l->step = 1000000;
	l->x = aligned(bytes);
	l->error = aligned(bytes);
	l->state = calloc(l->plugin->state_arrays + 1, sizeof *l->state);
	if (!l->x || !l->error || !l->state) {
		local_close(l);
		return host_fail(err, GRADCOMP_ERR_NOMEM, "no memory for a gradient of %zu bytes", bytes);
	}
	for (uint32_t s = 0; !st && s < l->plugin->state_arrays; s++)
		if (!(l->state[s] = aligned(bytes)))
			st = host_fail(err, GRADCOMP_ERR_NOMEM, "no memory for a state of %zu bytes", bytes);
	if (!st && l->plugin->check)
		st = l->plugin->check(&l->host, l->spec->values, err);
	if (!st)
		st = l->plugin->create(&l->host, l->spec->values, &l->layout, &l->instance, err);
	if (st)
		local_close(l);
	return st;
}

void local_close(local *l)
{
	if (l->instance)
		l->plugin->destroy(l->instance);
	for (uint32_t s = 0; l->state && s < l->plugin->state_arrays; s++)
		free(l->state[s]);
	free(l->state);
	free(l->x);
	free(l->error);
	free(l->scratch);
	free(l->payload);
	gradcomp_spec_free(l->spec);
}

static gradcomp_status room(void **p, uint64_t *have, uint64_t want, gradcomp_error *err)
{
	if (*p && want <= *have)
		return GRADCOMP_OK;
	free(*p);
	*p = aligned(want);
	*have = want;
	return *p ? GRADCOMP_OK
	          : host_fail(err, GRADCOMP_ERR_NOMEM, "no memory for %llu bytes", (unsigned long long)want);
}

static gradcomp_status coded(local *l, const gradcomp_work *w, local_times *t, gradcomp_error *err)
{
	uint64_t n = l->bucket.numel, bound = l->plugin->code_bound(l->instance, PIECE);
	gradcomp_status st = room(&l->payload, &l->payload_bytes, bound, err);
	for (uint64_t at = 0; !st && at < n; at += PIECE) {
		uint64_t len = n - at < PIECE ? n - at : PIECE, bytes = 0;
		float *x = w->flat + at, *e = l->error + at;
		double start = clock_now(), between;
		st = l->plugin->code(l->instance, x, len, at, l->payload, &bytes, err);
		if (!st)
			st = l->plugin->code_decode(l->instance, l->payload, bytes, e, len, err);
		l->host.operators->scale(NULL, e, -1, len);
		l->host.operators->add(NULL, e, x, len);
		between = clock_now();
		/* Onto what a neighbour would have there. */
		if (!st)
			st = l->plugin->code_decode_add(l->instance, l->payload, bytes, x, len, err);
		t->encode += between - start;
		t->decode += clock_now() - between;
		t->bytes += bytes;
	}
	return st;
}

static gradcomp_status exchanged(local *l, const gradcomp_work *w, const gradcomp_round *rd, uint32_t round,
                                 local_times *t, gradcomp_error *err)
{
	uint64_t want = rd->pattern == GRADCOMP_SUMMED ? rd->count * gradcomp_dtype_bytes(rd->dtype) : rd->bound;
	uint32_t n = rd->pattern == GRADCOMP_GATHERED ? (uint32_t)l->parts : 1;
	uint64_t stride = (want + 15) & ~(uint64_t)7;
	gradcomp_status st = room(&l->payload, &l->payload_bytes, n * stride, err);
	gradcomp_payload p = {l->payload, want, want}, in[LOCAL_PARTS];
	double start;
	if (st)
		return st;
	if (rd->flags & GRADCOMP_ROUND_IN_PLACE) {
		p.data = w->flat;
	} else {
		start = clock_now();
		st = l->plugin->encode(l->instance, w, round, &p, err);
		t->encode += clock_now() - start;
	}
	t->bytes += p.bytes;
	for (uint32_t k = 0; k < n; k++) {
		in[k] = p;
		in[k].data = k ? (char *)l->payload + k * stride : p.data;
		if (k && !st)
			memcpy(in[k].data, p.data, p.bytes);
	}
	start = clock_now();
	if (!st)
		st = l->plugin->decode(l->instance, w, round, in, n, err);
	t->decode += clock_now() - start;
	return st;
}

/* |a - b| / |b|. */
static double distance(const float *a, const float *b, uint64_t n)
{
	double off = 0, all = 0;
	for (uint64_t i = 0; i < n; i++) {
		off += ((double)a[i] - b[i]) * ((double)a[i] - b[i]);
		all += (double)b[i] * b[i];
	}
	return all > 0 ? sqrt(off / all) : 0;
}

gradcomp_status local_step(local *l, const float *u, local_times *times, gradcomp_error *err)
{
	gradcomp_plan plan = {.struct_size = sizeof plan};
	uint64_t n = l->bucket.numel;
	int fault = 0, is_coded;
	gradcomp_status st;
	memset(times, 0, sizeof *times);
	memcpy(l->x, u, n * sizeof(float));
	st = l->plugin->plan(l->instance, &l->bucket, l->step, &plan, err);
	if (!st)
		st = room(&l->scratch, &l->scratch_bytes, plan.scratch_bytes + 64, err);
	if (st)
		return st;
	gradcomp_work w = {.struct_size = sizeof w,
	                   .bucket = &l->bucket,
	                   .step = l->step,
	                   .x = &l->x,
	                   .flat = l->x,
	                   .state = l->state,
	                   .scratch = l->scratch,
	                   .scratch_bytes = plan.scratch_bytes,
	                   .operators = l->host.operators,
	                   .fault = &fault};
	if (gradcomp_keeps_error(l->plugin, l->spec->values)) {
		w.error = &l->error;
		w.error_flat = l->error;
	}
	is_coded = plan.rounds[0].pattern == GRADCOMP_CODED;
	for (uint32_t k = 0; !st && k < plan.nrounds; k++)
		st = is_coded ? coded(l, &w, times, err) : exchanged(l, &w, &plan.rounds[k], k, times, err);
	l->step++;
	/* A code adds to what is there. */
	for (uint64_t i = 0; is_coded && i < n; i++)
		l->x[i] -= u[i];
	times->relative_error = distance(l->x, u, n);
	return st;
}
