/* Reading and writing at an offset of a file until it is done, interrupted or not; and reading lines of a length that
 * is known to be enough. */
#ifndef BASE_FILEIO_H
#define BASE_FILEIO_H

#include <stdint.h>
#include <stdio.h>

/* Returns the bytes read, fewer than n at the file's end only; -1 and errno. */
int64_t fileio_read(int fd, void *buf, uint64_t n, uint64_t at);
/* Writes all n bytes at `at`. 0, or -1 and errno. */
int fileio_write(int fd, const void *data, uint64_t n, uint64_t at);

/* The next line with its newline, which the file's last one may lack, and a final 0. Its bytes, 0 at the end of the
 * file; -1 when the line does not fit into `room` bytes, of which no more are read, or it cannot be read. */
int64_t fileio_line(FILE *f, char *line, size_t room);

#endif
