#include "tests/support/tap.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static pthread_mutex_t tap_lock = PTHREAD_MUTEX_INITIALIZER;
static int tap_count, tap_failed;

/* Counts what has been tried since tap_cases() was called last. */
enum { TAP_PROPERTIES = 64, TAP_TOLD = 10 };
static struct {
	char name[64], file[128];
	int line; /* where the last case stands that did not hold */
	unsigned long tried, failed;
} tap_property[TAP_PROPERTIES];
static int tap_properties;

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

int tap_case(int pass, const char *property, const char *file, int line, const char *fmt, ...)
{
	char name[400];
	va_list ap;
	va_start(ap, fmt);
	vsnprintf(name, sizeof name, fmt, ap);
	va_end(ap);
	pthread_mutex_lock(&tap_lock);
	int i = 0;
	while (i < tap_properties && strcmp(tap_property[i].name, property))
		i++;
	if (i == TAP_PROPERTIES || strlen(property) >= sizeof tap_property[i].name) {
		printf("Bail out! '%s' is too long, or one property too many\n", property);
		exit(1);
	}
	if (i == tap_properties) {
		memset(&tap_property[i], 0, sizeof tap_property[i]);
		strcpy(tap_property[i].name, property);
		tap_properties++;
	}
	tap_property[i].tried++;
	if (!pass && tap_property[i].failed++ < TAP_TOLD) {
		snprintf(tap_property[i].file, sizeof tap_property[i].file, "%s", file);
		tap_property[i].line = line;
		printf("# does not hold: %s: %s\n", property, name);
	}
	pthread_mutex_unlock(&tap_lock);
	return pass;
}

void tap_cases(const char *who)
{
	unsigned long all = 0;
	for (int i = 0; i < tap_properties; i++) {
		const unsigned long failed = tap_property[i].failed;
		tap_result(!failed, tap_property[i].file, tap_property[i].line, "%s: %s, %lu cases", who,
		           tap_property[i].name, tap_property[i].tried);
		if (failed)
			printf("# %lu of them do not hold\n", failed);
		all += tap_property[i].tried;
	}
	tap_properties = 0;
	if (all)
		tap_tried(all, "cases of a property");
}

int tap_in_part(unsigned long i, unsigned long n)
{
	static int told;
	const char *part = getenv("PART"), *whole = getenv("WHOLE");
	const unsigned long now = part ? strtoul(part, NULL, 10) : (unsigned long)time(NULL) / 86400;
	if (whole && !strcmp(whole, "yes"))
		return 1;
	pthread_mutex_lock(&tap_lock);
	if (!told++)
		printf("# PART=%lu\n", now);
	pthread_mutex_unlock(&tap_lock);
	return i % n == now % n;
}

int done_testing(void)
{
	tap_cases("in all");
	printf("1..%d\n", tap_count);
	return tap_failed != 0;
}
