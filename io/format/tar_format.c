#include "io/format/tar_format.h"

#include <string.h>
#include <strings.h>

/* Offsets and lengths in a header block. */
enum {
	NAME = 0,
	NAME_BYTES = 100,
	SIZE = 124,
	SIZE_BYTES = 12,
	SUM = 148,
	SUM_BYTES = 8,
	TYPE = 156,
	MAGIC = 257,
	PREFIX = 345,
	PREFIX_BYTES = 155
};

/* Octal digits after spaces, up to a space or a zero byte; all blank is 0. */
static bool parse_octal(const unsigned char *p, size_t n, uint64_t *out)
{
	size_t i = 0;
	uint64_t v = 0;
	while (i < n && p[i] == ' ')
		i++;
	for (; i < n && p[i] >= '0' && p[i] <= '7'; i++) {
		if (v >> 60)
			return false;
		v = v << 3 | (uint64_t)(p[i] - '0');
	}
	for (; i < n; i++)
		if (p[i] != ' ' && p[i] != 0)
			return false;
	*out = v;
	return true;
}

/* GNU's form for large numbers: the first bit set, the rest in base 256. */
static bool parse_number(const unsigned char *p, size_t n, uint64_t *out)
{
	uint64_t v = p[0] & 0x7f;
	if (!(p[0] & 0x80))
		return parse_octal(p, n, out);
	/* 0x40 is the sign. */
	if (p[0] & 0x40)
		return false;
	for (size_t i = 1; i < n; i++) {
		if (v >> 55)
			return false;
		v = v << 8 | p[i];
	}
	*out = v;
	return true;
}

/* Checks the sum of all bytes with the field itself as spaces; some old programs added them as signed numbers. */
static bool sum_is_right(const unsigned char *block)
{
	uint64_t want;
	int64_t plain = ' ' * SUM_BYTES, with_signs = ' ' * SUM_BYTES;
	if (!parse_octal(block + SUM, SUM_BYTES, &want))
		return false;
	for (size_t i = 0; i < TAR_BLOCK; i++) {
		if (i >= SUM && i < SUM + SUM_BYTES)
			continue;
		plain += block[i];
		with_signs += (signed char)block[i];
	}
	return (int64_t)want == plain || (int64_t)want == with_signs;
}

static bool is_posix(const unsigned char *block)
{
	return !memcmp(block + MAGIC, "ustar", 6);
}

const char *tar_parse_header(const unsigned char block[TAR_BLOCK], tar_header *h)
{
	size_t prefix = is_posix(block) ? strnlen((const char *)block + PREFIX, PREFIX_BYTES) : 0;
	size_t name = strnlen((const char *)block + NAME, NAME_BYTES);
	if (!sum_is_right(block))
		return "is no header of tar, or a damaged one: the sum of its bytes is wrong";
	if (!parse_number(block + SIZE, SIZE_BYTES, &h->size) || h->size > INT64_MAX)
		return "has a size that is no number, negative or too large";
	memcpy(h->name, block + PREFIX, prefix);
	if (prefix)
		h->name[prefix++] = '/';
	memcpy(h->name + prefix, block + NAME, name);
	h->name[prefix + name] = 0;
	h->type = (char)block[TYPE];
	if (!h->type)
		h->type = name && h->name[prefix + name - 1] == '/' ? '5' : '0';
	if (h->type == '7')
		h->type = '0';
	/* Links, devices and directories have no data, whatever their size says. */
	if (h->type >= '1' && h->type <= '6')
		h->size = 0;
	return NULL;
}

bool tar_is_zero(const unsigned char block[TAR_BLOCK])
{
	return !block[0] && !memcmp(block, block + 1, TAR_BLOCK - 1);
}

bool tar_looks_like(const unsigned char block[TAR_BLOCK])
{
	return !memcmp(block + MAGIC, "ustar", 5) && sum_is_right(block);
}

#define UNPACK "unpack the shard, it is read in parts"
#define FETCH "fetch the file itself"

/* Bytes at the beginning, letters small or capital. A text may have white space before it. */
static const struct {
	const char *magic;
	unsigned char bytes;
	bool text;
	tar_other other;
} others[] = {
	{"\x1f\x8b", 2, false, {"is compressed (gzip)", UNPACK, true}},
	{"BZh", 3, false, {"is compressed (bzip2)", UNPACK, true}},
	{"\xfd"
         "7zXZ",
         6,
         false,
         {"is compressed (xz)", UNPACK, true}},
	{"\x28\xb5\x2f\xfd", 4, false, {"is compressed (zstd)", UNPACK, true}},
	{"\x04\x22\x4d\x18", 4, false, {"is compressed (lz4)", UNPACK, true}},
	{"\x1f\x9d", 2, false, {"is compressed (compress)", UNPACK, true}},
	{"PK\3\4",
         4,
         false,
         {"is a zip archive", "unpack it, and stage the folder or make a shard with tar --sort=name", true}},
	{"7z\xbc\xaf\x27\x1c",
         6,
         false,
         {"is a 7z archive", "unpack it, and stage the folder or make a shard with tar --sort=name", true}},
	{"PAR1", 4, false, {"is a Parquet table", "samples are read from folders and tar shards only", true}},
	{"\x89HDF\r\n\x1a\n", 8, false, {"is an HDF5 file", "samples are read from folders and tar shards only", true}},
	{"version https://git-lfs.github.com/",
         35,
         false,
         {"is a Git LFS pointer, not what it points to", "run git lfs pull where it was cloned", false}},
	{"<!doctype html", 14, true, {"is a web page (HTML)", FETCH ", the server answered with a page", false}},
	{"<html", 5, true, {"is a web page (HTML)", FETCH ", the server answered with a page", false}},
	{"<?xml", 5, true, {"is an XML text", FETCH ", the server may have answered with an error", false}},
	{"{\"", 2, true, {"is a JSON text", FETCH ", the server may have answered with an error", false}},
};

const tar_other *tar_other_content(const unsigned char *data, size_t n)
{
	size_t blank = 0;
	/* A text of Windows begins with a mark of its encoding. */
	if (n >= 3 && !memcmp(data, "\xef\xbb\xbf", 3))
		blank = 3;
	while (blank < n && strchr(" \t\r\n", data[blank]) && data[blank])
		blank++;
	for (size_t i = 0; i < sizeof others / sizeof others[0]; i++) {
		size_t at = others[i].text ? blank : 0;
		if (n - at >= others[i].bytes &&
		    !strncasecmp((const char *)data + at, others[i].magic, others[i].bytes))
			return &others[i].other;
	}
	return NULL;
}

/* Reads decimal digits up to `end`, at least one. */
static bool parse_decimal(const char *p, const char *end, uint64_t *out)
{
	uint64_t v = 0;
	if (p == end)
		return false;
	for (; p < end; p++) {
		if (*p < '0' || *p > '9' || v > (uint64_t)(INT64_MAX - (*p - '0')) / 10)
			return false;
		v = 10 * v + (uint64_t)(*p - '0');
	}
	*out = v;
	return true;
}

static bool is_key(const char *key, size_t n, const char *want)
{
	return n == strlen(want) && !memcmp(key, want, n);
}

const char *tar_parse_pax(const char *data, size_t n, tar_pax *p)
{
	const char *at = data, *end = data + n;
	/* "LENGTH KEY=VALUE\n", LENGTH of all of it. Zeros may fill the end. */
	while (at < end && *at) {
		const char *space = memchr(at, ' ', (size_t)(end - at)), *equals;
		uint64_t length;
		if (!space || !parse_decimal(at, space, &length) || length > (uint64_t)(end - at) ||
		    length <= (uint64_t)(space - at) + 1 || at[length - 1] != '\n')
			return "has a pax record whose length is wrong";
		const char *key = space + 1, *last = at + length - 1;
		if (!(equals = memchr(key, '=', (size_t)(last - key))))
			return "has a pax record without '='";
		const char *value = equals + 1;
		size_t key_bytes = (size_t)(equals - key), bytes = (size_t)(last - value);
		/* An empty value takes back what a header before it said. */
		if (is_key(key, key_bytes, "path")) {
			p->path = bytes ? value : NULL;
			p->path_bytes = bytes;
		} else if (is_key(key, key_bytes, "size")) {
			if (bytes && !parse_decimal(value, last, &p->size))
				return "has a pax size that is no number or too large";
			p->has_size = bytes > 0;
		} else if (key_bytes > 11 && !memcmp(key, "GNU.sparse.", 11)) {
			p->sparse = true;
		}
		at += length;
	}
	return NULL;
}
