#include "reducer/phases.h"

#include <pthread.h>
#include <stdatomic.h>

static pthread_rwlock_t lock = PTHREAD_RWLOCK_INITIALIZER; /* held by those that call the watcher, too */
static gradcomp_phase_watcher *_Atomic watcher;
static void *watcher_ctx;

void phases_watch(gradcomp_phase_watcher *watch, void *ctx)
{
	pthread_rwlock_wrlock(&lock);
	watcher_ctx = ctx;
	atomic_store(&watcher, watch);
	pthread_rwlock_unlock(&lock);
}

void phases_tell(gradcomp_phase phase, uint32_t bucket, bool begins)
{
	if (!atomic_load_explicit(&watcher, memory_order_relaxed))
		return;
	pthread_rwlock_rdlock(&lock);
	gradcomp_phase_watcher *watch = atomic_load(&watcher);
	if (watch)
		watch(watcher_ctx, phase, bucket, begins);
	pthread_rwlock_unlock(&lock);
}
