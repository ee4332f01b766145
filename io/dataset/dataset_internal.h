/* Inside of gradcomp_dataset: what the files of this folder share. doc/dev/dataset.md has
 * the design.
 *
 * The ranks of a node have one memory, made by the first of them and passed to the
 * others: a header, a slot for every sample the node owns, an area for each rank, and the
 * arena with the values. Forked children inherit it. It is changed by atomic operations only,
 * because a process may die between any two of them. */
#ifndef IO_DATASET_DATASET_INTERNAL_H
#define IO_DATASET_DATASET_INTERNAL_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>

#include "base/error.h"
#include "gradcomp/dataset.h"
#include "gradcomp/gradcomp.h"
#include "io/dataset/node/owners.h"
#include "job/job.h"

/* Processes wait on words of 32 bits: a state, and the process that owns it, as its index in the
 * table of processes and how often that entry had been reused. */
#define WORD_STATE 0xfu
#define WORD_PROCESS(w) ((w) >> 4 & 0xfffu)
#define WORD_GENERATION(w) ((w) >> 16)
#define PROCESSES 4096u    /* processes of a node that use one dataset at a time */
#define WAIT_NS 100000000u /* after which a waiting process checks whether to go on */

typedef struct process {
	atomic_uint_fast64_t token; /* tells the process that has the entry from a later one */
	atomic_uint generation;
} process;

/* The node's processes share the structures below. */

enum { SLOT_EMPTY = 0, SLOT_FILLING, SLOT_READY, SLOT_SPILLED, SLOT_UNKEPT, SLOT_DAMAGED };

/* A sample this node owns. While it is EMPTY or FILLING, `offset` is 0 or space in the
 * arena for `bytes` that a failed attempt left. UNKEPT: there was no memory for it. */
typedef struct slot {
	atomic_uint word;
	atomic_uint version;         /* its value's: compared before and after the other fields are read */
	atomic_uint_fast64_t offset; /* in the shared memory, or in the spill file */
	atomic_uint_fast64_t bytes;
	atomic_uint_fast64_t sum;
} slot;

typedef struct counters {
	atomic_uint_fast64_t local, remote, loaded, spilled, remote_bytes, damaged, unkept, wait_ns, load_ns;
} counters;

/* The first failure of the job that a rank has seen since it is in it, or in what was left of it the last
 * time: for its threads, and for forked children, which have no job. */
typedef struct failure {
	atomic_uint state; /* 0: none, 1: being written, 2: written */
	gradcomp_error error;
} failure;

/* Keeps what a call of load() takes: a mean of which late ones are the most. Wrong by some when processes note at
 * once. */
typedef struct load_cost {
	atomic_uint_fast64_t ns, bytes; /* 0: none has been noted */
} load_cost;

/* A rank of this node. */
typedef struct rank_area {
	_Alignas(64) atomic_uint rank; /* the word of the rank's own process */
	counters counts;
	load_cost first, again;        /* into this node's memory, and beside it: memory that is new takes a while */
	atomic_uint_fast64_t division; /* division_of() what it is now */
	failure failed;
} rank_area;

/* NOLINTNEXTLINE(clang-analyzer-optin.performance.Padding): what all write has lines of its own */
typedef struct shared_head {
	uint64_t magic;
	uint64_t bytes; /* length of all of it */
	uint64_t nslots;
	uint64_t slots, lost, areas, fetch, tickets, rx_buffer, arena; /* where the parts begin */
	/* for values: the receive buffer's, in equal parts for the ranks, and the arena's */
	uint64_t memory;
	uint64_t rx_buffer_bytes; /* one rank's */
	uint64_t arena_limit;
	uint32_t ntickets; /* one rank's; 0: all samples are this node's */
	_Alignas(64) atomic_uint_fast64_t arena_used;
	_Alignas(64) uint64_t spill_limit;
	atomic_uint_fast64_t spill_used;
	process processes[PROCESSES];
} shared_head;

#define HUGE_PAGE ((uint64_t)2 << 20) /* a page of the shared memory, where the kernel has them */

typedef struct prefetcher prefetcher;
typedef struct service service;
struct ticket;
struct fetch_area;
struct channel;

struct gradcomp_dataset {
	gradcomp_group *group;
	int rank, nranks, nnodes, node, local, nlocal;
	int32_t *node_of, *local_of; /* every rank's node, and its local rank there */
	/* When ranks are lost, the above becomes that of those that are left. Nodes keep their numbers, and a lost
	 * one has no rank. */
	bool endures; /* it may outlive ranks */
	int *began;   /* every rank's number when the job began */
	int place;    /* number of this rank's parts in the shared memory: its local rank at first */
	job_object object;
	gradcomp_dataset_options o; /* `reload`: what the setting makes of it */
	char *spill;
	owners owners;
	uint64_t nslots; /* samples this node owned at first, or a few more */

	shared_head *head;
	uint64_t mapped; /* bytes from there on */
	slot *slots;
	rank_area *area; /* this rank's; a forked child's is its parent's */
	int fd, spill_fd;
	atomic_uint forks; /* process_forks() of the process that `self` belongs to */
	atomic_uint self;  /* this process's word without a state; 0: not in the table */
	bool child;
	atomic_bool stopped;
	atomic_uint users; /* views on loan, and 1 until it is freed */
	prefetcher *prefetcher;

	struct channel *channel; /* the service's; NULL: the job has one rank */
	service *service;
	int wake_fd;
	struct fetch_area *fetch; /* this rank's, as is */
	struct ticket *tickets;   /* its table; NULL on one node */
};

static inline void owner_of(const gradcomp_dataset *ds, uint64_t index, sample_owner *out)
{
	owners_find(&ds->owners, index, out);
}

/* Which positions of an epoch's order are this rank's: p * nranks + rank. A word, since both change together. */
static inline uint64_t division_of(int rank, int nranks)
{
	return (uint64_t)nranks << 32 | (uint32_t)rank;
}
static inline uint64_t division_nranks(uint64_t division)
{
	return division >> 32;
}
static inline uint64_t division_rank(uint64_t division)
{
	return division & UINT32_MAX;
}
/* Returns the first position of the rank at or behind a place of the order. */
static inline uint64_t division_position(uint64_t division, uint64_t place)
{
	uint64_t rank = division_rank(division), n = division_nranks(division);
	return place <= rank ? 0 : (place - rank + n - 1) / n;
}

/* survive.c */

static inline gradcomp_dataset *dataset_of(job_object *o)
{
	return (gradcomp_dataset *)(void *)((char *)o - offsetof(gradcomp_dataset, object));
}
/* The job calls these for a job_object that is a dataset's. */
void dataset_detach(job_object *o);
gradcomp_status dataset_attach(job_object *o, gradcomp_error *err);

/* process.c */

/* Takes an entry in the table for this process, and frees it. */
gradcomp_status process_register(gradcomp_dataset *ds, gradcomp_error *err);
void process_unregister(gradcomp_dataset *ds);
/* Comes before anything else in a call: a process forked since is registered, and a job that has failed fails the
 * call, unless process_lost(). */
gradcomp_status process_enter(gradcomp_dataset *ds, gradcomp_error *err);
/* Returns how many forks this process is away from the first. */
unsigned process_forks(void);
/* Returns true in a process forked off the one that made the dataset. */
bool process_is_child(const gradcomp_dataset *ds);
/* Returns true when the process that left this word is still there. */
bool process_alive(const gradcomp_dataset *ds, uint32_t word);

/* Sleeps while *word is `seen`, at most WAIT_NS. Fails when there is nothing to wait for
 * any more: the job has failed, or the rank that this process was forked from has ended. */
gradcomp_status process_wait(gradcomp_dataset *ds, atomic_uint *word, uint32_t seen, gradcomp_error *err);
/* Does the same, for a shorter time. */
gradcomp_status process_wait_ns(gradcomp_dataset *ds, atomic_uint *word, uint32_t seen, uint64_t ns,
                                gradcomp_error *err);
void process_wake(atomic_uint *word);
/* Notes the failure for the rank and its children; the first one is kept. */
void process_failed(gradcomp_dataset *ds, const gradcomp_error *err);
/* There is no failure any more. */
void process_mended(gradcomp_dataset *ds);
/* A rank is lost, and this dataset outlives it: until the job has shrunk nothing comes from other nodes, and
 * process_wait() returns GRADCOMP_ERR_PEER_LOST. */
bool process_lost(const gradcomp_dataset *ds);
/* Returns true when a status, of process_wait() say, is the loss that the dataset outlives: process_lost() may have
 * changed since. */
static inline bool process_outlives(const gradcomp_dataset *ds, gradcomp_status st)
{
	return ds->endures && st == GRADCOMP_ERR_PEER_LOST;
}

/* shm_share.c, mem_limit.c */

typedef struct shm_share_name {
	char text[48]; /* names the socket that the first rank of a node opens */
} shm_share_name;

/* The first rank: makes the memory, and the socket at which the others get it. */
gradcomp_status shm_share_create(gradcomp_dataset *ds, shm_share_name *name, int *listener, gradcomp_error *err);
/* The first rank sends the memory to the others; they connect to its socket. */
gradcomp_status shm_share_serve(gradcomp_dataset *ds, const shm_share_name *name, int listener, double seconds,
                                gradcomp_error *err);
gradcomp_status shm_share_attach(gradcomp_dataset *ds, const shm_share_name *name, double seconds, gradcomp_error *err);
void shm_share_detach(gradcomp_dataset *ds);

/* Bytes that this process may still use: of the machine, and of its control groups. `root`
 * is "" but for tests; *what names the tightest limit. */
uint64_t mem_limit_available(const char *root, const char **what);
/* Computes the bytes of values that a node keeps, by option or setting. */
gradcomp_status mem_limit_dataset(const gradcomp_dataset *ds, uint64_t *bytes, gradcomp_error *err);

/* slots.c, load.c, spill.c */

/* Gets the value of a sample that the node owns: from memory, from the spill file, or loaded now. Without a view it
 * is only loaded. */
gradcomp_status slot_obtain(gradcomp_dataset *ds, uint64_t index, uint64_t number, gradcomp_value_view *view,
                            gradcomp_error *err);

/* A value in the arena, or in memory of this process alone. */
typedef struct value {
	void *base; /* the memory to free; NULL: it is in the arena */
	void *data;
	uint64_t bytes;
	uint64_t offset; /* in the shared memory; 0: it is not there */
} value;

/* The fields of a slot, read at one time. */
typedef struct slot_value {
	uint32_t word;
	uint64_t offset, bytes, sum;
} slot_value;

/* Returns the slot's state, and its fields. */
unsigned slot_look(slot *s, slot_value *out);
/* Takes a slot to fill it: one whose word was that of no process, or of one that has ended. On
 * success it is to be followed by slot_keep() or slot_abandon(). */
bool slot_claim(gradcomp_dataset *ds, slot *s, uint32_t word);
void slot_keep(gradcomp_dataset *ds, uint64_t index, slot *s, const value *v);
void slot_abandon(slot *s);
/* There is no memory for it: it is loaded anew each time. */
void slot_refuse(slot *s);
/* Called when another node received a value that does not match its checksum: checks it here too. */
void slot_verify(gradcomp_dataset *ds, uint64_t index, slot *s);
/* Space in the arena for a slot this process fills; 0: there is none. */
uint64_t load_arena_alloc(gradcomp_dataset *ds, slot *s, uint64_t bytes);

/* Calls load(). `alloc` may give space in the shared memory, or NULL; it may be NULL itself. */
gradcomp_status load_value_at(gradcomp_dataset *ds, uint64_t index, void *(*alloc)(void *ctx, uint64_t bytes),
                              void *ctx, value *out, gradcomp_error *err);
/* How long load() is likely to take for a value; bytes is 0: not known. */
uint64_t load_ns_expected(const gradcomp_dataset *ds, uint64_t bytes);
#define VALUE_MOST ((uint64_t)1 << 46) /* bytes */
/* Returns the memory that a value takes: the next one is aligned too. */
static inline uint64_t value_rounded(uint64_t bytes)
{
	return bytes ? (bytes + 63) & ~(uint64_t)63 : 64;
}
bool load_value_alloc(value *v, uint64_t bytes);
/* Moves the value into the view. */
void load_value_lend(gradcomp_dataset *ds, value *v, uint64_t index, uint32_t source, gradcomp_value_view *view);

/* Opens a file without a name below `spill`. */
gradcomp_status spill_open(gradcomp_dataset *ds, gradcomp_error *err);
/* False: there is no space for it. */
bool spill_write(gradcomp_dataset *ds, const void *data, uint64_t bytes, uint64_t *offset);
bool spill_read(gradcomp_dataset *ds, uint64_t offset, void *data, uint64_t bytes);

/* Serves the other nodes from now on, and notices when the job fails. */
gradcomp_status service_start(gradcomp_dataset *ds, gradcomp_error *err);
/* Sends no more requests, and returns when all of this rank's have been answered. */
gradcomp_status service_drain(gradcomp_dataset *ds, gradcomp_error *err);
/* Stops loading for other nodes. */
void service_halt(gradcomp_dataset *ds);
/* Ends the thread: nothing is served any more. When all ranks have done so, its connections are
 * closed. */
void service_stop(gradcomp_dataset *ds);
/* After a failure: ends the thread, and closes its connections. What was under way has not been. Does not wait for
 * load(). Then, with a new channel, serves the ranks that are left. */
void service_detach(gradcomp_dataset *ds);
gradcomp_status service_attach(gradcomp_dataset *ds, gradcomp_error *err);
void service_free(gradcomp_dataset *ds);

/* prefetch.c */

/* Starts at position 0 of epoch 0. */
gradcomp_status prefetch_start(gradcomp_dataset *ds, gradcomp_error *err);
/* Where next() is: all places before *place of the order of *epoch have been handed out on this rank. Any thread. */
void prefetch_reached(prefetcher *p, uint64_t *epoch, uint64_t *place);
/* The rank's division has changed: the next call of next() goes on at `place` of the epoch that it is in. Any
 * thread. */
void prefetch_divide(prefetcher *p, uint64_t place);
/* The threads end: none of them is in load() any more. next() may still be at work. */
void prefetch_halt(prefetcher *p);
/* Frees it too. NULL is fine. */
void prefetch_stop(prefetcher *p);
/* Begins a get() or next(): an empty view, and process_enter(). */
gradcomp_status view_value_check(gradcomp_dataset *ds, gradcomp_value_view *view, gradcomp_error *err);
/* Lends sample `index`, whoever owns it; flags as for a ticket. */
gradcomp_status view_value_obtain(gradcomp_dataset *ds, uint64_t index, unsigned flags, gradcomp_value_view *view,
                                  gradcomp_error *err);
/* The last of those who use the dataset frees what is left of it. */
void dataset_unuse(gradcomp_dataset *ds);

uint64_t process_clock_ns(void);

static inline void count(atomic_uint_fast64_t *counter, uint64_t n)
{
	atomic_fetch_add_explicit(counter, n, memory_order_relaxed);
}

#endif
