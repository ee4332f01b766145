/* Allocations that were made while faults were on and are not freed yet: a table by
 * address. */
#include "tests/support/inject/inject_internal.h"

#include <pthread.h>
#include <string.h>

#define LIVE_MAX (1u << 16)
static void *live[LIVE_MAX];
static unsigned long nlive;
static pthread_mutex_t live_lock = PTHREAD_MUTEX_INITIALIZER;

static size_t live_slot(const void *p)
{
	return (size_t)(((uintptr_t)p >> 4) * 0x9e3779b97f4a7c15u >> 48);
}

void *inject_track(void *p)
{
	if (!p || !inject_active())
		return p;
	pthread_mutex_lock(&live_lock);
	size_t at = live_slot(p);
	while (live[at % LIVE_MAX])
		at++;
	live[at % LIVE_MAX] = p;
	nlive++;
	pthread_mutex_unlock(&live_lock);
	return p;
}

/* Linear probing: what follows in the same run moves up, so that no hole parts it. */
void inject_untrack(void *p)
{
	pthread_mutex_lock(&live_lock);
	size_t at = nlive && p ? live_slot(p) : 0;
	while (nlive && p && live[at % LIVE_MAX] && live[at % LIVE_MAX] != p)
		at++;
	if (nlive && p && live[at % LIVE_MAX] == p) {
		nlive--;
		live[at % LIVE_MAX] = NULL;
		while (live[++at % LIVE_MAX]) {
			void *moved = live[at % LIVE_MAX];
			size_t to = live_slot(moved);
			live[at % LIVE_MAX] = NULL;
			while (live[to % LIVE_MAX])
				to++;
			live[to % LIVE_MAX] = moved;
		}
	}
	pthread_mutex_unlock(&live_lock);
}

void inject_track_none(void)
{
	memset(live, 0, sizeof live);
	nlive = 0;
}

unsigned long inject_ntracked(void)
{
	return nlive;
}
