/* Goes over a dataset twice, as a trainer does: the first time from files, the second
 * from the memory of the job's nodes.
 *
 *     cc -o samples samples.c $(pkg-config --cflags --libs gradcomp)
 *     srun --mpi=pmix -N4 --gradcomp-stage=/nfs/flowers ./samples
 *
 * The path of the staged copy is in GRADCOMP_DATA: a folder or tar shards. Alone, `./samples PATH` is the same
 * program on one rank. Instead of gradcomp_samples_load() a program may have a function of its own, which reads a
 * sample with gradcomp_samples_read(), decodes it and gives back what it trains on. */
#include <gradcomp/dataset.h>
#include <gradcomp/gradcomp.h>
#include <gradcomp/samples.h>
#include <stdio.h>
#include <stdlib.h>

static gradcomp_error err;

static void check(gradcomp_status status)
{
	if (!status)
		return;
	fprintf(stderr, "samples: %s\n", err.text);
	exit(1);
}

static void epoch(gradcomp_dataset *ds, int rank, unsigned number)
{
	unsigned long long samples = 0, bytes = 0, labels = 0, loaded = 0;
	gradcomp_value_view v = {.struct_size = sizeof v};
	check(gradcomp_dataset_begin(ds, number, 0, &err));
	for (;;) {
		gradcomp_sample_info info = {.struct_size = sizeof info};
		check(gradcomp_dataset_next(ds, &v, &err));
		if (!v.data)
			break;
		check(gradcomp_value_sample(v.data, v.bytes, &info, &err));
		samples++;
		bytes += info.bytes;
		labels += info.label > 0 ? (unsigned)info.label : 0;
		loaded += v.source == GRADCOMP_VALUE_LOADED;
		for (uint32_t i = 0; i < info.nparts; i++) {
			const char *name;
			const void *data;
			uint64_t n;
			/* Here a trainer takes the picture, by the name of its part. */
			check(gradcomp_value_part(v.data, v.bytes, i, &name, &data, &n, &err));
		}
		gradcomp_dataset_release(ds, &v);
	}
	printf("rank %d, epoch %u: %llu samples, %llu bytes, sum of labels %llu, %llu read from files\n", rank, number,
	       samples, bytes, labels, loaded);
}

int main(int argc, char **argv)
{
	const char *path = argc > 1 ? argv[1] : getenv("GRADCOMP_DATA");
	gradcomp_samples *files;
	gradcomp_job *job;
	gradcomp_dataset *ds;
	if (!path) {
		fprintf(stderr, "usage: samples PATH, or under srun --gradcomp-stage\n");
		return 2;
	}
	check(gradcomp_samples_open(path, NULL, &files, &err));
	check(gradcomp_job_create(NULL, &job, &err));
	gradcomp_dataset_options o = {.struct_size = sizeof o,
	                              .workers = 2,
	                              .count = gradcomp_samples_count(files),
	                              .seed = 1,
	                              .shuffle = 1,
	                              .load = gradcomp_samples_load,
	                              .ctx = files};
	check(gradcomp_dataset_create(gradcomp_job_world(job), &o, &ds, &err));
	for (unsigned number = 0; number < 2; number++)
		epoch(ds, gradcomp_job_rank(job), number);
	check(gradcomp_dataset_free(ds, &err));
	check(gradcomp_job_free(job, &err));
	gradcomp_samples_close(files);
	return 0;
}
