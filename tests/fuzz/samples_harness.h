/* Files of samples that somebody made up: what is opened can be read, all of it, and
 * nothing beside it. */
#ifndef TESTS_FUZZ_SAMPLES_HARNESS_H
#define TESTS_FUZZ_SAMPLES_HARNESS_H

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "io/format/samples_internal.h"

static long taken, refused;

/* A descriptor of a file in memory with these bytes. */
static int as_file(const uint8_t *data, size_t size)
{
	int fd = memfd_create("fuzz", MFD_CLOEXEC);
	if (fd < 0 || write(fd, data, size) != (ssize_t)size)
		abort();
	return fd;
}

static void expect(int holds)
{
	if (!holds)
		abort();
}

static void read_part(const gradcomp_samples *s, uint64_t i, uint32_t part, size_t size)
{
	uint64_t bytes, got = 0;
	gradcomp_error err;
	const char *name;
	expect(!gradcomp_samples_part(s, i, part, &name, &bytes, &err) && strlen(name) <= size && bytes <= size);
	/* Exactly as large, so that a byte too many is seen. */
	void *buf = malloc(bytes ? bytes : 1);
	gradcomp_status st = gradcomp_samples_read(s, i, part, buf, bytes, &got, &err);
	expect(got == bytes && (!st || (st == GRADCOMP_ERR_INVALID && err.text[0])));
	free(buf);
	if (bytes)
		expect(gradcomp_samples_read(s, i, part, NULL, bytes - 1, &got, NULL) == GRADCOMP_ERR_RANGE);
}

/* `s` is what was opened, or NULL and the reason. */
static void read_all(gradcomp_samples *s, gradcomp_status status, const gradcomp_error *err, size_t size)
{
	if (status) {
		expect(!s && err->text[0] && status == err->status);
		refused++;
		return;
	}
	taken++;
	expect(gradcomp_samples_count(s) <= size);
	for (uint64_t i = 0; i < gradcomp_samples_count(s); i++) {
		gradcomp_sample_info info = {.struct_size = sizeof info};
		expect(!gradcomp_samples_info(s, i, &info, NULL) && info.nparts && info.label >= -1 &&
		       strlen(info.key) <= size);
		for (uint32_t part = 0; part < info.nparts; part++)
			read_part(s, i, part, size);
	}
	for (uint32_t i = 0; gradcomp_samples_class(s, i); i++)
		expect(strlen(gradcomp_samples_class(s, i)) <= size);
	gradcomp_samples_close(s);
}

#endif
