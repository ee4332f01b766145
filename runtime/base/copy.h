/* Copies past the caches. Any thread. */
#ifndef BASE_COPY_H
#define BASE_COPY_H

#include <stddef.h>

/* memcpy() for what nobody reads soon: the destination's lines are not read from memory before they
 * are written, and do not displace others from the caches. Stores of the caller that follow become
 * visible to other threads after it, as they do after memcpy(). */
void copy_nontemporal(void *dst, const void *src, size_t bytes);

#endif
