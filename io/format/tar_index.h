/* Where the samples of a tar shard are: made by reading the headers alone. */
#ifndef IO_FORMAT_TAR_INDEX_H
#define IO_FORMAT_TAR_INDEX_H

#include <stdint.h>

#include "base/error.h"

/* A sample has at most so many; more is INVALID. */
#define TAR_PARTS_MAX 1024u

typedef struct tar_part {
	uint64_t at, bytes; /* where the data is in the shard, and its length */
	uint64_t name;      /* offset in the text */
} tar_part;

typedef struct tar_sample {
	uint64_t key; /* offset in the text */
	uint64_t first;
	uint32_t nparts;
	int32_t label;
} tar_sample;

typedef struct tar_index {
	tar_sample *samples;
	tar_part *parts;
	char *text;
	uint64_t nsamples, nparts, ntext;
} tar_index;

/* `bytes` is the size of the file, `name` for messages. */
gradcomp_status tar_index_make(int fd, uint64_t bytes, const char *name, tar_index *out, gradcomp_error *err);
void tar_index_clear(tar_index *x);

#endif
