/* Allocations that were made while faults were on and are not freed yet: a table by
 * address. */
#include "parts.h"

#include <pthread.h>
#include <string.h>

#define HELD_MAX (1u << 16)
static void *held[HELD_MAX];
static unsigned long nheld;
static pthread_mutex_t held_lock = PTHREAD_MUTEX_INITIALIZER;

static size_t held_place(const void *p)
{
	return (size_t)(((uintptr_t)p >> 4) * 0x9e3779b97f4a7c15u >> 48);
}

void *inject_hold(void *p)
{
	if (!p || !inject_active())
		return p;
	pthread_mutex_lock(&held_lock);
	size_t at = held_place(p);
	while (held[at % HELD_MAX])
		at++;
	held[at % HELD_MAX] = p;
	nheld++;
	pthread_mutex_unlock(&held_lock);
	return p;
}

/* Linear probing: what follows in the same run moves up, so that no hole parts it. */
void inject_let_go(void *p)
{
	pthread_mutex_lock(&held_lock);
	size_t at = nheld && p ? held_place(p) : 0;
	while (nheld && p && held[at % HELD_MAX] && held[at % HELD_MAX] != p)
		at++;
	if (nheld && p && held[at % HELD_MAX] == p) {
		nheld--;
		held[at % HELD_MAX] = NULL;
		while (held[++at % HELD_MAX]) {
			void *moved = held[at % HELD_MAX];
			size_t to = held_place(moved);
			held[at % HELD_MAX] = NULL;
			while (held[to % HELD_MAX])
				to++;
			held[to % HELD_MAX] = moved;
		}
	}
	pthread_mutex_unlock(&held_lock);
}

void inject_hold_none(void)
{
	memset(held, 0, sizeof held);
	nheld = 0;
}

unsigned long inject_held(void)
{
	return nheld;
}
