#define _GNU_SOURCE
#include "transport/core/transport_internal.h"

#include <stdlib.h>
#include <sys/eventfd.h>
#include <unistd.h>

gradcomp_status backlog_put(transport *t, const hello *h, int fd, int passed)
{
	/* Every rank may be ahead of this one by a few channels, no more. */
	int most = 1024 + 16 * t->nranks;
	backlog *b = &t->backlog;
	backlog_conn *p = malloc(sizeof *p), **end = &b->first;
	if (!p)
		return GRADCOMP_ERR_NOMEM;
	*p = (backlog_conn){.h = *h, .fd = fd, .passed = passed};
	pthread_mutex_lock(&t->lock);
	if (b->n >= most) {
		pthread_mutex_unlock(&t->lock);
		free(p);
		return GRADCOMP_ERR_RANGE;
	}
	while (*end)
		end = &(*end)->next;
	*end = p;
	b->n++;
	for (backlog_channel *c = b->channels; c; c = c->next)
		if (c->id == h->channel) {
			atomic_fetch_add_explicit(&c->came, 1, memory_order_release);
			eventfd_write(c->fd, 1);
		}
	pthread_mutex_unlock(&t->lock);
	return GRADCOMP_OK;
}

backlog_conn *backlog_pull(backlog *b, backlog_conn **at)
{
	backlog_conn *p = *at;
	*at = p->next;
	b->n--;
	return p;
}

static void backlog_drop_at(backlog *b, backlog_conn **at)
{
	backlog_conn *p = backlog_pull(b, at);
	if (p->fd >= 0)
		close(p->fd);
	if (p->passed >= 0)
		close(p->passed);
	free(p);
}

void backlog_drop(backlog *b)
{
	backlog_drop_at(b, &b->first);
}

gradcomp_status backlog_listen(transport *t, backlog_channel *c)
{
	c->fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (c->fd < 0)
		return GRADCOMP_ERR_NOMEM;
	pthread_mutex_lock(&t->lock);
	c->next = t->backlog.channels;
	t->backlog.channels = c;
	pthread_mutex_unlock(&t->lock);
	return GRADCOMP_OK;
}

void backlog_leave(transport *t, backlog_channel *c)
{
	pthread_mutex_lock(&t->lock);
	for (backlog_channel **at = &t->backlog.channels; *at; at = &(*at)->next)
		if (*at == c) {
			*at = c->next;
			break;
		}
	pthread_mutex_unlock(&t->lock);
	if (c->fd >= 0)
		close(c->fd);
}

void backlog_bury(transport *t, uint64_t id)
{
	backlog *b = &t->backlog;
	pthread_mutex_lock(&t->lock);
	if (!b->gone)
		b->gone = calloc(BACKLOG_GONE, sizeof *b->gone);
	/* Without memory for it a peer that connects waits for its own limit. */
	if (b->gone)
		b->gone[b->ngone++ % BACKLOG_GONE] = id;
	for (backlog_conn **at = &b->first; *at;)
		if ((*at)->h.channel == id)
			backlog_drop_at(b, at);
		else
			at = &(*at)->next;
	pthread_mutex_unlock(&t->lock);
}

bool backlog_is_gone(transport *t, uint64_t id)
{
	const backlog *b = &t->backlog;
	bool found = false;
	pthread_mutex_lock(&t->lock);
	for (unsigned i = 0; b->gone && !found && i < b->ngone && i < BACKLOG_GONE; i++)
		found = b->gone[i] == id;
	pthread_mutex_unlock(&t->lock);
	return found;
}
