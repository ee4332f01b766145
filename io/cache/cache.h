/* The managed side of a cache area: leases that keep copies from eviction, sizes,
 * budgets and quotas. `area` is a descriptor from cache_user_area(); what is below
 * it is reached by name, without following links. doc/dev/staging-internals.md has the layout
 * and the argument why nothing leased is ever evicted. Any thread. */
#ifndef IO_CACHE_CACHE_H
#define IO_CACHE_CACHE_H

#include "io/manifest/manifest.h"
#include "io/cache/stage_run.h"

/* area.c, lock.c */

/* Opens the user's area of the cache, making it when `create`; a descriptor and
 * its path, or a status. NOTFOUND only without `create`. */
gradcomp_status cache_user_area(const char *cache_dir, bool create, int *fd, char path[4096], gradcomp_error *err);

/* The right to produce a key on this node; the kernel gives it back when its
 * holder dies. 1 taken, 0 another has it (*holder is its pid, or 0), -1 errno. */
int cache_lock_try(int area, const char *key, int *fd, int64_t *holder);
void cache_lock_release(int area, const char *key, int fd);

/* Removes what processes that died left of other keys: locks, leases without a copy, damaged
 * copies that were replaced, evictions that were interrupted. What they copied stays, to be
 * resumed. */
void cache_sweep(int area, const char *key);

/* copy.c, publish.c */

/* The source is not what the manifest says: STATE, and run->changed is set. */
gradcomp_status copy_source_changed(stage_run *run, const stage_entry *e, const char *how, gradcomp_error *err);
bool copy_is_same(const source_stat *st, const stage_entry *e);
/* Compares the copy with the entry's size and checksum: 1, 0, or -1 and errno (ECANCELED when the pool stops). */
int cache_check_file(stage_run *run, stage_worker *w, const stage_entry *e);
/* Reports the failure of a call that writes into the cache: errno, with what to do about no space and no quota. */
gradcomp_status cache_write_failed(stage_run *run, const char *path, gradcomp_error *err);

/* 1: area/KEY is a whole copy (with `deep`: every byte read) of what *m lists, or when
 * that is empty it is filled with the copy's own list; 0: there is none, or it is
 * damaged: *damage is not empty then. Negative: status. */
int cache_published(stage_run *run, stage_manifest *m, int area, const char *key, bool deep, char damage[508],
                    gradcomp_error *err);
/* Reads every byte of the copy dir/data. MISMATCH names a file that is wrong. */
gradcomp_status cache_verify(stage_run *run, stage_manifest *m, int dir, gradcomp_error *err);
/* Writes `temp` to the disk and makes it area/KEY, instead of a damaged one. */
gradcomp_status cache_publish(stage_run *run, const stage_manifest *m, int area, const char *key, int temp,
                              gradcomp_error *err);
/* Notes that the copy was used now. */
void cache_touch(int area, const char *key);

/* gradcomp_stage() calls the functions below. */

/* Keeps area/KEY from eviction as long as process `pid` lives, whether there is
 * such an entry yet or not. To be taken BEFORE cache_published() looks: when the
 * copy is there after that it stays. `holder` is for people ("job 12.0"), may be
 * NULL. pid 0: nothing is done. INVALID: no such process. Taking the same lease
 * again is fine. */
gradcomp_status cache_lease(int area, const char *key, int64_t pid, const char *holder, gradcomp_error *err);

/* Makes space before copying, with KEY.lock held: `bytes` on disk and `inodes` are still to come. Evicts
 * unfinished copies of dead producers, then what was used least recently and is neither leased nor pinned, until
 * the copy fits the budget, the quota and the free space. IO: it does not; the text names what is needed, what is
 * available and what could not be evicted. */
gradcomp_status cache_ensure_space(stage_run *run, int area, const char *key, uint64_t bytes, uint64_t inodes,
                                   gradcomp_error *err);

/* area.c, shared.c */

struct config;

/* CACHE/shared of the node, which belongs to `owner` or root. As cache_user_area(). */
gradcomp_status cache_shared_area(const char *cache_dir, uid_t owner, bool create, int *fd, char path[4096],
                                  gradcomp_error *err);
/* Looks up the uid of stage.shared_user. INSECURE when a file decides that others than root could have written. */
gradcomp_status cache_shared_owner(const struct config *c, uid_t *out, gradcomp_error *err);
/* Returns true when `source` (as resolved) is one that the site declares shared. */
bool cache_is_shared(const struct config *c, const char *source);
/* The area that the call stages into: the user's, or with GRADCOMP_STAGE_SHARED the
 * shared one, which takes its owner. As cache_user_area(). */
gradcomp_status cache_open_area(stage_run *run, bool create, int *area, gradcomp_error *err);
/* If the node has a whole copy in the shared area: leases it, replaces *area and run->where by
 * that area, and returns true. Logs what is wrong with a copy that cannot be used. */
bool cache_use_shared(stage_run *run, stage_manifest *m, const char *source, const char *key, int *area);
/* Sets modes before publishing in the shared area: everybody may read the copy and lease it, and nobody but its
 * owner write to it. */
gradcomp_status cache_open_to_all(stage_run *run, int area, const char *key, int temp, const stage_manifest *m,
                                  gradcomp_error *err);

/* lock.c */

/* For a process that waits for a lock or for area/KEY: a descriptor to close(), or -1, which
 * cache_lock_sleep() takes too. */
int cache_lock_watch(int area);
/* Sleeps until a lock was released or a copy published, at most `ms` or until a signal.
 * True: check again at once. */
bool cache_lock_sleep(int watch, int ms);

/* process.c */

#define CACHE_BOOT_BYTES 40

/* Returns when process `pid` started, in clock ticks since boot. With the boot's id it tells a process from a later
 * one with the same number. 0: there is none, or it is hidden. */
uint64_t cache_process_start(int64_t pid);
/* Returns the id of this boot; "-" when the kernel does not give it. */
const char *cache_boot(char out[CACHE_BOOT_BYTES]);
/* Returns the PID namespace of this process; 0: unknown. */
uint64_t cache_pid_space(void);
/* Returns true when the user has a process on this node, and where processes are hidden (hidepid). */
bool cache_process_of(uid_t uid);

/* lease.c */

#define CACHE_HOLDER_BYTES 128

typedef struct cache_lease_info {
	char name[64]; /* name of the file in KEY.lease */
	char holder[CACHE_HOLDER_BYTES];
	int64_t pid; /* 0: of a job or a pin */
	int64_t job; /* 0: of a process or a pin */
	uint64_t start, space;
	char boot[CACHE_BOOT_BYTES];
	bool pin;
	int64_t written_ns; /* since 1970 */
	uid_t uid;          /* the user who wrote it */
	bool foreign;       /* that user is neither root nor the owner of the copy */
} cache_lease_info;

/* A lease ends with its process, a job's with the boot. One of another PID namespace, whose
 * process cannot be seen from here, counts as alive. One of another user (foreign) also ends with
 * the last process of that user. */
bool cache_lease_alive(const cache_lease_info *l);
/* Writes the lease as KEY.lease/NAME: whole or not at all. */
gradcomp_status cache_lease_write(int area, const char *key, const cache_lease_info *l, gradcomp_error *err);

/* Calls each() for the files in KEY.lease: leases, those that have ended, and other files. `name`
 * is that of the file, `dir` KEY.lease. -1 and errno. */
int cache_lease_each(int area, const char *key,
                     void (*each)(void *ctx, int dir, const char *name, const cache_lease_info *l), void *ctx);
/* Removes leases that have ended, unless a process is leasing at this moment. */
void cache_leases_sweep(int area, const char *key);
/* Removes a lease. 0 also when there is none; -1 and errno. */
int cache_lease_drop(int area, const char *key, const char *name);

/* The lock of the leases in the directory KEY.lease: flock(2) on it, and in the shared area,
 * where others can open it, on the owner's KEY.gate. A process that leases takes it shared while it writes the
 * file; one that evicts takes it exclusively while it reads the leases and renames the copy. */
typedef struct cache_lease_lock {
	int dir;  /* KEY.lease */
	int gate; /* -1: not in the shared area */
} cache_lease_lock;

/* Takes the lock of a copy's leases: 0, or -1 and errno; EWOULDBLOCK when `exclusive` and another has it. */
int cache_lease_take(int area, const char *key, bool exclusive, cache_lease_lock *lock);
/* Makes the file KEY.gate of the shared area, for its owner: users, who cannot make it, lock it. -1 and errno. */
int cache_gate_make(int area, const char *key);
/* Removes the directory when it is empty and was locked exclusively. */
void cache_lease_release(int area, const char *key, cache_lease_lock *lock, bool exclusive);

/* entries.c */

typedef enum cache_kind {
	CACHE_PUBLISHED,  /* KEY */
	CACHE_UNFINISHED, /* KEY.tmp */
	CACHE_EVICTING,   /* KEY.gone-XXXXXXXX: evicted, being removed */
	CACHE_LOCK,       /* KEY.lock */
	CACHE_LEASES,     /* KEY.lease */
	CACHE_GATE,       /* KEY.gate, its lock in the shared area */
	CACHE_FOREIGN     /* not made by gradcomp: left alone */
} cache_kind;

/* Returns the kind that a name in an area is of, and its key ("" for a foreign one). */
cache_kind cache_name(const char *name, char key[STAGE_KEY_BYTES]);

/* size.c */

typedef struct cache_size {
	uint64_t bytes, inodes; /* allocated on disk, hard-linked files once */
} cache_size;

/* Sums up the tree. -1 and errno. */
int cache_measure(int dir, cache_size *out);
/* Reads the size of a copy from dir/size, or measures it and notes it there. */
int cache_size_of(int dir, cache_size *out);
/* Notes what the copy that is made in `dir` will take; kept in dir/size until it is published. */
int cache_reserve(int dir, const cache_size *all);
bool cache_reserved(int dir, cache_size *out);

/* entries.c */

typedef struct cache_entry {
	char *name;
	char key[STAGE_KEY_BYTES];
	cache_kind kind; /* PUBLISHED, UNFINISHED, EVICTING or FOREIGN */
	bool producing;  /* a process is making it, or making it anew */
	bool pinned;
	uint32_t live_leases;
	char holder[CACHE_HOLDER_BYTES]; /* the holder of one of these leases */
	int64_t used;                    /* when it was last staged, seconds since 1970, never in the future */
	cache_size size;                 /* size of the part that is there */
	cache_size whole;                /* size that it will have when it is finished; else equal to `size` */
} cache_entry;

typedef struct cache_entries {
	cache_entry *entry; /* in the order of cache_entry_turn() */
	size_t n, capacity;
} cache_entries;

/* Calls each() for everything in the area but locks and leases, in no order, and keeps none of
 * it: a user may have a million names there. each() may take entry->name, and set it to NULL.
 * A status of its own ends the listing. */
gradcomp_status cache_entries_each(int area,
                                   gradcomp_status (*each)(void *ctx, cache_entry *entry, gradcomp_error *err),
                                   void *ctx, gradcomp_error *err);
/* < 0 when x is to be evicted before y; foreign ones come last. */
int cache_entry_turn(const cache_entry *x, const cache_entry *y);

/* Reads all of that at once, sorted. A zeroed list is empty. */
gradcomp_status cache_entries_read(int area, cache_entries *out, gradcomp_error *err);
void cache_entries_free(cache_entries *entries);
/* One of them; its name is NULL when there is none. */
gradcomp_status cache_entry_read(int area, const char *name, cache_entry *out, gradcomp_error *err);
void cache_entry_free(cache_entry *entry);
/* Returns true when it is neither leased nor pinned nor being made. */
bool cache_evictable(const cache_entry *entry);

/* evict_entry.c */

#define CACHE_PINNED_TOO 1u /* evict a pinned copy too */
#define CACHE_LOCKED 2u     /* the caller holds KEY.lock */

/* 1: the entry was removed; 0: it is in use, *why says by what; -1: errno. */
int cache_evict(int area, const cache_entry *entry, unsigned flags, char why[CACHE_HOLDER_BYTES]);
/* Renames a directory to a name that is not there, which the caller's lock keeps free. 0, or -1 and errno: EEXIST when
 * it is. */
int cache_rename_new(int area, const char *from, const char *to);
/* Renames it to a name under which no copy is looked for, KEY.gone-XXXXXXXX. 0, or -1 and errno. */
int cache_rename_away(int area, const char *name, const char *key, char gone[STAGE_KEY_BYTES + 16]);

/* make_space.c */

typedef struct cache_budget {
	uint64_t bytes, high, low;
	uint64_t quota; /* 0: none */
} cache_budget;

/* Reads the budget from the settings, for the filesystem of the area. */
gradcomp_status cache_budget_load(int area, cache_budget *out, gradcomp_error *err);

#endif
