#include "conformance/guard.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/* Beside a buffer. */
#define POISON 0xa5
#define SLOTS_MAX 16384

static struct slot {
	guarded g;
	const char *what;
	guard_access access; /* but for the fence */
	int device;
} slots[SLOTS_MAX];
static uint32_t slots_used, free_slots[SLOTS_MAX], nfree;
static int fence_shut;

/* Maps of one page between two that were freed, shut: most buffers are short, and the kernel takes longer to make a map
 * than to open one. The oldest is used first, so that a pointer which was kept meets nothing for long. */
enum { IDLE_MAX = 1024 };
static char *idle[IDLE_MAX];
static uint32_t idle_first, nidle;
/* The same, open: of times when guard_light was set. */
static char *ajar[IDLE_MAX];
static uint32_t najar;
bool guard_light;

static size_t page_bytes(void)
{
	return (size_t)sysconf(_SC_PAGESIZE);
}

static void protect(const struct slot *s)
{
	guard_access a = s->device && fence_shut ? GUARD_SHUT : s->access;
	if (mprotect(s->g.map, s->g.span,
	             a == GUARD_SHUT   ? PROT_NONE
	             : a == GUARD_READ ? PROT_READ
	                               : PROT_READ | PROT_WRITE)) {
		perror("mprotect");
		exit(1);
	}
}

/* A buffer that nobody has written to yet is filled with another byte in each: as floats NaN, large and small, so
 * that a result which hangs on it is wrong, or differs from rank to rank. */
static unsigned turns;

static int stale(void)
{
	static const unsigned char bytes[] = {0xff, 0x7e, POISON};
	return bytes[__atomic_fetch_add(&turns, 1, __ATOMIC_RELAXED) % sizeof bytes];
}

void guard_turn(unsigned turn)
{
	turns = turn;
}

/* Maps `span` writable bytes between two pages that cannot be touched; NULL: none. */
static char *take_map(size_t span)
{
	const size_t page = page_bytes();
	char *map;
	if (span == page && guard_light && najar)
		return ajar[--najar];
	if (span == page && nidle > IDLE_MAX / 2) {
		map = idle[idle_first];
		idle_first = (idle_first + 1) % IDLE_MAX;
		nidle--;
	} else {
		map = mmap(NULL, span + 2 * page, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		if (map == MAP_FAILED)
			return NULL;
		map += page;
	}
	return mprotect(map, span, PROT_READ | PROT_WRITE) ? NULL : map;
}

static void give_map_back(char *map, size_t span)
{
	const size_t page = page_bytes();
	if (span == page && guard_light && najar < IDLE_MAX)
		ajar[najar++] = map;
	else if (span == page && nidle < IDLE_MAX && !mprotect(map, span, PROT_NONE))
		idle[(idle_first + nidle++) % IDLE_MAX] = map;
	else
		munmap(map - page, span + 2 * page);
}

guarded guard(const char *what, size_t bytes, size_t align)
{
	size_t page = page_bytes();
	guarded g = {.bytes = bytes};
	g.span = (bytes + align + page - 1) / page * page;
	g.map = take_map(g.span);
	if (!g.map || (!nfree && slots_used == SLOTS_MAX)) {
		fprintf(stderr, "no memory for a guarded buffer of %zu bytes (%s)\n", bytes, what);
		exit(1);
	}
	memset(g.map, POISON, g.span);
	g.data = g.map + g.span - (bytes + align - 1) / align * align;
	memset(g.data, stale(), bytes);
	g.slot = nfree ? free_slots[--nfree] : slots_used++;
	slots[g.slot] = (struct slot){.g = g, .what = what};
	return g;
}

bool guard_intact(const guarded *g)
{
	for (const char *p = g->map; p < g->data; p++)
		if (*p != (char)POISON)
			return false;
	for (const char *p = g->data + g->bytes; p < g->map + g->span; p++)
		if (*p != (char)POISON)
			return false;
	return true;
}

void guard_lock(const guarded *g, int read_only)
{
	if (!g->map)
		return;
	if (guard_light || slots[g->slot].access == (read_only ? GUARD_READ : GUARD_OPEN))
		return;
	slots[g->slot].access = read_only ? GUARD_READ : GUARD_OPEN;
	protect(&slots[g->slot]);
}

void guard_free(guarded *g)
{
	if (g->map) {
		give_map_back(g->map, g->span);
		slots[g->slot] = (struct slot){.what = NULL};
		free_slots[nfree++] = g->slot;
	}
	memset(g, 0, sizeof *g);
}

void guard_to_device(const guarded *g)
{
	slots[g->slot].device = 1;
	protect(&slots[g->slot]);
}

void guard_fence(int shut)
{
	fence_shut = shut;
	for (uint32_t i = 0; i < slots_used; i++)
		if (slots[i].device)
			protect(&slots[i]);
}

bool guard_find(const void *address, guard_hit *hit)
{
	const char *p = address;
	for (uint32_t i = 0; i < slots_used; i++) {
		const struct slot *s = &slots[i];

		if (!s->what || p < s->g.map - page_bytes() || p >= s->g.map + s->g.span + page_bytes())
			continue;
		*hit = (guard_hit){.what = s->what,
		                   .access = s->device && fence_shut ? GUARD_SHUT : s->access,
		                   .device = s->device,
		                   .bytes = s->g.bytes,
		                   .before = p < s->g.map,
		                   .offset = p - s->g.data};
		return true;
	}
	return false;
}
