/* Copying a stream of chunks (chunks.h) into a directory, on one node or on several
 * that read each its share and pass it round a ring.
 *
 * In round r the node that is owner k of h reads chunk r * h + k. Every node sends
 * its own chunk of the round (an empty one if it has none) to the next node, and in
 * between what came from the one before, until each chunk has been everywhere; a
 * chunk is checked and written by threads that do nothing else. Buffers are bounded:
 * those of a node's own chunks, and those it receives into, are apart, so that a full
 * node delays the others and never blocks them for good.
 *
 * A node that fails sets a flag in the header of its next chunk. All nodes end the same
 * number of rounds after the first such header, with every message sent and received,
 * and can then agree on what happened. doc/staging-internals.md has the protocol. */
#ifndef IO_TRANSFER_TRANSFER_H
#define IO_TRANSFER_TRANSFER_H

#include <pthread.h>

#include "gradcomp/gradcomp.h"
#include "io/transfer/chunks.h"
#include "io/source/source.h"

/* Which way chunks go. Alone: nnodes is 1 and there are no links. */
typedef struct transfer_ring {
	int node, nnodes;
	const gradcomp_links *out, *in; /* channels apart, a thread each */
	const char *const *hosts;       /* of the nodes, for messages */
} transfer_ring;

typedef struct transfer_params {
	stage_run *run;
	stage_manifest *m;            /* entries that this node wants are sealed */
	const transfer_ring *ring;
	source *from;                 /* what this node reads its chunks from */
	bool server;                  /* `from` is the source, not a copy on this node */
	const unsigned char *owners;  /* bits by node; NULL: all nodes */
	const unsigned char *needed;  /* bits by entry, the same on all nodes */
	const unsigned char *wanted;  /* bits by entry; NULL: this node only passes on */
	int temp, data;               /* directories being filled; -1 with wanted NULL */
} transfer_params;

typedef struct transfer_counts {
	uint64_t read, received; /* bytes of file data */
	bool ended;              /* another node has failed, and reports why */
} transfer_counts;

typedef struct transfer transfer;

/* Allocates all memory and starts all threads, which wait. After that only reading, writing and
 * the network can fail. *params outlives the transfer. */
gradcomp_status transfer_begin(const transfer_params *params, transfer **out, gradcomp_error *err);
/* Copies, reporting progress, and frees it. With `go` false nothing is done. */
gradcomp_status transfer_end(transfer *x, bool go, transfer_counts *counts, gradcomp_error *err);

/* ---- inside --------------------------------------------------------------- */

#define TRANSFER_POSTED 4   /* receives posted at a time */
#define TRANSFER_BUFFERS 96 /* of a kind at most */

typedef struct transfer_buffer {
	stage_chunk chunk;
	unsigned refs;
	bool own, dropped; /* dropped: its bytes are void */
	int owner;         /* node */
	unsigned char *message;
	size_t bytes; /* behind the digests, on the wire */
} transfer_buffer;

typedef struct transfer_queue {
	transfer_buffer *item[TRANSFER_BUFFERS];
	unsigned head, n;
} transfer_queue;

/* A large file of which blocks have arrived. */
typedef struct transfer_file {
	struct transfer_file *next;
	size_t entry;
	int fd;
	stage_digest digest;
} transfer_file;

typedef struct transfer_schedule {
	chunk_cursor cursor;
	stage_chunk *rounds; /* the last `kept` ones, of the owners */
	uint32_t kept;
	uint64_t next; /* round that is not cut yet */
} transfer_schedule;

struct transfer {
	const transfer_params *params;
	uint32_t readers, writers, nthreads;
	pthread_t threads[2 * 64 + 2];
	int *owner_index; /* of each node among the owners; -1: it is none */
	int own;        /* this node's */
	uint32_t owners;
	uint32_t lag;   /* rounds until all nodes know of a failure */
	uint64_t gap, inverse; /* slots from a node to the next, and its inverse modulo the hops */
	uint64_t total, mine, rounds; /* chunks, own chunks, rounds of the ring */
	unsigned char zeroes[SHA256_BYTES]; /* SHA-256 of a block of them */
	int resume_log;

	pthread_mutex_t lock; /* over all that follows */
	pthread_cond_t changed;
	bool go, cancelled;
	uint32_t running;
	gradcomp_status status; /* the first failure here */
	gradcomp_error error;
	bool dead;              /* the links have failed */
	atomic_bool stopping;   /* reading and writing may end */
	uint64_t end;           /* rounds there will be */

	transfer_queue free_own, free_in, to_send, to_write;
	transfer_buffer *ready[TRANSFER_BUFFERS]; /* own chunks by round */
	chunk_cursor cursor;  /* of own chunks */
	uint64_t next;        /* own chunk to be read */
	uint64_t received;    /* slots of the ring, up to the last one */
	bool arrived;         /* nothing more will */
	pthread_mutex_t files_lock;
	transfer_file *files;
	/* Which chunk a node has in a round: for the sending and for the receiving thread. */
	transfer_schedule sends, receives;
	transfer_buffer empty; /* sent instead of an own chunk that is not read any more */
	transfer_buffer buffers[2 * TRANSFER_BUFFERS];
	unsigned nbuffers;
	atomic_uint_fast64_t read, came; /* bytes read here, bytes received */
};

/* The first failure of this node ends its part. */
void transfer_fail(transfer *x, gradcomp_status status, const gradcomp_error *err);
void transfer_push(transfer_queue *q, transfer_buffer *b);
transfer_buffer *transfer_pop(transfer_queue *q);
/* With the lock held; at most a fifth of a second. */
void transfer_wait(transfer *x);
/* Drops a reference; the last one frees the buffer. */
void transfer_release(transfer *x, transfer_buffer *b);
/* Another node's failure, or this one's, in the head of round r. With the lock held. */
void transfer_stop_at(transfer *x, uint64_t round);

/* Threads (reader.c, writer.c, ring.c). */
void transfer_reader(transfer *x);
void transfer_writer(transfer *x);
void transfer_sender(transfer *x);
void transfer_receiver(transfer *x);

/* Hashes the parts of a chunk that was just read: its message is whole then. */
void transfer_hash(transfer *x, transfer_buffer *b);
/* Writes the parts that this node wants; `check` compares them with the digests that
 * came along. */
gradcomp_status transfer_store(transfer *x, dirwalk *to, transfer_buffer *b, bool check, gradcomp_error *err);
/* Closes what is left open of large files. */
void transfer_close_files(transfer *x);

#endif
