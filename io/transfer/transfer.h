/* Copying a stream of chunks (chunks.h) into a directory, on one node or on several
 * that read each its share and pass it on.
 *
 * Nodes read chunks in turn. Each chunk goes down a tree of its own (bcast_tree.h), in which a
 * node has to do with chunks in an order that all know; it is checked and written by threads that do
 * nothing else. Buffers are bounded: those of a node's own chunks, and those it receives into, are
 * apart, and the latter are given in that order, so that a full node delays the others and
 * never blocks them for good.
 *
 * A node that fails sets a flag in the headers that it sends from then on, and so do all that see
 * it. One that reads chunks also names the last one there will be, when it is its turn. So all end with the same
 * chunk, with every message sent and received, and can then agree on what happened.
 * doc/dev/staging-internals.md has the protocol. */
#ifndef IO_TRANSFER_TRANSFER_H
#define IO_TRANSFER_TRANSFER_H

#include <pthread.h>

#include "gradcomp/collective.h"
#include "gradcomp/gradcomp.h"
#include "io/transfer/bcast_tree.h"
#include "io/transfer/chunks.h"
#include "io/source/source.h"

/* The nodes. Alone: nnodes is 1 and there are no links. */
typedef struct transfer_peers {
	int node, nnodes;
	gradcomp_group *group; /* the nodes' */
	const gradcomp_links *links;
	const char *const *hosts; /* the nodes', for messages */
} transfer_peers;

typedef struct transfer_params {
	stage_run *run;
	stage_manifest *m; /* entries that this node wants are sealed */
	const transfer_peers *peers;
	source *from;                /* this node reads its chunks from it */
	bool server;                 /* `from` is the source, not a copy on this node */
	const unsigned char *owners; /* bits by node; NULL: all nodes */
	const unsigned char *needed; /* bits by entry, the same on all nodes */
	const unsigned char *wanted; /* bits by entry; NULL: this node only passes on */
	int temp, data;              /* directories being filled; -1 with wanted NULL */
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

#define TRANSFER_BUFFERS 96 /* most buffers of a kind */
/* How much later than the oldest turn that is not over a turn may begin, or a chunk be read: else a server with many
 * nodes would give all of them their first chunk at once, and late. The same on all nodes. */
#define TRANSFER_WINDOW 64u

typedef struct transfer_buffer {
	stage_chunk chunk;
	unsigned refs;
	bool own, here, dropped; /* here: the header has come, and what follows it; dropped: nothing does */
	int owner, from;         /* nodes */
	uint64_t time;           /* its turn's */
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

struct transfer {
	const transfer_params *params;
	uint32_t readers, writers, nthreads;
	pthread_t threads[2 * 64 + 2];
	int own;         /* this node's place among the owners; -1: it has none */
	uint32_t owners; /* nodes that read */
	uint32_t *owner;
	struct transfer_relay *relay;       /* NULL alone */
	int wake_fd;                        /* the relay looks again */
	uint64_t total, mine;               /* chunks, and own chunks */
	unsigned char zeroes[SHA256_BYTES]; /* SHA-256 of a block of them */
	int resume_log;

	pthread_mutex_t lock; /* over all that follows */
	pthread_cond_t changed;
	bool go, cancelled;
	uint32_t running;
	gradcomp_status status; /* the first failure here */
	gradcomp_error error;
	atomic_bool stopping; /* reading and writing may end */

	transfer_queue free_own, free_in, to_write;
	transfer_buffer *ready[TRANSFER_BUFFERS]; /* own chunks by turn */
	chunk_cursor cursor;                      /* next of the own chunks */
	uint64_t next;                            /* own chunk to be read */
	uint64_t oldest;                          /* time of the oldest turn that is not over */
	bool arrived;                             /* nothing more will */
	pthread_mutex_t files_lock;
	transfer_file *files;
	transfer_buffer buffers[2 * TRANSFER_BUFFERS];
	unsigned nbuffers;
	atomic_uint_fast64_t read, came; /* bytes read here, bytes received */
};

/* The first failure of this node ends its part. */
void transfer_fail(transfer *x, gradcomp_status status, const gradcomp_error *err);
void transfer_push(transfer_queue *q, transfer_buffer *b);
transfer_buffer *transfer_pop(transfer_queue *q);
/* The relay looks again at what there is. */
void transfer_wake(transfer *x);
/* Called with the lock held: waits for news, at most a fifth of a second. */
void transfer_wait(transfer *x);
/* Drops a reference; the last one frees the buffer. */
void transfer_release(transfer *x, transfer_buffer *b);

/* Threads (reader.c, writer.c, relay.c). */
void transfer_reader(transfer *x);
void transfer_writer(transfer *x);
void transfer_relay(transfer *x);
/* The relay needs this; it is x->relay. To be freed whatever is returned. */
gradcomp_status transfer_relay_new(transfer *x, gradcomp_error *err);
void transfer_relay_free(transfer *x);
/* How many nodes an own chunk is sent to, and how many buffers the relay receives into beside those
 * that are being written. */
unsigned transfer_relay_first(const transfer *x);
unsigned transfer_relay_buffers(const transfer *x);

/* Hashes the parts of a chunk that was just read: its message is whole then. */
void transfer_hash(transfer *x, transfer_buffer *b);
/* Writes the parts that this node wants; `check` compares them with the checksum that
 * came along. */
gradcomp_status transfer_store(transfer *x, dirwalk *to, transfer_buffer *b, bool check, gradcomp_error *err);
/* Returns the bytes that follow the header of a chunk. */
static inline size_t transfer_rest(const transfer_buffer *b)
{
	return (size_t)b->chunk.parts * SHA256_BYTES + b->bytes;
}

/* Closes what is left open of large files. */
void transfer_close_files(transfer *x);

#endif
