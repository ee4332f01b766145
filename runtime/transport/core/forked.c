#define _GNU_SOURCE
#include "transport/core/transport_internal.h"

#include "base/error.h"

#include <unistd.h>

/* The transports of this process, for the fork handlers alone. */
static pthread_mutex_t forked_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_once_t forked_once = PTHREAD_ONCE_INIT;
static transport *forked_alive;

static void forked_prepare(void)
{
	pthread_mutex_lock(&forked_lock);
	for (transport *t = forked_alive; t; t = t->next_alive)
		pthread_mutex_lock(&t->lock);
}

static void forked_parent(void)
{
	for (transport *t = forked_alive; t; t = t->next_alive)
		pthread_mutex_unlock(&t->lock);
	pthread_mutex_unlock(&forked_lock);
}

/* A death is noticed on the control tree's connections, so they are closed here, and what no channel has taken
 * yet, of which nobody here knows; channels' own stay open until the program closes them or ends. */
static void forked_child(void)
{
	for (transport *t = forked_alive; t; t = t->next_alive) {
		for (int i = 0; i < TREE_NEIGHBOURS; i++) {
			if (t->tree.near[i].fd >= 0)
				close(t->tree.near[i].fd);
			t->tree.near[i].fd = -1;
		}
		while (t->backlog.first)
			backlog_drop(&t->backlog);
		/* Its control thread is not in this process, and its eventfds are
		 * shared with the rank, so nobody here writes to them. */
		t->tree.running = false;
		t->forked = true;
		error_set(&t->failure.error, GRADCOMP_ERR_STATE,
		          "this process was forked off rank %d, which alone can use the job", t->rank);
		atomic_store(&t->failure.set, 1);
	}
	forked_parent();
}

static void forked_install(void)
{
	pthread_atfork(forked_prepare, forked_parent, forked_child);
}

void forked_watch(transport *t)
{
	pthread_once(&forked_once, forked_install);
	pthread_mutex_lock(&forked_lock);
	t->next_alive = forked_alive;
	forked_alive = t;
	pthread_mutex_unlock(&forked_lock);
}

bool transport_forked(const transport *t)
{
	return t->forked;
}

void forked_forget(transport *t)
{
	pthread_mutex_lock(&forked_lock);
	for (transport **at = &forked_alive; *at; at = &(*at)->next_alive)
		if (*at == t) {
			*at = t->next_alive;
			break;
		}
	pthread_mutex_unlock(&forked_lock);
}
