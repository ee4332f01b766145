/* Tar archives byte by byte, right ones and wrong ones. */
#ifndef TESTS_SUPPORT_TAR_WRITER_H
#define TESTS_SUPPORT_TAR_WRITER_H

#include <stdio.h>
#include <string.h>

#include "tests/support/samples_fixture.h"

static unsigned char tar_out[1 << 20];
static size_t tar_at;

/* Computes the sum of the header at `at` anew. */
static void tar_sum(size_t at)
{
	unsigned sum = 0;
	memset(tar_out + at + 148, ' ', 8);
	for (int i = 0; i < 512; i++)
		sum += tar_out[at + i];
	snprintf((char *)tar_out + at + 148, 8, "%06o", sum & 0777777);
}

/* A member with `n` bytes; returns where its header is. */
static size_t tar_member(const char *name, char type, const void *data, size_t n)
{
	unsigned char *h = tar_out + tar_at;
	size_t at = tar_at;
	memset(h, 0, 512);
	strncpy((char *)h, name, 100);
	memcpy(h + 100, "0000644", 8);
	snprintf((char *)h + 124, 12, "%011o", (unsigned)n);
	h[156] = (unsigned char)type;
	memcpy(h + 257, "ustar\00000", 8);
	tar_sum(at);
	memcpy(h + 512, data, n);
	tar_at += 512 + n;
	for (; tar_at % 512; tar_at++)
		tar_out[tar_at] = 0;
	return at;
}

__attribute__((unused)) static size_t tar_file(const char *name, const char *text)
{
	return tar_member(name, '0', text, strlen(text));
}

/* Two blocks of zeros, and into the file; the next archive begins. */
__attribute__((unused)) static void tar_end(const char *path)
{
	memset(tar_out + tar_at, 0, 1024);
	put_bytes(path, tar_out, tar_at + 1024);
	tar_at = 0;
}

/* "LENGTH KEY=VALUE\n" behind what is in `out`. */
__attribute__((unused)) static void pax_add(char *out, size_t room, const char *key, const char *value)
{
	size_t rest = strlen(key) + strlen(value) + 3, n = rest + 1, have = strlen(out);
	while (n != rest + (size_t)snprintf(NULL, 0, "%zu", n))
		n++;
	snprintf(out + have, room - have, "%zu %s=%s\n", n, key, value);
}

#endif
