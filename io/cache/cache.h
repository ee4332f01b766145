/* The managed side of a cache area: leases that keep copies from eviction, sizes,
 * budgets and room. `area` is a descriptor from stage_area_open(); what is below
 * it is reached by name, without following links. doc/staging.md has the layout
 * and the argument why nothing leased is ever evicted. Any thread. */
#ifndef CACHE_H
#define CACHE_H

#include "staging.h"

/* ---- what the stager calls ------------------------------------------------- */

/* Keeps area/KEY from eviction as long as process `pid` lives, whether there is
 * such an entry yet or not. To be taken BEFORE stage_published() looks: when the
 * copy is there after that it stays. `holder` is for people ("job 12.0"), may be
 * NULL. pid 0: nothing is done. INVALID: no such process. Taking the same lease
 * again is fine. */
gradcomp_status cache_lease(int area, const char *key, int64_t pid, const char *holder, gradcomp_error *err);

/* Before copying, with KEY.lock held: `bytes` on disk and `inodes` are still to come.
 * Evicts unfinished copies of dead producers, then what was used least recently
 * and is neither leased nor pinned, until the copy fits the budget, the quota and
 * the free space. IO: it does not; the text names what is needed, what is
 * available and what could not be evicted. */
gradcomp_status cache_make_room(stage_run *run, int area, const char *key, uint64_t bytes, uint64_t inodes,
                                gradcomp_error *err);

/* ---- processes (process.c) ------------------------------------------------- */

#define CACHE_BOOT_BYTES 40

/* In clock ticks since boot; with the boot's id it tells a process from a later
 * one of the same number. 0: there is none, or it is hidden. */
uint64_t cache_process_start(int64_t pid);
/* Of this boot; "-" when the kernel does not say. */
const char *cache_boot(char out[CACHE_BOOT_BYTES]);
/* Tells the name space that process numbers of this process belong to; 0: unknown. */
uint64_t cache_pid_space(void);

/* ---- leases (lease.c, gate.c) ------------------------------------------------ */

#define CACHE_HOLDER_BYTES 128

typedef struct cache_lease_info {
	char name[64]; /* of the file in KEY.lease */
	char holder[CACHE_HOLDER_BYTES];
	int64_t pid;  /* 0: of a job or a pin */
	int64_t job;  /* 0: of a process or a pin */
	uint64_t start, space;
	char boot[CACHE_BOOT_BYTES];
	bool pin;
} cache_lease_info;

/* False when the file is gone or is no lease. */
bool cache_lease_read(int dir, const char *name, cache_lease_info *out);
/* A lease ends with its process, a job's with the boot; what cannot be judged
 * from here (another pid name space) holds. */
bool cache_lease_alive(const cache_lease_info *l);
/* Writes the lease as KEY.lease/NAME: whole or not at all. */
gradcomp_status cache_lease_write(int area, const char *key, const cache_lease_info *l, gradcomp_error *err);

/* KEY.lease is a directory and the gate of the key: who leases holds flock(2) on it
 * shared while the file appears, who evicts exclusively while he looks and renames.
 * -1 and errno; EWOULDBLOCK when `exclusive` and somebody is at it. */
int cache_gate_enter(int area, const char *key, bool exclusive);
/* Removes the directory when it is empty and was entered exclusively. */
void cache_gate_leave(int area, const char *key, int gate, bool exclusive);

#endif
