/* gradcomp/stage.h: a dataset, a directory or a file, copied once into the user's
 * cache on this node.
 *
 *     gradcomp_stage_options opt = { .struct_size = sizeof opt, .source = "/nfs/digits" };
 *     gradcomp_stage_result res = { .struct_size = sizeof res };
 *     if (gradcomp_stage(&opt, &res, &err) == 0)
 *             open_dataset(res.path);
 *
 * The copy is published by rename when it is whole and on disk, so a path that
 * was handed out always shows a complete dataset; it is kept for the next job.
 * Its key is the source's path and every entry's path, type, mode, size and
 * modification time: a changed source gets a new copy. The layout on disk is
 * in doc/admin/staging.md.
 *
 * Kept: empty directories, names with any byte, holes of sparse files, hard
 * links, symbolic links that stay inside the tree, permission bits (the owner
 * may always read; set-id and sticky bits are dropped), times of files.
 * Refused, by name and with the option that would do: devices, sockets, FIFOs, symbolic links that leave the
 * tree, what may not be read.
 *
 * Threads. gradcomp_stage() may be called on any thread, and on several at a
 * time, also for one source: one of them copies and the others wait for it, as
 * processes do. It starts `workers` threads which block all signals and end
 * before it returns. There is no state outside the call.
 *
 * Signals. The call installs no handlers. To stop it, return non-zero from
 * `progress`.
 */
#ifndef GRADCOMP_STAGE_H
#define GRADCOMP_STAGE_H

#include "gradcomp/abi.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Read the copy again, after copying and also when there is one already, and
 * compare it with the checksums taken from the source. A damaged copy is
 * replaced. */
#define GRADCOMP_STAGE_VERIFY (1u << 0)
/* Look, count, and write nothing. */
#define GRADCOMP_STAGE_DRY_RUN (1u << 1)
/* Read the source again when there is a copy, and compare contents: what was
 * exchanged without a change of size and time is noticed, and staged anew. */
#define GRADCOMP_STAGE_CONTENT (1u << 2)
/* Into the area that all users of the node share. The source is one that the setting
 * stage.shared declares, the user is stage.shared_user. Everybody on the node can read
 * the copy, whatever the modes of the source; when others stage the source they get
 * it. */
#define GRADCOMP_STAGE_SHARED (1u << 3)
/* Symbolic links are what they lead to, wherever that is: a file, or a directory with what is in it, but not
 * below another such link. With the rights of whoever calls, so not with SHARED; not from nfs://. */
#define GRADCOMP_STAGE_FOLLOW (1u << 4)
/* Absolute symbolic links that lead into the tree become relative ones. */
#define GRADCOMP_STAGE_REWRITE (1u << 5)
/* What may not be read is left out, a directory with all below it. */
#define GRADCOMP_STAGE_SKIP_UNREADABLE (1u << 6)

typedef enum gradcomp_stage_mode {
	GRADCOMP_STAGE_FULL = 0,  /* every node has all of it */
	GRADCOMP_STAGE_SHARD = 1, /* node i of n has the files at i, i + n, i + 2n ... of the sorted list */
	GRADCOMP_STAGE_LINK = 2   /* nothing is copied: the source is listed and checked, result.path is the source */
} gradcomp_stage_mode;

typedef enum gradcomp_stage_phase {
	GRADCOMP_STAGE_LIST = 0, /* listing the source */
	GRADCOMP_STAGE_WAIT = 1, /* another process copies the same dataset */
	GRADCOMP_STAGE_COPY = 2,
	GRADCOMP_STAGE_CHECK = 3, /* reading a copy again */
	GRADCOMP_STAGE_SYNC = 4,  /* bringing it to the disk */
	GRADCOMP_STAGE_NOTICE = 5 /* `notice` is worth a line to the user */
} gradcomp_stage_phase;

typedef struct gradcomp_stage_progress {
	uint32_t struct_size;
	gradcomp_stage_phase phase;
	uint64_t files, files_total; /* totals are 0 while scanning */
	uint64_t bytes, bytes_total;
	double seconds;     /* since this phase began */
	int64_t pid;        /* WAIT: the process waited for; 0: not known */
	const char *notice; /* NOTICE: text without newline; else NULL */
} gradcomp_stage_progress;

struct gradcomp_group;

typedef struct gradcomp_stage_options {
	uint32_t struct_size;
	uint32_t flags;
	const char *source;    /* a directory or a file, or nfs://SERVER/EXPORT/PATH */
	const char *cache_dir; /* absolute; NULL: setting stage.cache_dir */
	uint64_t max_bytes;    /* a larger dataset is refused; 0: setting stage.max_bytes */
	uint32_t workers;      /* 1..64 copying threads, 1 MiB each; 0: setting stage.workers */
	uint32_t reserved0;
	/* Called on the thread of gradcomp_stage() when a phase begins and then about
	 * ten times a second. Non-zero stops the call: it removes what is unfinished
	 * and returns GRADCOMP_ERR_STATE. May be NULL. */
	int (*progress)(void *ctx, const gradcomp_stage_progress *p);
	void *ctx;
	/* Stage together: the call is collective over the group, each node reads its
	 * share of the source and gets the rest from the other nodes. The first rank of
	 * a node does it for all ranks there. A failure on one node is a failure on all,
	 * and names the node. NULL: this node alone. */
	struct gradcomp_group *group;
	gradcomp_stage_mode mode;
	uint32_t reserved1;
	/* Keeps the copy from eviction as long as this process lives; 0: nothing does (a
	 * copy in the shared area: the calling process).
	 * `holder` is what `gradcomp cache list` shows for it ("job 12.0"); may be NULL. */
	int64_t hold_pid;
	const char *holder;
	/* What is left out: globs, one a line, of at most 4095 bytes together; NULL: nothing. One without '/'
	 * is compared with names at any depth, one with it with paths in the source, in which '*' does not match
	 * '/'. A directory is left out with all below it; a '/' at the end means directories alone. */
	const char *exclude;
} gradcomp_stage_options;

typedef struct gradcomp_stage_result {
	uint32_t struct_size; /* set by the caller */
	uint32_t cached;      /* 1: there was a copy already, on every node of the group */
	uint64_t files;       /* regular files of the dataset, hard links included */
	uint64_t bytes;       /* their sizes, each hard-linked file once */
	uint64_t resumed;     /* bytes taken over from a copy that a dead process began */
	double seconds;
	char key[65];          /* 64 hex digits */
	char path[4096];       /* where the copy is, or with DRY_RUN would be; of a file: the file */
	char source[4096];     /* the source with symbolic links resolved */
	uint64_t read;         /* bytes of file data this node read from the source */
	uint64_t received;     /* and got from other nodes */
	uint32_t node, nnodes; /* this node's place in the group; 0 of 1 alone */
	uint64_t left_out;     /* entries that `exclude` and SKIP_UNREADABLE have left out; a new copy has their names
	                      beside its data, in `left-out` */
} gradcomp_stage_result;

/* Returns when *result names a complete copy. Failures, all of which leave the
 * cache as it was:
 *   NOTFOUND     there is no such source
 *   INVALID      the source holds the cache; an option is wrong, or beyond what the
 *                site's gradcomp.conf has locked
 *   UNSUPPORTED  the tree holds something that cannot be copied
 *   RANGE        larger than max_bytes
 *   INSECURE     the cache area could be written by another user
 *   IO           a file could not be read or written; no space (the text says
 *                how much is needed and how much there is) or no quota
 *   STATE        the source changed each time it was copied, or `progress`
 *                asked to stop
 *   PEER, TIMEOUT  another node of the group died or does not answer, or the NFS
 *                server cannot be reached, or was away for stage.source_timeout
 * Names in the text are fit for a terminal: control bytes appear as \xNN. */
GRADCOMP_EXPORT gradcomp_status gradcomp_stage(const gradcomp_stage_options *options, gradcomp_stage_result *result,
                                               gradcomp_error *err);

/* `name` for a terminal: control bytes, backslashes and bytes that are not
 * UTF-8 become \xNN, and the middle of a long name becomes "...". Writes at most
 * `capacity` bytes, always terminated. Returns `out`. */
GRADCOMP_EXPORT const char *gradcomp_printable(const char *name, char *out, size_t capacity);

/* "3.2 GB" (powers of 1000), "17 bytes". Returns `out`. */
GRADCOMP_EXPORT const char *gradcomp_size_text(uint64_t bytes, char out[32]);

#ifdef __cplusplus
}
#endif
#endif
