/* A file that appears under its name when it is complete and on the disk, or never. */
#ifndef IO_FORMAT_WHOLE_FILE_H
#define IO_FORMAT_WHOLE_FILE_H

#include <stddef.h>
#include <stdint.h>

#include "base/error.h"

typedef struct whole_file {
	char *path, *temp;
	int fd;
	uint64_t at; /* bytes so far, those in the buffer too */
	size_t held;
	unsigned char *buffer;
} whole_file;

/* Makes PATH.RANDOM.tmp; path must be a file or nothing. */
gradcomp_status whole_begin(whole_file *f, const char *path, gradcomp_error *err);
/* -1 and errno: see whole_failed(). */
int whole_put(whole_file *f, const void *data, size_t n);
/* To the disk and under its name. */
gradcomp_status whole_publish(whole_file *f, gradcomp_error *err);
/* errno as a failure, which for a full disk says how full. */
gradcomp_status whole_failed(whole_file *f, gradcomp_error *err);
/* Frees *f and removes what has not been published. */
void whole_end(whole_file *f);

#endif
