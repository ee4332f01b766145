/* gradcomp/dataset.h: samples loaded once, then served from the memory
 * of the job's nodes.
 *
 *     gradcomp_dataset_options opt = { .struct_size = sizeof opt, .count = n, .load = decode, .ctx = files };
 *     gradcomp_dataset *ds;
 *     gradcomp_dataset_create(gradcomp_job_world(job), &opt, &ds, &err);
 *     for (uint64_t epoch = 0; epoch < 90; epoch++) {
 *             gradcomp_dataset_begin(ds, epoch, 0, &err);
 *             gradcomp_value_view v = { .struct_size = sizeof v };
 *             while (gradcomp_dataset_next(ds, &v, &err) == 0 && v.data) {
 *                     train_on(v.data, v.bytes);
 *                     gradcomp_dataset_release(ds, &v);
 *             }
 *     }
 *
 * A key-value store: the key is a sample's index, the value the bytes that load()
 * returned for it the first time anybody asked (Shi et al., "Towards scalable
 * distributed training of deep learning on public cloud clusters", 2020, section
 * 3.1). Every sample has an owner, the node whose memory keeps its value. The
 * owner of a sample is the node of the rank that the order of epoch 0 gives it to,
 * so that the first epoch moves nothing between nodes. Ranks of a node share one
 * memory; a value there is handed out where it stands, one of another node is
 * fetched from its owner, several at a time, over the job's authenticated links.
 *
 * Order. In epoch e, position p of rank r is sample perm(seed, e, p * nranks + r),
 * perm a permutation of 0..count-1 that depends on nothing else: the same on all
 * ranks without messages, each sample exactly once an epoch, every rank's length
 * equal or one more than another's. next() goes along it, and what comes next is
 * prepared and fetched ahead.
 *
 * A value that another node owns and has not loaded yet is loaded by that node for next().
 * For get() the calling process loads it, and the owner then keeps it. Either way it is loaded
 * once in the job, unless two nodes get() it at the same time. No process that loads a value
 * waits for another node. With `reload` a value may be loaded on other nodes too, which do not keep it.
 *
 * Memory. A node keeps at most `memory` bytes of values, an eighth of it for values of
 * other nodes while they are wanted. What does not fit goes to a file below `spill` if
 * that is set, else it is loaded anew each time it is wanted. The index takes 32 bytes a
 * sample of the node beside it.
 *
 * Forked children (PyTorch's DataLoader workers) may call get(), expect(), release(),
 * order() and length() on a dataset their parent made, as long as the parent lives. They
 * load values themselves, and the parent fetches for them.
 *
 * Checks. Each value has a checksum, taken when it was loaded and compared when it
 * has come over a network or from a spill file; one that does not match is loaded
 * again from the source, counted and reported.
 *
 * Lost ranks. With gradcomp.on_failure=shrink a dataset on the job's world outlives them. Until gradcomp_job_shrink() calls do
 * not fail: what is not in this node's memory is loaded, and not kept. Then what a lost node kept is
 * the others', which load it again, next() goes on in its epoch, and length() and order() are of the ranks
 * that are left (doc/dev/dataset.md). The step that failed may be void: resume(). create() and free() that fail with
 * GRADCOMP_ERR_PEER_LOST are done or void as gradcomp_survivors says: the dataset is `made`, is gone, or is as before.
 *
 * Threads: all calls but create() and free() may come from any thread, next() from
 * one at a time. Failures: as gradcomp.h says; a rank that dies fails all calls that
 * wait for it, with its name, but for what is said of lost ranks above. */
#ifndef GRADCOMP_DATASET_H
#define GRADCOMP_DATASET_H

#include "gradcomp/abi.h"

#ifdef __cplusplus
extern "C" {
#endif

struct gradcomp_group;
typedef struct gradcomp_dataset gradcomp_dataset;

/* Where load() puts a value: calls out->alloc(out, bytes) once for memory of that
 * many bytes and fills it; NULL: there is none, and load() returns
 * GRADCOMP_ERR_NOMEM. */
typedef struct gradcomp_value_buffer {
	uint32_t struct_size;
	uint32_t reserved0;
	void *(*alloc)(struct gradcomp_value_buffer *out, uint64_t bytes);
	void *ctx; /* the library's */
} gradcomp_value_buffer;

typedef struct gradcomp_dataset_options {
	uint32_t struct_size;
	uint32_t workers; /* threads that load values ahead of next(); 0: the caller's thread loads them */
	uint64_t count;   /* samples; equal on all ranks, as are seed and shuffle */
	uint64_t seed;
	uint64_t memory;   /* bytes a node keeps; 0: setting dataset.memory */
	const char *spill; /* a directory on this node for what does not fit; NULL: none. Its file has no name. */
	/* Samples loaded or fetched before next() asks, and up to 16 times as many short ones fetched from other nodes; 0: setting
	 * dataset.prefetch. */
	uint32_t prefetch;
	uint32_t shuffle; /* 0: in order: perm is the identity */
	/* Reads, decodes, preprocesses sample `index`. Called on any thread, on several
	 * at a time, and in forked children; once a sample unless its value was lost. A
	 * failure fails the call that wanted the sample, not the job. */
	gradcomp_status (*load)(void *ctx, uint64_t index, gradcomp_value_buffer *out, gradcomp_error *err);
	void *ctx;
	/* 1: load() reads what every node has, as staged files, and gives the same bytes each time. next() then calls it for
	 * another node's value where that is faster than fetching it. Setting dataset.reload may say so for all datasets, or for
	 * none. */
	uint32_t reload;
	uint32_t reserved0;
} gradcomp_dataset_options;

/* A value on loan. */
typedef struct gradcomp_value_view {
	uint32_t struct_size; /* set by the caller */
	uint32_t source;      /* GRADCOMP_VALUE_... */
	uint64_t index;
	const void *data; /* aligned to 64 bytes; NULL: the epoch is over */
	uint64_t bytes;
	void *hold; /* the library's */
} gradcomp_value_view;

#define GRADCOMP_VALUE_LOCAL 0u  /* in this node's memory */
#define GRADCOMP_VALUE_REMOTE 1u /* fetched from its owner */
#define GRADCOMP_VALUE_LOADED 2u /* by load(), just now */
#define GRADCOMP_VALUE_SPILL 3u  /* read from a spill file */

/* Collective over the group. MISMATCH names the ranks whose count, seed or shuffle
 * differ; RANGE: the node has not the memory. The first rank of a node decides on
 * `memory` and `spill`; the others' are not looked at. next() stands at position 0 of
 * epoch 0. */
GRADCOMP_EXPORT gradcomp_status gradcomp_dataset_create(struct gradcomp_group *group,
                                                        const gradcomp_dataset_options *options, gradcomp_dataset **out,
                                                        gradcomp_error *err);
/* Collective: others may still want values of this node. load() is not called any
 * more when it returns. Views on loan stay readable, and release() stays allowed for
 * them: their memory goes with the last one. NULL is fine. */
GRADCOMP_EXPORT gradcomp_status gradcomp_dataset_free(gradcomp_dataset *ds, gradcomp_error *err);

/* Local, and waits for nobody but load() calls under way: when it returns no thread of
 * the library calls load() any more, and calls that want a value fail with STATE. For a
 * program that ends without free(), because something failed, and whose load() goes
 * away before the process does. */
GRADCOMP_EXPORT void gradcomp_dataset_stop(gradcomp_dataset *ds);

/* Samples of this rank in an epoch, and the one at a position (>= length: RANGE). */
GRADCOMP_EXPORT uint64_t gradcomp_dataset_length(const gradcomp_dataset *ds);
GRADCOMP_EXPORT gradcomp_status gradcomp_dataset_order(const gradcomp_dataset *ds, uint64_t epoch, uint64_t position,
                                                       uint64_t *index, gradcomp_error *err);
/* next() goes on at `position` of `epoch`: a job that resumes gives those it had
 * reached. Local; what was fetched ahead and not asked for is dropped. */
GRADCOMP_EXPORT gradcomp_status gradcomp_dataset_begin(gradcomp_dataset *ds, uint64_t epoch, uint64_t position,
                                                       gradcomp_error *err);
/* The same, by how many samples of the epoch are done on all ranks together: the first `reached` places of its order. Every
 * rank gives the same number, and what is left of the epoch is divided among them; `reached` goes on from there
 * by what the ranks take together, as many samples on each. For a number of ranks that has changed. */
GRADCOMP_EXPORT gradcomp_status gradcomp_dataset_resume(gradcomp_dataset *ds, uint64_t epoch, uint64_t reached,
                                                        gradcomp_error *err);
/* The next sample of the order; view->data is NULL at the epoch's end. When it fails
 * it stays where it is: another call tries again, begin() can go past. */
GRADCOMP_EXPORT gradcomp_status gradcomp_dataset_next(gradcomp_dataset *ds, gradcomp_value_view *view,
                                                      gradcomp_error *err);
/* A batch in one call: the values of the next samples of the order, at most `n` and each of `bytes` bytes, are copied
 * to `out`, `stride` >= bytes from one to the next; *got of them. It ends before a value of another size and at the
 * epoch's end: the next call of this or of next() begins there. When the first one fails, as next(); a later
 * one's failure is the next call's. */
GRADCOMP_EXPORT gradcomp_status gradcomp_dataset_next_copies(gradcomp_dataset *ds, uint64_t n, uint64_t bytes,
                                                             uint64_t stride, void *out, uint64_t *got,
                                                             gradcomp_error *err);
/* Sample `index`, whatever the order. */
GRADCOMP_EXPORT gradcomp_status gradcomp_dataset_get(gradcomp_dataset *ds, uint64_t index, gradcomp_value_view *view,
                                                     gradcomp_error *err);
/* Announces that these samples will be used next, in this order, so that they are prefetched: for
 * programs with an order of their own (DistributedSampler). Local, does not wait. */
GRADCOMP_EXPORT gradcomp_status gradcomp_dataset_expect(gradcomp_dataset *ds, const uint64_t *indices, uint64_t n,
                                                        gradcomp_error *err);
/* The view's data must not be looked at any more. A released view is fine. */
GRADCOMP_EXPORT void gradcomp_dataset_release(gradcomp_dataset *ds, gradcomp_value_view *view);

/* Counters of this rank and its forked children since create(). */
typedef struct gradcomp_dataset_stats {
	uint32_t struct_size; /* set by the caller */
	uint32_t reserved0;
	uint64_t local, remote, loaded, spilled; /* values handed out, by where they came from */
	uint64_t remote_bytes;
	uint64_t damaged;                   /* checksums that did not match; each value was loaded again */
	uint64_t unkept;                    /* values loaded that no memory was left for */
	uint64_t memory_used, memory_limit; /* of the node */
	double wait_s;                      /* next() and get() had to wait */
	double load_s;                      /* spent in load(), summed over threads */
} gradcomp_dataset_stats;
GRADCOMP_EXPORT void gradcomp_dataset_get_stats(const gradcomp_dataset *ds, gradcomp_dataset_stats *stats);

#ifdef __cplusplus
}
#endif
#endif
