/* The functions of manage.h share this. */
#ifndef IO_CACHE_MANAGE_INTERNAL_H
#define IO_CACHE_MANAGE_INTERNAL_H

#include "io/cache/cache.h"
#include "io/cache/manage.h"

typedef struct cache_area {
	gradcomp_cache_options options;
	int fd;
	bool empty; /* there is no area yet; fd is -1 */
	char path[4096];
} cache_area;

/* `write`: the call is going to change what is there. */
gradcomp_status cache_area_begin(cache_area *a, const gradcomp_cache_options *options, bool write, gradcomp_error *err);
void cache_area_end(cache_area *a);
bool cache_area_dry(const cache_area *a);
/* Fails with STATE when the caller wants to stop. */
gradcomp_status cache_area_tick(const cache_area *a, gradcomp_error *err);

/* INVALID unless it has 64 digits. */
gradcomp_status cache_key_check(const char *key, gradcomp_error *err);
/* Fails with NOTFOUND, with the key and the area. */
gradcomp_status cache_no_copy(const cache_area *a, const char *key, gradcomp_error *err);

/* The head of a manifest says this. */
typedef struct cache_manifest_head {
	char *source; /* malloc'ed */
	uint64_t files, bytes;
} cache_manifest_head;
/* Reads dir/manifest; false when it cannot be read. */
bool cache_manifest_head_read(int dir, cache_manifest_head *out);

#endif
