/* Names of shards from a pattern:
 *
 *     DIR/train-{000..099}.tar     braces: each number of a range, as wide as its longer end if one of them
 *                                  begins with 0, or each of {a,b,c}; they may stand in each other
 *     DIR/val-*.tar                *, ? and [...], against the names that are there, in the order of bytes
 *     A.tar::B.tar                 one pattern after another
 *
 * A backslash takes the meaning of the next character. */
#ifndef IO_FORMAT_SHARD_NAMES_H
#define IO_FORMAT_SHARD_NAMES_H

#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"

#define SHARD_NAMES_MAX (1u << 20)

typedef struct shard_names {
	char **at; /* absolute paths, allocated */
	uint64_t n, room;
} shard_names;

/* Returns true when a path could be meant as a pattern. */
bool shard_names_pattern(const char *path);
/* INVALID for what is no pattern, NOTFOUND for a glob without a match. Whether other names
 * exist is for who opens them. */
gradcomp_status shard_names_expand(const char *pattern, shard_names *out, gradcomp_error *err);
void shard_names_clear(shard_names *l);

#endif
