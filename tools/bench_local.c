#include "tools/bench_local.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "tools/bench.h"
#include "conformance/host.h"

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
	                        .operators_v1 = gradcomp_operators_on_v1(GRADCOMP_HOST, NULL),
	                        .operators_on_v1 = gradcomp_operators_on_v1,
	                        .operators = gradcomp_host_operators()};
}

gradcomp_status local_open(local *l, const char *path, const char *spec, uint64_t rows, uint64_t columns, int parts,
                           gradcomp_error *err)
{
	const struct gradcomp_compressor_v1 *plugin;
	const gradcomp_plugin_info *info;
	gradcomp_plugin_kind kind;
	gradcomp_status st = gradcomp_plugin_open(path, &kind, &info, err);
	memset(l, 0, sizeof *l);
	if (!st)
		st = gradcomp_spec_parse(info, spec, &l->spec, err);
	if (st)
		return st;
	plugin = (const struct gradcomp_compressor_v1 *)(const void *)info;
	local_host(&l->host);
	if (plugin->check)
		st = plugin->check(&l->host, l->spec->values, err);
	if (!st)
		st = local_cost_open(&l->cost, &l->host, NULL, plugin, l->spec->values, rows, columns, 0, parts, err);
	if (st)
		gradcomp_spec_free(l->spec);
	return st;
}

void local_close(local *l)
{
	local_cost_close(&l->cost);
	gradcomp_spec_free(l->spec);
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

gradcomp_status local_step(local *l, const float *u, gradcomp_error *err)
{
	const uint64_t n = l->cost.bucket.numel;
	gradcomp_status st = local_cost_step(&l->cost, u, err);
	/* A code adds to what is there. */
	if (!st && l->cost.plan.rounds[0].pattern == GRADCOMP_CODED)
		for (uint64_t i = 0; i < n; i++)
			l->cost.x[i] -= u[i];
	l->relative_error = distance(l->cost.x, u, n);
	return st;
}
