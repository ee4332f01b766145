#include "tools/bench_local.h"
#include <math.h>
#include <string.h>
#include "plugin/plugin_host.h"

void local_host(gradcomp_host *host)
{
	static const log_sink warnings = {GRADCOMP_LOG_WARN, -1};
	plugin_host(host, &warnings);
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
