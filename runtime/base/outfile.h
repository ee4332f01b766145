/* Files that appear when they are complete: written without a name, or under one that nobody
 * sees, then renamed, so that a reader never sees half of one and a process that is killed
 * leaves what was there. */
#ifndef BASE_OUTFILE_H
#define BASE_OUTFILE_H

#include "gradcomp/abi.h"

#include <stdio.h>

typedef struct outfile outfile;

/* Begins a file; `what` names it in messages and is a constant. Disk space of so many bytes is taken now, so that a
 * full disk is an error before the work and not after it; 0: none. An error also where something of that name is no
 * file. */
gradcomp_status outfile_open(const char *what, const char *path, size_t room, outfile **out, gradcomp_error *err);
/* The path is one of job_path.h: it may hold %j (job), %s (step). */
gradcomp_status outfile_open_job(const char *what, const char *path, size_t room, outfile **out, gradcomp_error *err);
FILE *outfile_stream(const outfile *f);
const char *outfile_path(const outfile *f);
/* Publishes what was written; frees the file either way. */
gradcomp_status outfile_close(outfile *f, gradcomp_error *err);
/* Frees without a trace. NULL is fine. */
void outfile_abandon(outfile *f);

/* Makes a few bytes the file `name` of an open directory, with mode 0644, less the umask. 0, or -1 with errno. */
int outfile_put(int dir, const char *name, const void *data, size_t bytes);

#endif
