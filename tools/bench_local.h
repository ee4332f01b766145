/* One compressor on one rank, without links: the local work of its steps, timed. */
#ifndef TOOLS_BENCH_LOCAL_H
#define TOOLS_BENCH_LOCAL_H

#include "gradcomp/plugin.h"
#include "gradcomp/compressor.h"

enum { LOCAL_PARTS = 16 };

typedef struct local {
	const struct gradcomp_compressor_v1 *plugin;
	gradcomp_spec *spec;
	gradcomp_host host;
	uint64_t dims[2];
	gradcomp_tensor tensor;
	gradcomp_layout layout;
	gradcomp_bucket bucket;
	void *instance;
	float *x, *error, **state;
	void *scratch, *payload;
	uint64_t scratch_bytes, payload_bytes; /* room there */
	uint64_t step;
	int parts; /* payloads that a gathered round decodes */
} local;

/* Seconds of one step, and what came of it. */
typedef struct local_times {
	double encode, decode;
	uint64_t bytes;        /* payloads of all rounds */
	double relative_error; /* |x after - x before| / |x before|, of one rank alone */
} local_times;

/* `path` is the plugin's file, `spec` NAME[:PARAMETERS]; the gradient is one matrix of rows x columns.
 * A gathered round decodes this rank's payload `parts` times, as if they came from as many ranks. */
gradcomp_status local_open(local *l, const char *path, const char *spec, uint64_t rows, uint64_t columns, int parts,
                           gradcomp_error *err);
void local_close(local *l);
/* Gives a plugin what it gets from a host without a job. */
void local_host(gradcomp_host *host);
/* A step on u: encode and decode of every round. For a CODED round encode is code()
 * and the error it leaves, decode is code_decode_add(), in the pieces a ring has. */
gradcomp_status local_step(local *l, const float *u, local_times *times, gradcomp_error *err);

#endif
