/* manage.h: the copies of staged datasets in a user's cache on this node:
 * listing and verifying them, keeping them, and freeing space.
 *
 *     static int show(void *ctx, const gradcomp_cache_entry *e)
 *     {
 *             printf("%.12s %s\n", e->key, e->source);
 *             return 0;
 *     }
 *     gradcomp_cache_each(NULL, show, NULL, &err);
 *
 * A copy stays as long as anybody holds a lease on it: a process (until it ends), a
 * job (until the lease is removed, or the node boots), or a pin (until unpinned).
 * Other copies are evicted when space is needed, the least recently used first.
 *
 * Threads. All functions may be called on any thread, also while datasets are
 * staged. Texts and structures handed to a callback last for the call; it must
 * not call functions of this header for the same cache.
 */
#ifndef IO_CACHE_MANAGE_H
#define IO_CACHE_MANAGE_H

#include "gradcomp/abi.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Report what would be done, and change nothing. */
#define GRADCOMP_CACHE_DRY_RUN (1u << 0)
/* Evict pinned copies too. A leased copy is never evicted. */
#define GRADCOMP_CACHE_FORCE (1u << 1)
/* The area that all users of the node share instead of the user's own. Everybody
 * may list and verify it; everything else is for root and stage.shared_user. */
#define GRADCOMP_CACHE_SHARED (1u << 2)

typedef struct gradcomp_cache_options {
	uint32_t struct_size;
	uint32_t flags;
	const char *cache_dir; /* absolute; NULL: setting stage.cache_dir */
	/* Non-zero stops the call with GRADCOMP_ERR_STATE; called between files. May be NULL. */
	int (*stop)(void *ctx);
	void *ctx;
	/* gc: the leases of all other jobs go too. NULL: it is not known which jobs there are. */
	const int64_t *live_jobs;
	size_t nlive_jobs;
	/* when they were listed, ns since 1970: a lease that a job has taken since stays. 0: none has */
	int64_t live_ns;
} gradcomp_cache_options;

typedef enum gradcomp_cache_kind {
	GRADCOMP_CACHE_PUBLISHED = 0,  /* a whole copy */
	GRADCOMP_CACHE_UNFINISHED = 1, /* being made, or left by a process that died, to be resumed */
	GRADCOMP_CACHE_EVICTED = 2,    /* being removed, or left by a process that died removing it */
	GRADCOMP_CACHE_FOREIGN = 3     /* not made by gradcomp, and left alone */
} gradcomp_cache_kind;

/* Elements of an array: never grows. */
typedef struct gradcomp_cache_lease {
	const char *holder; /* "job 12.0", printable; "pin" of a pin */
	int64_t pid, job;   /* 0: not of a process, not of a job */
	uint32_t alive;     /* 0: its process has ended, or the node has booted since */
	uint32_t reserved0;
} gradcomp_cache_lease;

typedef struct gradcomp_cache_entry {
	uint32_t struct_size;
	gradcomp_cache_kind kind;
	const char *name;           /* in the area */
	const char *key;            /* 64 hex digits; "" of a foreign entry */
	const char *source;         /* NULL: not known */
	const char *path;           /* PUBLISHED: what gradcomp_stage() hands out; else the entry's own */
	uint64_t files, bytes;      /* the dataset's; 0 when not known */
	uint64_t allocated, inodes; /* on the disk */
	int64_t last_use;           /* seconds since 1970; 0: not known */
	uint32_t pinned;
	uint32_t producing; /* a process is making it, or making it anew */
	uint32_t nleases;   /* pins and dead ones included */
	uint32_t nlive;     /* those of them that are alive */
	const gradcomp_cache_lease *leases;
} gradcomp_cache_entry;

/* Calls each() for everything in the area, what would be evicted first coming first;
 * non-zero ends it. No area yet is an empty one. `options` may be NULL here and
 * below. */
GRADCOMP_EXPORT gradcomp_status gradcomp_cache_each(const gradcomp_cache_options *options,
                                                    int (*each)(void *ctx, const gradcomp_cache_entry *e), void *ctx,
                                                    gradcomp_error *err);

typedef struct gradcomp_cache_usage {
	uint32_t struct_size;
	uint32_t entries;           /* published copies */
	uint64_t bytes;             /* all entries, as allocated */
	uint64_t evictable;         /* the part of it that is neither leased nor pinned */
	uint64_t budget, high, low; /* limits by the settings, in bytes */
	uint64_t quota;             /* 0: none */
	uint64_t disk_size, disk_free;
	char path[4096]; /* the area's */
} gradcomp_cache_usage;

/* With no area yet the disk's numbers are those of the filesystem where it would be. */
GRADCOMP_EXPORT gradcomp_status gradcomp_cache_get_usage(const gradcomp_cache_options *options,
                                                         gradcomp_cache_usage *usage, gradcomp_error *err);

/* Finds the key of the published copy that `name` means: a key, the beginning of one (4 digits at least), or a
 * source. Of several copies of a source the last used. NOTFOUND; INVALID when it is the beginning of several. */
GRADCOMP_EXPORT gradcomp_status gradcomp_cache_find(const gradcomp_cache_options *options, const char *name,
                                                    char key[65], gradcomp_error *err);

/* Reads every byte of a copy and compares it with the checksums taken from the source.
 * damaged() gets each file that is wrong, printable, and in what way. MISMATCH when
 * there was one. NULL for `key`: all published copies. */
GRADCOMP_EXPORT gradcomp_status gradcomp_cache_verify(const gradcomp_cache_options *options, const char *key,
                                                      void (*damaged)(void *ctx, const char *key, const char *file,
                                                                      const char *what),
                                                      void *ctx, gradcomp_error *err);

/* Called for all that was removed, or with DRY_RUN would be: "lease of job 12.0", "unfinished copy"; `name` is that
 * of the entry, `bytes` what it took. */
typedef void gradcomp_cache_removed(void *ctx, const char *what, const char *name, uint64_t bytes);

/* Removes leases of processes that have ended, copies that nobody has resumed for a day,
 * leftovers of evictions, and when the area is above the high mark, what was used least recently. With a job:
 * the leases of that job and nothing else. Doing it twice is fine. */
GRADCOMP_EXPORT gradcomp_status gradcomp_cache_gc(const gradcomp_cache_options *options, int64_t job,
                                                  gradcomp_cache_removed *removed, void *ctx, gradcomp_error *err);

/* Keeps a published copy until it is unpinned. Doing it twice is fine. */
GRADCOMP_EXPORT gradcomp_status gradcomp_cache_pin(const gradcomp_cache_options *options, const char *key,
                                                   gradcomp_error *err);
GRADCOMP_EXPORT gradcomp_status gradcomp_cache_unpin(const gradcomp_cache_options *options, const char *key,
                                                     gradcomp_error *err);

/* Writes a lease of a job on a published copy, for a prolog; gradcomp_cache_gc() with the job removes it. NOTFOUND
 * when there is no such copy (any more). */
GRADCOMP_EXPORT gradcomp_status gradcomp_cache_lease_job(const gradcomp_cache_options *options, const char *key,
                                                         int64_t job, const char *holder, gradcomp_error *err);

/* Removes a published copy. STATE, with the reason, when it is leased, pinned (without FORCE)
 * or being made anew. */
GRADCOMP_EXPORT gradcomp_status gradcomp_cache_evict(const gradcomp_cache_options *options, const char *key,
                                                     gradcomp_cache_removed *removed, void *ctx, gradcomp_error *err);
/* Removes everything that gradcomp has made and that is not in use; *kept counts what is. */
GRADCOMP_EXPORT gradcomp_status gradcomp_cache_clear(const gradcomp_cache_options *options,
                                                     gradcomp_cache_removed *removed, void *ctx, uint32_t *kept,
                                                     gradcomp_error *err);

#ifdef __cplusplus
}
#endif
#endif
