#include "tests/support/tap.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static pthread_mutex_t tap_lock = PTHREAD_MUTEX_INITIALIZER;
static int tap_count, tap_failed;

int tap_result(int pass, const char *file, int line, const char *fmt, ...)
{
	char name[400];
	va_list ap;
	va_start(ap, fmt);
	vsnprintf(name, sizeof name, fmt, ap);
	va_end(ap);
	pthread_mutex_lock(&tap_lock);
	if (!pass)
		tap_failed++;
	printf("%s %d - %s\n", pass ? "ok" : "not ok", ++tap_count, name);
	if (!pass)
		printf("# failed at %s:%d\n", file, line);
	fflush(stdout);
	pthread_mutex_unlock(&tap_lock);
	return pass;
}

int tap_is_int(long long got, long long want, const char *file, int line, const char *fmt, ...)
{
	char name[400];
	va_list ap;
	va_start(ap, fmt);
	vsnprintf(name, sizeof name, fmt, ap);
	va_end(ap);
	int pass = tap_result(got == want, file, line, "%s", name);
	if (!pass)
		printf("#  got: %lld\n# want: %lld\n", got, want);
	return pass;
}

int tap_is_str(const char *got, const char *want, const char *name, const char *file, int line)
{
	int pass = tap_result(got && want && !strcmp(got, want), file, line, "%s", name);
	if (!pass)
		printf("#  got: %s\n# want: %s\n", got ? got : "(null)", want ? want : "(null)");
	return pass;
}

int tap_like(const char *text, const char *needle, const char *name, const char *file, int line)
{
	int pass = tap_result(text && strstr(text, needle), file, line, "%s", name);
	if (!pass)
		printf("#     text: %s\n# lacks: %s\n", text ? text : "(null)", needle);
	return pass;
}

void tap_skip(const char *why, const char *fmt, ...)
{
	char name[400];
	va_list ap;
	va_start(ap, fmt);
	vsnprintf(name, sizeof name, fmt, ap);
	va_end(ap);
	pthread_mutex_lock(&tap_lock);
	printf("ok %d - %s # SKIP %s\n", ++tap_count, name, why);
	fflush(stdout);
	pthread_mutex_unlock(&tap_lock);
}

void tap_tried(unsigned long n, const char *what)
{
	pthread_mutex_lock(&tap_lock);
	printf("# tried: %lu %s\n", n, what);
	fflush(stdout);
	pthread_mutex_unlock(&tap_lock);
}

int done_testing(void)
{
	printf("1..%d\n", tap_count);
	return tap_failed != 0;
}
