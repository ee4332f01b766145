/* The layout of a record file, which doc/records.md writes down. Numbers are
 * little-endian. */
#ifndef IO_FORMAT_RECORDS_FORMAT_H
#define IO_FORMAT_RECORDS_FORMAT_H

#include <stdint.h>

#define RECORDS_VERSION 1u
#define RECORDS_HEAD 16u
#define RECORDS_FOOT 64u
#define RECORDS_ALIGN 8u
#define RECORDS_RECORD 24u /* bytes of a row of each table of the index */
#define RECORDS_PART 32u
#define RECORDS_CLASS 8u
#define RECORDS_PARTS_MAX 65536u /* of a record */

/* A carriage return, a newline and a zero in it, so that a copy that meddles with
 * lines is noticed. */
static const unsigned char records_magic[8] = {0x89, 'G', 'C', 'R', '\r', '\n', 0x1a, 0};
static const unsigned char records_end[8] = {'G', 'C', 'R', 'E', 'N', 'D', '\r', '\n'};

static inline uint32_t get32(const unsigned char *p)
{
	return p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}

static inline uint64_t get64(const unsigned char *p)
{
	return get32(p) | (uint64_t)get32(p + 4) << 32;
}

static inline void put32(unsigned char *p, uint32_t v)
{
	for (int i = 0; i < 4; i++)
		p[i] = (unsigned char)(v >> 8 * i);
}

static inline void put64(unsigned char *p, uint64_t v)
{
	put32(p, (uint32_t)v);
	put32(p + 4, (uint32_t)(v >> 32));
}

#endif
