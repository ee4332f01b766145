/* Reading and writing at an offset of a file until it is done, interrupted or not. */
#ifndef BASE_FILEIO_H
#define BASE_FILEIO_H

#include <stdint.h>

/* Bytes read, fewer than n at the file's end only; -1 and errno. */
int64_t fileio_read(int fd, void *buf, uint64_t n, uint64_t at);
/* 0, or -1 and errno. */
int fileio_write(int fd, const void *data, uint64_t n, uint64_t at);

#endif
