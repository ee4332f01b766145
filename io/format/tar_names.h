/* What names and labels mean in a tar shard: the rules of WebDataset. */
#ifndef IO_FORMAT_TAR_NAMES_H
#define IO_FORMAT_TAR_NAMES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The key of a member's name of n bytes ends before the first dot behind the last '/',
 * and the part's name begins behind that dot. False: it is no part of a sample. */
bool tar_split_name(const char *name, size_t n, size_t *key);
/* The label that a part "cls" holds: decimal digits, perhaps a newline; else -1. */
int32_t tar_parse_label(const unsigned char *p, uint64_t n);

#endif
