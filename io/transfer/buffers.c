/* Buffers that go from thread to thread, and the first failure, which ends them all. */
#include <sys/eventfd.h>

#include "base/thread.h"
#include "io/transfer/transfer.h"

void transfer_push(transfer_queue *q, transfer_buffer *b)
{
	q->item[(q->head + q->n++) % TRANSFER_BUFFERS] = b;
}

transfer_buffer *transfer_pop(transfer_queue *q)
{
	transfer_buffer *b = q->item[q->head];
	q->head = (q->head + 1) % TRANSFER_BUFFERS;
	q->n--;
	return b;
}

void transfer_wait(transfer *x)
{
	thread_wait(&x->changed, &x->lock, 200);
}

void transfer_wake(transfer *x)
{
	if (x->wake_fd >= 0)
		eventfd_write(x->wake_fd, 1);
}

void transfer_fail(transfer *x, gradcomp_status status, const gradcomp_error *err)
{
	pthread_mutex_lock(&x->lock);
	/* A failure that only follows from another node's is not reported. */
	if (!x->status && !atomic_load(&x->stopping)) {
		x->status = status;
		x->error = *err;
	}
	atomic_store(&x->stopping, true);
	pthread_cond_broadcast(&x->changed);
	pthread_mutex_unlock(&x->lock);
	transfer_wake(x);
}

void transfer_release(transfer *x, transfer_buffer *b)
{
	pthread_mutex_lock(&x->lock);
	if (!--b->refs) {
		transfer_push(b->own ? &x->free_own : &x->free_in, b);
		pthread_cond_broadcast(&x->changed);
	}
	pthread_mutex_unlock(&x->lock);
	transfer_wake(x);
}
