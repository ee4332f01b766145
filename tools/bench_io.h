/* gradcomp bench io: what its two parts share. */
#ifndef TOOLS_BENCH_IO_H
#define TOOLS_BENCH_IO_H

#include "gradcomp/dataset.h"
#include "gradcomp/gradcomp.h"
#include "gradcomp/samples.h"
#include "base/json.h"

typedef struct bench_dataset {
	gradcomp_job *job;
	gradcomp_group *world;
	gradcomp_dataset *ds;
	gradcomp_samples *samples; /* NULL: values are made up */
	uint64_t count, bytes;     /* number of the dataset's values; length of the largest */
	int64_t epochs, steps, step_ms, batch;
	uint64_t *own, nown, *others, nothers; /* samples of this node, of the others */
	uint64_t own_bytes;
	unsigned char *out; /* room for a value */
	jsonw *json;
} bench_dataset;

/* Each measures and prints its rows, rank 0 alone. 0, or -1 with *err filled. */
int bench_epochs(bench_dataset *b, gradcomp_error *err);
int bench_local_values(bench_dataset *b, gradcomp_error *err);
int bench_remote_values(bench_dataset *b, gradcomp_error *err);
int bench_steps(bench_dataset *b, gradcomp_error *err);

#endif
