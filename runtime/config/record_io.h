/* Keys of machine, model and plan files, as tables: one row reads, checks and writes a value.
 *
 * The three files are INI files (doc/user/planning.md, "Files"); inifile.h reads the lines. A
 * SPEC that does not fit on a line goes on in the key `more` behind it. */
#ifndef CONFIG_RECORD_IO_H
#define CONFIG_RECORD_IO_H

#include <stdio.h>

#include "config/inifile.h"

typedef enum field_kind {
	FIELD_NUMBER, /* double */
	FIELD_LINE,   /* linear, "A B" */
	FIELD_COUNT,  /* uint32_t */
	FIELD_LONG,   /* uint64_t, to 2^53 */
	FIELD_HASH,   /* uint64_t, 16 hexadecimal digits */
	FIELD_NAME,   /* char[64] */
	FIELD_SPEC    /* char *, owned */
} field_kind;

#define FIELD_NAME_MAX 64
/* More is taken for a mistake: of a part of a step, and of a model. */
#define SECONDS_MOST 3600.0
#define TENSORS_MOST 1000000

typedef struct field {
	const char *section, *key;
	field_kind kind;
	int needed;
	size_t at;          /* offsetof */
	double least, most; /* inclusive; of a LINE: of its a */
	double b_most;      /* its b, from 0 to this */
	const char *unit;   /* "seconds" */
} field;

/* The reader and the writer of a file of such keys take this. */
typedef struct record_io {
	const field *row;
	size_t n;
	void *base;   /* the structure that offsets are of */
	int seen[16]; /* a line for each row: n is at most 16 */
	char **spec;  /* the last key's, for `more`; else NULL */
} record_io;

/* Returns 1 when the section has this key; then it is taken, or the file has failed. */
int record_io_take(record_io *t, inifile *f, const char *section, const char *key, const char *value);
/* With a list of the keys there are. */
void record_io_unknown(const record_io *t, inifile *f, const char *section, const char *key);
/* Fails with INVALID when a needed key of the section was not there; `line`: of the section, 0: none. */
gradcomp_status record_io_complete(const record_io *t, inifile *f, const char *section, int line);
/* Checks every value, when it does not come from a file: `what` is "machine 'x'". */
gradcomp_status record_io_check(const record_io *t, const char *what, gradcomp_error *err);
/* Writes [heading] and the section's keys. */
void record_io_write(FILE *out, const record_io *t, const char *section, const char *heading);
/* Writes KEY = SPEC, on as many lines as it takes. */
void record_io_write_spec(FILE *out, const char *key, const char *spec);
/* Writes the name of a tensor or layer as one word: its last bytes, which say more than the first. */
void record_io_write_name(FILE *out, const char *name);

/* The number N of a section [NAME N], or of a key N; it must be `next`. */
int record_io_number(inifile *f, const char *what, const char *text, uint32_t next);
/* Parts `text` in place at blanks; how many words there were, `most` + 1 for too many. */
int record_io_words(char *text, char **word, int most);
/* "a b" with 0 <= a <= a_most, 0 <= b <= b_most. */
int record_io_line(inifile *f, const char *key, const char *text, double a_most, double b_most, double out[2]);
/* A number from `least` to `most`; `unit` says of what. */
int record_io_float(inifile *f, const char *what, const char *text, double least, double most, const char *unit,
                    double *out);
/* One word in a line of numbers: seconds from 0 to `most`. */
int record_io_seconds(inifile *f, const char *what, const char *word, double most, double *out);

/* Opens a regular file for reading and reads it. */
gradcomp_status record_io_read(inifile *f, const char *path);
/* Writes a file with print() and publishes it when it is complete. `what` names it in messages. */
gradcomp_status record_io_publish(const char *what, const char *path, void (*print)(FILE *out, const void *data),
                                  const void *data, gradcomp_error *err);

#endif
