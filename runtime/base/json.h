/* Writing JSON: members one a line, indented by two spaces, commas where they
 * belong. What goes wrong with the stream is the stream's (ferror). One thread
 * at a time. The prefix keeps clear of jansson's names.
 *
 *     jsonw j;
 *     json_put_start(&j, stdout);
 *     json_put_object(&j, NULL);
 *     json_put_string(&j, "name", "topk");
 *     json_put_array(&j, "sizes");
 *     json_put_uint(&j, NULL, 4096);
 *     json_put_end(&j);
 *     json_put_end(&j);
 *     json_put_finish(&j);
 */
#ifndef BASE_JSON_H
#define BASE_JSON_H

#include <stdint.h>
#include <stdio.h>

#define JSON_DEPTH_MAX 32

typedef struct jsonw {
	FILE *out;
	int depth;
	char close[JSON_DEPTH_MAX]; /* '}' or ']' of each level */
	char first;                 /* nothing in this level yet */
	/* 0: every level has lines of its own; else what is deeper than this many levels is on one line */
	int flat;
} jsonw;

void json_put_start(jsonw *j, FILE *out);
/* Writes the last newline. */
void json_put_finish(jsonw *j);

/* `key` is NULL in an array and at the top. */
void json_put_object(jsonw *j, const char *key);
void json_put_array(jsonw *j, const char *key);
void json_put_end(jsonw *j);
/* NULL becomes null. Bytes that are not UTF-8 become U+FFFD, one each. */
void json_put_string(jsonw *j, const char *key, const char *text);
void json_put_int(jsonw *j, const char *key, int64_t value);
void json_put_uint(jsonw *j, const char *key, uint64_t value);
/* NaN and infinities, which JSON does not have, become null. */
void json_put_float(jsonw *j, const char *key, double value);
void json_put_bool(jsonw *j, const char *key, int value);
void json_put_null(jsonw *j, const char *key);

#endif
