/* Manifests that come from elsewhere: from the file of a published copy, without its
 * source, and from another node. Lines and files are described in doc/staging.md. */
#ifndef IO_CACHE_MANIFEST_H
#define IO_CACHE_MANIFEST_H

#include "io/stage/staging.h"

/* Holds any line with its newline. */
#define STAGE_LINE_MAX 40960

/* Fills the empty manifest *m from the file: all entries and checksums, and the key
 * made of them, which the caller compares with the copy's name. *why (a constant, or
 * NULL) says what is wrong; then *m is empty. */
bool stage_manifest_load(stage_manifest *m, int dirfd, const char *name, const char **why);

/* The listing as text, a piece at a time: whole lines from *next on, which begins as
 * 0, into buf of at least 2 * STAGE_LINE_MAX bytes. Checksums come along as far as
 * they are known. Returns the piece's length, 0 when the last one was given, -1
 * without memory. */
ssize_t stage_manifest_pack(const stage_manifest *m, size_t *next, char *buf, size_t capacity);
/* Takes the pieces, in order, into a manifest that was empty before the first one;
 * `text` is written to. A failure (INVALID) says what is wrong. */
gradcomp_status stage_manifest_unpack(stage_manifest *m, char *text, size_t n, gradcomp_error *err);
/* After the last piece: everything there, no link leads out; counts, makes the key. */
gradcomp_status stage_manifest_unpacked(stage_manifest *m, gradcomp_error *err);

/* ---- for the files of manifests only ---------------------------------------- */

/* What comes before the entries, allocated; NULL without memory. */
char *stage_manifest_head(const stage_manifest *m, const char *first, size_t *bytes);
/* Takes one line of the head: "NAME VALUE" as number `i`. The values of entries, files
 * and bytes go into the manifest; `m->expected` entries are to come. */
bool stage_manifest_head_line(stage_manifest *m, int i, const char *first, char *line, size_t n);
#define STAGE_HEAD_LINES 5
/* Takes an entry's line of n bytes, without newline; line[n] is writable. Returns NULL,
 * or a constant that says what is wrong with it. */
const char *stage_manifest_take(stage_manifest *m, char *line, size_t n, bool with_extra);
/* When all lines are there: counts agree, links stay inside. Makes the key. */
const char *stage_manifest_complete(stage_manifest *m);
/* What a listing says besides the line: a directory's time, the bytes a file takes. */
size_t stage_entry_extra(const stage_entry *e, char out[24]);
/* Digits only, without leading zeros, up to INT64_MAX. */
bool stage_take_number(const char *s, uint64_t *out);
/* \xNN back into bytes, in place. */
bool stage_take_name(char *s);
/* Whether a directory may have an entry of this name. */
bool stage_name_ok(const char *name, size_t n);
/* 0 to 15, or -1; digits in lower case. */
int text_hex_digit(char c);

#endif
