/* The files of `gradcomp cache` share this. */
#ifndef TOOLS_CMD_CACHE_H
#define TOOLS_CMD_CACHE_H

#include <sys/types.h>

#include "io/cache/manage.h"

#define CACHE_NAMES_MAX 64

typedef struct cache_request {
	gradcomp_cache_options options;
	const char *verb;
	const char *names[CACHE_NAMES_MAX]; /* ended by NULL */
	const char *holder;
	int64_t job; /* 0: none given */
	int json, all_users;
	const char *who; /* whose area, for headings; NULL: one's own */
} cache_request;

/* One verb on one area: prints, and returns the exit status. With json it prints one
 * object whatever happens. */
int cache_verb_list(const cache_request *r);
int cache_verb_du(const cache_request *r);
int cache_verb_verify(const cache_request *r);
int cache_verb_gc(const cache_request *r);
int cache_verb_pin(const cache_request *r);
int cache_verb_unpin(const cache_request *r);
int cache_verb_evict(const cache_request *r);
int cache_verb_clear(const cache_request *r);
int cache_verb_lease(const cache_request *r);

/* Calls run() for the area of each user that has one and for the shared one, in a child
 * that has become that user. The largest exit status. */
int cache_each_user(const cache_request *r, int (*run)(const cache_request *r));
/* Lets the shared area's owner do it when root asks, in a child. */
int cache_as_owner(const cache_request *r, int (*run)(const cache_request *r));

#endif
