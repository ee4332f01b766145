/* A file of the job's that appears when it is complete (newfile.h). */
#ifndef BASE_OUTFILE_H
#define BASE_OUTFILE_H

#include "gradcomp/abi.h"

#include <stdio.h>

typedef struct outfile outfile;

/* `path` may hold %j (job), %s (step). `what` it is, for messages: a constant. Disk space of
 * so many bytes is taken now, so that a full disk is an error before the training and not after
 * it. The file does not appear yet. */
gradcomp_status outfile_open(const char *what, const char *path, size_t room, outfile **out, gradcomp_error *err);
FILE *outfile_stream(const outfile *f);
const char *outfile_path(const outfile *f);
/* Publishes what was written; frees the file either way. */
gradcomp_status outfile_close(outfile *f, gradcomp_error *err);
/* Frees without a trace. NULL is fine. */
void outfile_abandon(outfile *f);

#endif
