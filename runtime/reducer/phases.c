#include "reducer/phases.h"

#include <pthread.h>
#include <stdatomic.h>

static pthread_rwlock_t lock = PTHREAD_RWLOCK_INITIALIZER; /* held by those that call the watcher, too */
static gradcomp_phase_watcher *watcher;
static void *watcher_ctx;
static atomic_bool watched;

void phases_watch(gradcomp_phase_watcher *watch, void *ctx)
{
	pthread_rwlock_wrlock(&lock);
	watcher = watch;
	watcher_ctx = ctx;
	atomic_store(&watched, watch != NULL);
	pthread_rwlock_unlock(&lock);
}

void phases_tell(gradcomp_phase phase, uint32_t bucket, bool begins)
{
	if (!atomic_load_explicit(&watched, memory_order_relaxed))
		return;
	pthread_rwlock_rdlock(&lock);
	if (watcher)
		watcher(watcher_ctx, phase, bucket, begins);
	pthread_rwlock_unlock(&lock);
}
