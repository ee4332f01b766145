/* Values of this node that another node requested before they were loaded. A thread loads them,
 * or waits for the process that does, and the service then notifies the requesters. The thread
 * never waits for another node, so that no two can wait for each other. */
#include <stdlib.h>
#include <sys/eventfd.h>

#include "io/dataset/net/service.h"
#include "base/thread.h"

typedef struct want {
	struct want *next;
	peer *p;
	uint64_t index;
	uint32_t ticket;
	bool loaded;
} want;

typedef struct want_queue {
	want *head, **end;
} want_queue;

struct load_worker {
	gradcomp_dataset *ds;
	pthread_mutex_t lock;
	pthread_cond_t change;
	want_queue todo, done;
	bool stop, busy;
	bool forget; /* the value that is being loaded is not wanted any more */
	pthread_t thread;
};

static void put(want_queue *q, want *w)
{
	w->next = NULL;
	*q->end = w;
	q->end = &w->next;
}

static want *get(want_queue *q)
{
	want *w = q->head;
	if (w && !(q->head = w->next))
		q->end = &q->head;
	return w;
}

static void *load_worker_main(void *arg)
{
	load_worker *k = arg;
	pthread_mutex_lock(&k->lock);
	while (!k->stop) {
		want *w = get(&k->todo);
		sample_owner at;

		if (!w) {
			pthread_cond_wait(&k->change, &k->lock);
			continue;
		}
		if (!atomic_load(&k->ds->stopped)) {
			k->busy = true;
			pthread_mutex_unlock(&k->lock);
			owner_of(k->ds, w->index, &at);
			w->loaded = !slot_obtain(k->ds, w->index, at.slot, NULL, NULL);
			pthread_mutex_lock(&k->lock);
			k->busy = false;
			pthread_cond_signal(&k->change);
		}
		if (k->forget) {
			k->forget = false;
			free(w);
			continue;
		}
		put(&k->done, w);
		eventfd_write(k->ds->wake_fd, 1);
	}
	pthread_mutex_unlock(&k->lock);
	return NULL;
}

gradcomp_status load_worker_start(service *s, gradcomp_error *err)
{
	load_worker *k = calloc(1, sizeof *k);
	if (!k)
		return error_set(err, GRADCOMP_ERR_NOMEM, "no memory for a thread of a dataset");
	k->ds = s->ds;
	k->todo.end = &k->todo.head;
	k->done.end = &k->done.head;
	pthread_mutex_init(&k->lock, NULL);
	pthread_cond_init(&k->change, NULL);
	if (thread_start(&k->thread, load_worker_main, k)) {
		pthread_cond_destroy(&k->change);
		pthread_mutex_destroy(&k->lock);
		free(k);
		return error_set(err, GRADCOMP_ERR_NOMEM, "cannot start a thread for a dataset");
	}
	s->load_worker = k;
	return GRADCOMP_OK;
}

void load_worker_stop(load_worker *k)
{
	want *w;
	if (!k)
		return;
	pthread_mutex_lock(&k->lock);
	k->stop = true;
	pthread_cond_signal(&k->change);
	pthread_mutex_unlock(&k->lock);
	pthread_join(k->thread, NULL);
	while ((w = get(&k->todo)) || (w = get(&k->done)))
		free(w);
	pthread_cond_destroy(&k->change);
	pthread_mutex_destroy(&k->lock);
	free(k);
}

void load_worker_forget(load_worker *k)
{
	want *w;
	pthread_mutex_lock(&k->lock);
	while ((w = get(&k->todo)) || (w = get(&k->done)))
		free(w);
	k->forget = k->busy;
	pthread_mutex_unlock(&k->lock);
}

void load_worker_halt(load_worker *k)
{
	pthread_mutex_lock(&k->lock);
	while (k->busy)
		pthread_cond_wait(&k->change, &k->lock);
	pthread_mutex_unlock(&k->lock);
}

void load_worker_add(service *s, peer *p, uint32_t ticket, uint64_t index)
{
	load_worker *k = s->load_worker;
	want *w = malloc(sizeof *w);
	if (!w) {
		message_failed(s, GRADCOMP_ERR_NOMEM, NULL);
		return;
	}
	*w = (want){.p = p, .ticket = ticket, .index = index};
	p->nloads++;
	pthread_mutex_lock(&k->lock);
	put(&k->todo, w);
	pthread_cond_signal(&k->change);
	pthread_mutex_unlock(&k->lock);
}

void load_worker_notify(service *s)
{
	load_worker *k = s->load_worker;
	want *w;
	for (;;) {
		pthread_mutex_lock(&k->lock);
		w = get(&k->done);
		pthread_mutex_unlock(&k->lock);
		if (!w)
			return;
		w->p->nloads--;
		message_header(s, w->p,
		               (header){.type = MSG_NOTIFY, .n = w->loaded, .id = w->ticket, .index = w->index});
		free(w);
	}
}
