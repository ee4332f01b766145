/* What the parts of gradcomp records share. */
#ifndef TOOLS_RECORDS_H
#define TOOLS_RECORDS_H

#include "tools/commands.h"
#include "gradcomp/samples.h"

typedef struct sample_part {
	const char *name;
	void *data;
	uint64_t bytes, room;
} sample_part;

/* A sample in memory, which the next one is read into. */
typedef struct sample {
	gradcomp_sample_info info;
	sample_part *parts;
	uint32_t room;
} sample;

gradcomp_status sample_read(const gradcomp_samples *s, uint64_t index, sample *out, gradcomp_error *err);
void sample_free(sample *s);

/* Reads all samples on `workers` threads and calls each() for them in their order on
 * this one, until one returns a failure, which is returned. */
gradcomp_status samples_each(const gradcomp_samples *s, uint32_t workers,
                             gradcomp_status (*each)(void *ctx, uint64_t index, const sample *sample,
                                                     gradcomp_error *err),
                             void *ctx, gradcomp_error *err);

int records_pack(int argc, char **argv);
int records_verify(int argc, char **argv);

/* What all of them take of the dataset: --format and --suffixes. */
typedef struct dataset_words {
	const char *format, *suffixes, *workers;
} dataset_words;
/* -1, or the exit status after a message. Opens `path` as the words say. */
int open_dataset(const char *usage, const char *path, const dataset_words *w, gradcomp_samples **out,
                 uint32_t *workers);
const char *format_name(gradcomp_sample_format format);

#endif
