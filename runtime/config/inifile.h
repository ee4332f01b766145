/* INI files, read strictly. inih parts the lines; what it lets pass is refused: control characters, overlong and
 * indented lines, sections that are not [NAME], and the reader's callbacks know the line. A comment is a line that
 * begins with ';' or '#', and what follows one of these after a blank. One thread at a time. */
#ifndef CONFIG_INIFILE_H
#define CONFIG_INIFILE_H

#include <stdbool.h>
#include <stdio.h>

#include "gradcomp/abi.h"

#define INIFILE_LINE 65536 /* characters of a line, at most */

/* Set by the caller: path (for messages), err, section, key, ctx. */
typedef struct inifile {
	const char *path;
	gradcomp_error *err;
	/* A line [NAME]; `name` is n characters and not terminated. */
	void (*section)(struct inifile *f, const char *name, size_t n);
	/* key = value in the section. */
	void (*key)(struct inifile *f, const char *section, const char *key, const char *value);
	void *ctx;
	int line;
	gradcomp_status status; /* the first thing wrong; *err holds its text, and reading ends */
	/* Private. */
	FILE *stream;
	char *text;                    /* a line */
	const char *rest;              /* the part of its value that inih has not had yet */
	char in[64], name[64], *value; /* section, key and value that inih has handed on */
	size_t nvalue;
	bool pending;
} inifile;

/* Fails, for the callbacks, with INVALID, with file and line before the text. */
void inifile_fail(inifile *f, const char *fmt, ...) GRADCOMP_PRINTF(2, 3);
/* Fails, for the callbacks, with NOMEM. */
void inifile_nomem(inifile *f);
/* The stream stays the caller's. */
gradcomp_status inifile_read(inifile *f, FILE *stream);

#endif
