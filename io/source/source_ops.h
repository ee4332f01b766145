/* A back end of source.h: calls as there, on structures of its own, which begin with these. The
 * one for NFS is in a module. */
#ifndef IO_SOURCE_SOURCE_OPS_H
#define IO_SOURCE_SOURCE_OPS_H

#include <stdatomic.h>

#include "io/source/source.h"

typedef struct source_ops source_ops;

struct source {
	const source_ops *ops;
	char *name; /* the back end's, allocated */
	char *only; /* the source is this file of the back end's root; allocated */
	bool mounted, can_follow, follow;
	atomic_uint silent_ms;
};

struct source_reader {
	source *from;
	source_wait wait;
	char *path; /* the open file's, for messages; allocated */
	bool denied;
};

struct source_ops {
	/* Frees all but name, only and path, which are source.c's to free. */
	void (*close)(source *s);
	gradcomp_status (*reader_open)(source *s, source_wait wait, source_reader **out, gradcomp_error *err);
	void (*reader_close)(source_reader *r);
	gradcomp_status (*list)(source_reader *r, const char *dir, source_each *each, void *ctx, gradcomp_error *err);
	gradcomp_status (*lookup)(source_reader *r, const char *path, source_stat *st, gradcomp_error *err);
	gradcomp_status (*readlink)(source_reader *r, const char *path, char target[4096], gradcomp_error *err);
	gradcomp_status (*file)(source_reader *r, const char *path, uint64_t ahead, source_stat *st,
	                        gradcomp_error *err);
	bool (*prefetch)(source_reader *r, const char *path, uint64_t size); /* or NULL */
	gradcomp_status (*read)(source_reader *r, void *buf, uint64_t n, uint64_t at, uint64_t *got,
	                        gradcomp_error *err);
	void (*run)(source_reader *r, uint64_t at, uint64_t size, uint64_t *data, uint64_t *hole);
	gradcomp_status (*again)(source_reader *r, source_stat *st, gradcomp_error *err);
};

/* Nanoseconds since 1970. What a filesystem or server says of times that 64 bits cannot
 * count becomes the first or last one that they can. */
static inline int64_t source_time_ns(int64_t seconds, int64_t ns)
{
	int64_t t;
	if (__builtin_mul_overflow(seconds, 1000000000, &t) || __builtin_add_overflow(t, ns, &t))
		return seconds < 0 ? -INT64_MAX : INT64_MAX;
	return t;
}

/* Opens a path of a mounted filesystem. */
gradcomp_status source_posix_open(const char *path, source **out, gradcomp_error *err);

#endif
