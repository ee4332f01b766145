/* Integers as they stand on the wire: little-endian, at any alignment. */
#ifndef TRANSPORT_WIRE_WIRE_H
#define TRANSPORT_WIRE_WIRE_H

#include <endian.h>
#include <stdint.h>
#include <string.h>

static inline void put32(unsigned char *p, uint32_t v)
{
	v = htole32(v);
	memcpy(p, &v, sizeof v);
}

static inline void put64(unsigned char *p, uint64_t v)
{
	v = htole64(v);
	memcpy(p, &v, sizeof v);
}

static inline uint32_t get32(const unsigned char *p)
{
	uint32_t v;
	memcpy(&v, p, sizeof v);
	return le32toh(v);
}

static inline uint64_t get64(const unsigned char *p)
{
	uint64_t v;
	memcpy(&v, p, sizeof v);
	return le64toh(v);
}

#endif
