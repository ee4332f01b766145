/* The manifest of a source tree, or of its copy: what is in it, and the key made of that.
 * doc/dev/staging-internals.md describes its lines and files. */
#ifndef IO_MANIFEST_MANIFEST_H
#define IO_MANIFEST_MANIFEST_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/error.h"
#include "base/sha256.h"

#define STAGE_KEY_BYTES 65
/* Holds any line with its newline. */
#define STAGE_LINE_MAX 40960

#define STAGE_LEFT_OUT_BYTES 32768u

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

/* A name of a file that has several. */
struct stage_inode {
	dev_t dev;
	ino_t ino;
	const char *path;
};

typedef struct stage_manifest {
	char *source;
	stage_entry *entries; /* sorted by path, so a directory precedes what it holds */
	size_t n, capacity;
	struct stage_block *blocks; /* the memory of all strings */
	struct stage_inode *inodes; /* inodes of files with several links, while scanning */
	size_t ninodes, inode_capacity;
	uint64_t files, bytes;
	/* The node that lists says here what was left out and why, a line each, up to STAGE_LEFT_OUT_BYTES; and how
	 * much. */
	char *left_out;
	size_t left_out_bytes;
	uint64_t nleft_out;
	struct {
		uint64_t lines, entries, files, bytes; /* its head says so, while it is taken from text */
	} promised;
	char key[STAGE_KEY_BYTES];
} stage_manifest;

/* A zeroed manifest is empty. */
void manifest_clear(stage_manifest *m);
/* Returns "DIR/NAME", or NAME when dir is "", in memory of the manifest. */
char *manifest_join(stage_manifest *m, const char *dir, const char *name);
/* Returns a new zeroed entry, or NULL. Moves the others. */
stage_entry *manifest_add(stage_manifest *m);
int manifest_inode(stage_manifest *m, dev_t dev, ino_t ino, const char *path);
/* Is called after the last entry: sorts, finds hard links, counts, makes the key. */
gradcomp_status manifest_finish(stage_manifest *m, gradcomp_error *err);
const stage_entry *manifest_find(const stage_manifest *m, const char *path, size_t length);
/* Writes the entry's line without checksum and newline, as in the key and the file. Grows *buf; returns the length,
 * or -1 without memory. */
ssize_t manifest_entry_line(const stage_entry *e, char **buf, size_t *capacity);

/* Writes m as dirfd/name and brings it to the disk. -1 and errno. */
int manifest_write(const stage_manifest *m, int dirfd, const char *name);
/* Takes the checksums for the entries of m from the file. *why (a constant, or
 * NULL) says what is wrong with it. */
bool manifest_read(stage_manifest *m, int dirfd, const char *name, const char **why);

/* symlink.c */

/* Returns true when the symbolic link at `e`, followed through the tree, never leaves it. */
bool symlink_inside(const stage_manifest *m, const stage_entry *e);
/* Finds the first symbolic link that, followed through the tree, would leave it; or NULL. */
const stage_entry *symlink_outside(const stage_manifest *m);

/* manifest_file.c */

/* Fills the empty manifest *m from the file: all entries and checksums, and the key
 * made of them, which the caller compares with the copy's name. *why (a constant, or
 * NULL) says what is wrong; then *m is empty. */
bool manifest_load(stage_manifest *m, int dirfd, const char *name, const char **why);

/* The listing as text, a chunk at a time: whole lines from *next on, which begins as
 * 0, into buf of at least 2 * STAGE_LINE_MAX bytes. Checksums come along as far as
 * they are known. Returns the chunk's length, 0 when the last one was given, -1
 * without memory. */
ssize_t manifest_pack(const stage_manifest *m, size_t *next, char *buf, size_t capacity);
/* Takes the chunks, in order, into a manifest that was empty before the first one;
 * `text` is written to. A failure (INVALID) says what is wrong. */
gradcomp_status manifest_unpack(stage_manifest *m, char *text, size_t n, gradcomp_error *err);
/* Is called after the last chunk and checks that everything is there and no link leads out; counts, makes the key. */
gradcomp_status manifest_unpacked(stage_manifest *m, gradcomp_error *err);

/* Writes what comes before the entries, allocated; NULL without memory. */
char *manifest_head(const stage_manifest *m, const char *first, size_t *bytes);
/* Takes one line of the head: "NAME VALUE" as number `i`. The values of entries, files
 * and bytes go into the manifest; `m->expected` entries are to come. */
bool manifest_head_line(stage_manifest *m, int i, const char *first, char *line, size_t n);
#define STAGE_HEAD_LINES 5
/* Takes an entry's line of n bytes, without newline; line[n] is writable. Returns NULL,
 * or a constant that says what is wrong with it. */
const char *manifest_take(stage_manifest *m, char *line, size_t n, bool with_extra);
/* When all lines are there: counts agree, links stay inside. Makes the key. */
const char *manifest_complete(stage_manifest *m);
/* Writes what a listing says besides the line: a directory's time, the bytes a file takes. */
size_t manifest_entry_extra(const stage_entry *e, char out[24]);
/* Digits only, without leading zeros, up to INT64_MAX. */
bool manifest_take_number(const char *s, uint64_t *out);
/* \xNN back into bytes, in place. */
bool manifest_take_name(char *s);

#endif
