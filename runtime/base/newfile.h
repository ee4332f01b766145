/* A file that appears when it is complete: written without a name, or under one that nobody
 * sees, then renamed, so that a reader never sees half of it and a process that is killed leaves
 * what was there. */
#ifndef BASE_NEWFILE_H
#define BASE_NEWFILE_H

#include <stddef.h>
#include <stdio.h>

typedef struct newfile newfile;

/* What went wrong, in words: "directory no/: No such file or directory". */
#define NEWFILE_WHY 300

/* Disk space of so many bytes is taken now, so that a full disk is an error before the work and not
 * after it; 0: none. NULL with errno and `why`; also where something of that name is no file. */
newfile *newfile_open(const char *path, size_t room, char why[NEWFILE_WHY]);
FILE *newfile_stream(const newfile *f);
const char *newfile_path(const newfile *f);
/* Publishes what was written; 0, or -1 with `why`. Frees the file either way. */
int newfile_close(newfile *f, char why[NEWFILE_WHY]);
/* Frees without a trace. NULL is fine. */
void newfile_abandon(newfile *f);

#endif
