/* A compressor that a SPEC names, timed on one rank, without links (cost/local_cost.h). */
#ifndef TOOLS_BENCH_LOCAL_H
#define TOOLS_BENCH_LOCAL_H

#include "cost/local_cost.h"
#include "gradcomp/plugin.h"

typedef struct local {
	gradcomp_spec *spec;
	gradcomp_host host;
	local_cost cost;
	double relative_error; /* after the last step: |x after - x before| / |x before|, of one rank alone */
} local;

/* `path` is the plugin's file, `spec` NAME[:PARAMETERS]; the gradient is one matrix of rows x columns.
 * A gathered round decodes this rank's payload `parts` times, as if they came from as many ranks. */
gradcomp_status local_open(local *l, const char *path, const char *spec, uint64_t rows, uint64_t columns, int parts,
                           gradcomp_error *err);
void local_close(local *l);
/* Gives a plugin what it gets from a host without a job. */
void local_host(gradcomp_host *host);
/* A step on u; l->cost has its times. */
gradcomp_status local_step(local *l, const float *u, gradcomp_error *err);

#endif
