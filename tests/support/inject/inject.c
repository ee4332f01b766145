/* Which calls fail, and how many did. `on` and the settings change only while a test has
 * one thread that uses them; counts are atomic. */
#define _GNU_SOURCE
#include "tests/support/inject/inject_internal.h"

#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static const char *const names[SETTINGS] = {"seed", "short", "eagain", "eintr", "delay", "delay_us", "reset", "alloc"};
static unsigned long value[SETTINGS];
static atomic_int on;
static atomic_ulong allocations, calls, faults;
static __thread unsigned long nth[SETTINGS]; /* asked so far, by kind */

int inject_set(const char *text)
{
	atomic_store(&on, 0);
	memset(value, 0, sizeof value);
	memset(nth, 0, sizeof nth);
	inject_track_none();
	atomic_store(&allocations, 0);
	atomic_store(&calls, 0);
	atomic_store(&faults, 0);
	while (text && *text) {
		char name[16], *end;
		int k = 0, n = 0;
		if (sscanf(text, "%15[a-z_]=%n", name, &n) != 1 || !n)
			return -1;
		while (k < SETTINGS && strcmp(names[k], name))
			k++;
		if (k == SETTINGS)
			return -1;
		value[k] = strtoul(text + n, &end, 10);
		if (end == text + n || (*end && *end != ';'))
			return -1;
		text = *end ? end + 1 : end;
	}
	return 0;
}

__attribute__((constructor)) static void from_environment(void)
{
	const char *text = getenv("GRADCOMP_INJECT");
	if (!text)
		return;
	if (inject_set(text)) {
		fprintf(stderr, "GRADCOMP_INJECT='%s' has no meaning: see tests/support/inject/inject.h\n", text);
		_exit(2);
	}
	inject_on();
}

void inject_on(void)
{
	atomic_store(&on, 1);
}

void inject_off(void)
{
	atomic_store(&on, 0);
}

inject_counts inject_seen(void)
{
	return (inject_counts){atomic_load(&allocations), atomic_load(&calls), atomic_load(&faults), inject_ntracked()};
}

uint64_t inject_draw(int kind)
{
	uint64_t z = value[SEED] * 0x9e3779b97f4a7c15u + (uint64_t)kind * 0xd1342543de82ef95u + ++nth[kind];
	z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
	z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
	return z ^ (z >> 31);
}

int inject_hit(int kind)
{
	if (!atomic_load(&on) || !value[kind] || inject_draw(kind) % 100 >= value[kind])
		return 0;
	atomic_fetch_add(&faults, 1);
	return 1;
}

void inject_late(void)
{
	if (inject_hit(DELAY))
		usleep((useconds_t)value[DELAY_US]);
}

int inject_refused(void)
{
	if (!atomic_load(&on) || atomic_fetch_add(&allocations, 1) + 1 != value[ALLOC])
		return 0;
	atomic_fetch_add(&faults, 1);
	return 1;
}

int inject_reset(void)
{
	if (!atomic_load(&on) || atomic_fetch_add(&calls, 1) + 1 != value[RESET])
		return 0;
	atomic_fetch_add(&faults, 1);
	return 1;
}

int inject_active(void)
{
	return atomic_load(&on);
}
