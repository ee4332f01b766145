/* A folder to work in, which is the working directory, and samples opened there. */
#ifndef TESTS_SUPPORT_SAMPLES_FIXTURE_H
#define TESTS_SUPPORT_SAMPLES_FIXTURE_H

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "gradcomp/samples.h"
#include "tests/support/tap.h"
#include "tests/support/tmpdir.h"

static gradcomp_error why;

static void must(int result, const char *what)
{
	if (result < 0) {
		printf("Bail out! %s: %s\n", what, strerror(errno));
		exit(1);
	}
}

static void begin(const char *name)
{
	tmpdir_make(name);
	must(chdir(tmpdir), tmpdir);
}

__attribute__((unused)) static void put_bytes(const char *path, const void *data, size_t n)
{
	/* Truncating one that is there would have it brought to the disk. */
	unlink(path);
	int fd = open(path, O_WRONLY | O_CREAT | O_EXCL, 0644);
	must(fd < 0 || write(fd, data, n) != (ssize_t)n || close(fd) < 0 ? -1 : 0, path);
}

__attribute__((unused)) static void put(const char *path, const char *text)
{
	put_bytes(path, text, strlen(text));
}

/* So many descriptors and no more. */
__attribute__((unused)) static void few_files(unsigned n)
{
	struct rlimit l;
	must(getrlimit(RLIMIT_NOFILE, &l), "getrlimit");
	l.rlim_cur = n;
	must(setrlimit(RLIMIT_NOFILE, &l), "setrlimit");
}

/* NULL and the reason in `why`. */
__attribute__((unused)) static gradcomp_samples *open_as(const char *path, gradcomp_sample_format format,
                                                         const char *suffixes)
{
	gradcomp_samples_options o = {.struct_size = sizeof o, .format = format, .suffixes = suffixes};
	gradcomp_samples *s;
	why = (gradcomp_error){0};
	gradcomp_status st = gradcomp_samples_open(path, &o, &s, &why);
	if ((st == 0) != (s != NULL) || (st && st != why.status))
		ok(0, "status %d and samples %p do not agree", st, (void *)s);
	return s;
}

/* "KEY:LABEL[NAME=DATA ...]" of each, to be compared; data up to 20 bytes. */
__attribute__((unused)) static const char *show(const gradcomp_samples *s)
{
	static char text[8192];
	size_t n = 0;
	for (uint64_t i = 0; i < gradcomp_samples_count(s) && n < sizeof text - 600; i++) {
		gradcomp_sample_info info = {.struct_size = sizeof info};
		if (gradcomp_samples_info(s, i, &info, &why))
			return why.text;
		n += (size_t)snprintf(text + n, sizeof text - n, "%s%s:%d[", i ? " " : "", info.key, info.label);
		for (uint32_t p = 0; p < info.nparts; p++) {
			const char *name;
			uint64_t bytes, got;
			char data[21] = "";
			if (gradcomp_samples_part(s, i, p, &name, &bytes, &why) ||
			    (bytes <= 20 && gradcomp_samples_read(s, i, p, data, 20, &got, &why)))
				return why.text;
			n += (size_t)snprintf(text + n, sizeof text - n, "%s%s=%s", p ? " " : "", name,
			                      bytes <= 20 ? data : "...");
		}
		n += (size_t)snprintf(text + n, sizeof text - n, "]");
	}
	text[n] = 0;
	return text;
}

__attribute__((unused)) static void shows(const char *path, gradcomp_sample_format format, const char *suffixes,
                                          const char *want, const char *name)
{
	gradcomp_samples *s = open_as(path, format, suffixes);
	is_str(s ? show(s) : why.text, want, name);
	gradcomp_samples_close(s);
}

__attribute__((unused)) static void refused(const char *path, gradcomp_sample_format format, gradcomp_status status,
                                            const char *words, const char *name)
{
	gradcomp_samples *s = open_as(path, format, NULL);
	gradcomp_samples_close(s);
	is_int(s ? 0 : why.status, status, "%s", name);
	like(why.text, words, "... says why");
}

#endif
