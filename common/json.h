/* Writing JSON: members one a line, indented by two spaces, commas where they
 * belong. What goes wrong with the stream is the stream's (ferror). One thread
 * at a time.
 *
 *     json j;
 *     json_start(&j, stdout);
 *     json_object(&j, NULL);
 *     json_string(&j, "name", "topk");
 *     json_array(&j, "sizes");
 *     json_uint(&j, NULL, 4096);
 *     json_end(&j);
 *     json_end(&j);
 *     json_finish(&j);
 */
#ifndef JSON_H
#define JSON_H

#include <stdint.h>
#include <stdio.h>

#define JSON_DEPTH_MAX 32

typedef struct json {
	FILE *out;
	int depth;
	char close[JSON_DEPTH_MAX]; /* '}' or ']' of each level */
	char first;                 /* nothing in this level yet */
} json;

void json_start(json *j, FILE *out);
/* The last newline. */
void json_finish(json *j);

/* `key` is NULL in an array and at the top. */
void json_object(json *j, const char *key);
void json_array(json *j, const char *key);
void json_end(json *j);
/* NULL becomes null. Bytes that are not UTF-8 become U+FFFD, one each. */
void json_string(json *j, const char *key, const char *text);
void json_int(json *j, const char *key, int64_t value);
void json_uint(json *j, const char *key, uint64_t value);
/* NaN and infinities, which JSON does not have, become null. */
void json_float(json *j, const char *key, double value);
void json_bool(json *j, const char *key, int value);
void json_null(json *j, const char *key);

#endif
