/* Parsing the blocks of a tar archive: POSIX ustar and pax, GNU, and the old form. Pure
 * functions of untrusted bytes. */
#ifndef IO_FORMAT_TAR_FORMAT_H
#define IO_FORMAT_TAR_FORMAT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define TAR_BLOCK 512u
/* A pax header or a GNU long name has at most so many bytes. */
#define TAR_EXTRA_MAX (1u << 20)
#define TAR_COMPRESSED "tar.gz/tgz/tar.bz2/tbz/tbz2/tar.xz/txz/tar.zst/tzst/tar.lz4/tar.lz/tar.lzma/tar.Z"

typedef struct tar_header {
	char name[257]; /* with the prefix of ustar */
	char type;      /* typeflag; a file is '0' whatever it was written as, a directory '5' */
	uint64_t size;  /* bytes that follow; 0 for types that have none */
} tar_header;

/* NULL, or what is wrong with the block. */
const char *tar_parse_header(const unsigned char block[TAR_BLOCK], tar_header *h);
bool tar_is_zero(const unsigned char block[TAR_BLOCK]);
/* Returns true for a header with the magic of ustar or GNU and the right sum. */
bool tar_looks_like(const unsigned char block[TAR_BLOCK]);
/* Describes a file that is no archive of tar by how it begins, and says what to do about it. */
typedef struct tar_other {
	const char *is, *remedy;
	bool archive; /* its samples are there, but not as tar */
} tar_other;

/* NULL: it may be an archive, or is nothing known. */
const tar_other *tar_other_content(const unsigned char *data, size_t n);

/* The fields of a pax header for the next member. */
typedef struct tar_pax {
	const char *path; /* into the data; NULL: nothing */
	size_t path_bytes;
	bool has_size, sparse;
	uint64_t size;
} tar_pax;

/* Adds to *p, which is zeroed before the first header. NULL, or what is wrong. */
const char *tar_parse_pax(const char *data, size_t n, tar_pax *p);

#endif
