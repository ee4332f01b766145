/* What the files of this folder share: the manifest of a source tree, walking
 * and copying by directory descriptors, the cache area and the state of one
 * call. doc/staging.md has the layout on disk.
 *
 * Every path inside a tree is relative to its root ("" is the root itself) and
 * reached one component at a time without following symbolic links. */
#ifndef IO_STAGE_STAGING_H
#define IO_STAGE_STAGING_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <sys/types.h>

#include "base/clock.h"
#include "base/error.h"
#include "gradcomp/stage.h"
#include "base/sha256.h"
#include "io/source/source.h"

#define STAGE_BUFFER (1u << 20)
#define STAGE_KEY_BYTES 65
#define STAGE_NAME_MAX 400 /* for gradcomp_printable() in messages */

/* ---- text (text.c) -------------------------------------------------------- */

/* "GRADCOMP_ERR_IO: cannot WHAT NAME: strerror(errno)", NAME printable. */
gradcomp_status error_cannot(gradcomp_error *err, const char *what, const char *name);
/* 64 hexadecimal digits in lower case, as sha256_hex() writes them; what follows
 * does not matter. */
bool sha256_unhex(const char *hex, unsigned char digest[SHA256_BYTES]);

/* ---- walking (walk.c) ----------------------------------------------------- */

/* The directory a thread is in, kept open because the next file is mostly in the
 * same one. One thread each. */
typedef struct dirwalk {
	int root, fd; /* fd is -1 while in the root */
	char *path;
	size_t length, capacity;
} dirwalk;

void dirwalk_begin(dirwalk *w, int root);
void dirwalk_end(dirwalk *w);
/* An O_PATH descriptor of the directory, owned by the walk and good until the
 * next call; -1 and errno. */
int dirwalk_to(dirwalk *w, const char *path, size_t length);
/* The same for the directory that holds `path`; *base is its last component. */
int dirwalk_parent(dirwalk *w, const char *path, const char **base);
/* Removes parent/name with all below it, whatever the modes and the depth.
 * 0 also when there is none; -1 and errno. */
int dirwalk_remove(int parent, const char *name);

/* ---- manifest (manifest.c, manifest_file.c, scan.c, symlink.c) ------------- */

#define STAGE_FILE 'f'
#define STAGE_DIR 'd'
#define STAGE_SYMLINK 'l'
#define STAGE_HARDLINK 'h' /* another name of an earlier entry */

typedef struct stage_entry {
	char *path;
	char *target;     /* SYMLINK: where to; HARDLINK: path of the first name */
	uint64_t size;    /* FILE */
	uint64_t stored;  /* FILE: bytes it takes on the source */
	int64_t mtime_ns; /* FILE, and DIR to see changes (not part of the key) */
	uint16_t mode;    /* permission bits of the copy */
	char type;
	bool sealed; /* sha256 is known */
	unsigned char sha256[SHA256_BYTES];
} stage_entry;

typedef struct stage_manifest {
	char *source;
	stage_entry *entries; /* sorted by path, so a directory precedes what it holds */
	size_t n, capacity;
	struct stage_block *blocks; /* the memory of all strings */
	struct stage_inode *inodes; /* of files with several links, while scanning */
	size_t ninodes, inode_capacity;
	uint64_t files, bytes;
	struct {
		uint64_t lines, entries, files, bytes; /* what its head says, while it is taken from text */
	} promised;
	char key[STAGE_KEY_BYTES];
} stage_manifest;

/* A zeroed manifest is empty. */
void stage_manifest_clear(stage_manifest *m);
/* "DIR/NAME", or NAME when dir is "", in memory of the manifest. */
char *stage_manifest_join(stage_manifest *m, const char *dir, const char *name);
/* A new zeroed entry, or NULL. Moves the others. */
stage_entry *stage_manifest_add(stage_manifest *m);
int stage_manifest_inode(stage_manifest *m, dev_t dev, ino_t ino, const char *path);
/* After the last entry: sorts, finds hard links, counts, makes the key. */
gradcomp_status stage_manifest_finish(stage_manifest *m, gradcomp_error *err);
const stage_entry *stage_manifest_find(const stage_manifest *m, const char *path, size_t length);
/* The entry's line without checksum and newline, as in the key and the file.
 * Grows *buf; returns the length, or -1 without memory. */
ssize_t stage_entry_line(const stage_entry *e, char **buf, size_t *capacity);

/* Writes m as dirfd/name and brings it to the disk. -1 and errno. */
int stage_manifest_write(const stage_manifest *m, int dirfd, const char *name);
/* Takes the checksums for the entries of m from the file. *why (a constant, or
 * NULL) says what is wrong with it. */
bool stage_manifest_read(stage_manifest *m, int dirfd, const char *name, const char **why);

struct stage_run;
/* Lists the tree of a source; m->source must be set. */
gradcomp_status stage_list(struct stage_run *run, stage_manifest *m, source *from, gradcomp_error *err);
/* Whether the symbolic link at `e`, followed through the tree, never leaves it. */
bool stage_symlink_inside(const stage_manifest *m, const stage_entry *e);
/* The first symbolic link that, followed through the tree, would leave it; or NULL. */
const stage_entry *stage_symlink_outside(const stage_manifest *m);

/* ---- the cache area (area.c, lock.c, entry.c) ------------------------------ */

/* Opens the user's area of the cache, making it when `create`; a descriptor and
 * its path, or a status. NOTFOUND only without `create`. */
gradcomp_status stage_area_open(const char *cache_dir, bool create, int *fd, char path[4096], gradcomp_error *err);

/* The right to produce a key on this node; the kernel gives it back when its
 * holder dies. 1 taken, 0 another has it (*holder is its pid, or 0), -1 errno. */
int stage_lock_try(int area, const char *key, int *fd, int64_t *holder);
void stage_lock_release(int area, const char *key, int fd);

/* Removes what the dead left of other keys: locks, leases on nothing, damaged copies that
 * were replaced, rests of evictions. What they copied stays, to be gone on with. */
void stage_sweep(int area, const char *key);

/* ---- one call (run.c, pool.c) ---------------------------------------------- */

typedef struct stage_run {
	const gradcomp_stage_options *options;
	const struct config *config;
	const char *source; /* as resolved, for messages */
	const char *cache_dir;
	char where[4096]; /* path of the cache area */
	uint64_t max_bytes;
	uint32_t workers;
	gradcomp_stage_phase phase;
	double phase_begin, last_call;
	atomic_uint_fast64_t files, bytes;
	uint64_t files_total, bytes_total;
	int64_t pid;
	const source *reads; /* whose silence is told, or NULL */
	bool silent;         /* it was told */
	atomic_bool changed; /* the failure was a source that changed */
	atomic_bool unwritable; /* or a cache that could not be written to */
} stage_run;

/* For calls on the thread of gradcomp_stage() that wait for a server. */
source_wait stage_run_wait(stage_run *run);
/* The next tick of the new phase calls progress at once. */
void stage_run_phase(stage_run *run, gradcomp_stage_phase phase, uint64_t files, uint64_t bytes);
/* Calls progress when it is due. STATE when the caller wants to stop. */
gradcomp_status stage_run_tick(stage_run *run, gradcomp_error *err);
/* A line for the user now. */
void stage_run_notice(stage_run *run, const char *fmt, ...) GRADCOMP_PRINTF(2, 3);

/* What each thread of a pool has. */
typedef struct stage_worker {
	source_reader *from; /* NULL when there is no source */
	dirwalk to;
	unsigned char *buffer;   /* STAGE_BUFFER bytes */
	const atomic_bool *stop; /* long loops look at it and give up */
} stage_worker;

/* Calls each(ctx, worker, i) for every i < n on run->workers threads, while the
 * calling thread reports progress. `from` is what the workers read, or NULL; `to`
 * the root of their walks, or -1. The first failure ends it. */
gradcomp_status stage_pool(stage_run *run, size_t n, source *from, int to,
                           gradcomp_status (*each)(void *ctx, stage_worker *w, size_t i, gradcomp_error *err),
                           void *ctx, gradcomp_error *err);

/* ---- copying (copy.c, fill.c, journal.c, publish.c) ------------------------- */

/* The source is not what the manifest says: STATE, and run->changed is set. */
gradcomp_status stage_changed(stage_run *run, const stage_entry *e, const char *how, gradcomp_error *err);
bool stage_same(const source_stat *st, const stage_entry *e);
/* Whether the copy has the entry's size and checksum: 1, 0, or -1 and errno
 * (ECANCELED when the pool stops). */
int stage_check(stage_run *run, stage_worker *w, const stage_entry *e);
/* The failure of a call that writes into the cache: errno, with what to do about
 * no space and no quota. */
gradcomp_status stage_write_failed(stage_run *run, const char *path, gradcomp_error *err);

/* What is still to be written of what is not sealed. */
void stage_needs(const stage_manifest *m, uint64_t block, uint64_t *bytes, uint64_t *inodes);
/* Refuses a dataset for which there is no room now; for a dry run. */
gradcomp_status stage_check_space(stage_run *run, const stage_manifest *m, int area, gradcomp_error *err);

/* A directory KEY.tmp being filled. */
typedef struct stage_partial {
	int temp, data;        /* temp is the caller's */
	unsigned char *wanted; /* bits by entry: files that are not there yet */
	uint64_t resumed;      /* bytes of those that are */
} stage_partial;

/* Makes data/ and its directories, and checks the files that a dead producer finished.
 * To be freed whatever is returned. */
gradcomp_status stage_populate_begin(stage_run *run, stage_manifest *m, int temp, stage_partial *out,
                                 gradcomp_error *err);
/* When all files are there: links, and the modes of directories. */
gradcomp_status stage_populate_end(stage_run *run, stage_manifest *m, const stage_partial *partial,
                               gradcomp_error *err);
void stage_populate_free(stage_partial *partial);
/* Whether the source's directories are still as listed; a file is checked when
 * it is copied. */
gradcomp_status stage_unchanged(stage_run *run, stage_manifest *m, source *from, gradcomp_error *err);

/* The journal of finished files in a directory that is being filled. Reading
 * marks the entries it names as sealed: a claim, to be checked. */
void resume_log_read(stage_manifest *m, int temp);
int resume_log_open(int temp);
int resume_log_add(int journal, size_t index, const stage_entry *e);

/* 1: area/KEY is a whole copy (with `deep`: every byte read) of what *m lists, or when
 * that is empty it is filled with the copy's own list; 0: there is none, or it is
 * damaged: *damage is not empty then. Negative: status. */
int stage_published(stage_run *run, stage_manifest *m, int area, const char *key, bool deep, char damage[508],
                    gradcomp_error *err);
/* Reads every byte of the copy dir/data. MISMATCH names a file that is wrong. */
gradcomp_status stage_verify(stage_run *run, stage_manifest *m, int dir, gradcomp_error *err);
/* Brings `temp` to the disk and makes it area/KEY, in place of a damaged one. */
gradcomp_status stage_publish(stage_run *run, const stage_manifest *m, int area, const char *key, int temp,
                              gradcomp_error *err);
/* Notes that the copy was used now. */
void stage_touch(int area, const char *key);

#endif
