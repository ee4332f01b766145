/* TAP for C tests: ok(), is_int(), is_str(), like(), skip(), done_testing().
 * Each prints one line and never stops the program; a test's main ends with
 * `return done_testing();`. Thread-safe, for ranks that are threads: numbers are
 * printed in order. */
#ifndef TESTS_SUPPORT_TAP_H
#define TESTS_SUPPORT_TAP_H

#include <stdio.h>
#include <string.h>

#ifdef __cplusplus
extern "C" {
#endif

#define ok(cond, ...) tap_result(!!(cond), __FILE__, __LINE__, __VA_ARGS__)
#define is_int(got, want, ...) tap_is_int((long long)(got), (long long)(want), __FILE__, __LINE__, __VA_ARGS__)
#define is_str(got, want, name) tap_is_str(got, want, name, __FILE__, __LINE__)
/* `needle` occurs in `text`. */
#define like(text, needle, name) tap_like(text, needle, name, __FILE__, __LINE__)
#define skip(why, ...) tap_skip(why, __VA_ARGS__)
/* One case of many of a property, which is a string of at most 63 bytes: it is counted, and prints its text only
 * where it does not hold. tap_cases() prints a line a property. */
#define case_of(property, cond, ...) tap_case(!!(cond), property, __FILE__, __LINE__, __VA_ARGS__)

/* The result is `pass`. */
int tap_result(int pass, const char *file, int line, const char *fmt, ...) __attribute__((format(printf, 4, 5)));
int tap_is_int(long long got, long long want, const char *file, int line, const char *fmt, ...)
	__attribute__((format(printf, 5, 6)));
int tap_is_str(const char *got, const char *want, const char *name, const char *file, int line);
int tap_like(const char *text, const char *needle, const char *name, const char *file, int line);
void tap_skip(const char *why, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* For tests/run, which prints the sums over all tests: `n` more of `what`, in the plural. */
void tap_tried(unsigned long n, const char *what);
int tap_case(int pass, const char *property, const char *file, int line, const char *fmt, ...)
	__attribute__((format(printf, 5, 6)));
/* A result "WHO: PROPERTY, N cases" for each property of which cases were tried since the last call; it has failed if
 * one of them did not hold. */
void tap_cases(const char *who);
/* For a test with more cases than CI has time for: whether case i is done now. One of n parts of them is, another one
 * every day; the environment's PART=N repeats it, and with WHOLE=yes (make check-long) all are. Prints PART once. */
int tap_in_part(unsigned long i, unsigned long n);
/* The plan, after what tap_cases() has not printed yet; 1 when a test has failed. */
int done_testing(void);

#ifdef __cplusplus
}
#endif

#endif
