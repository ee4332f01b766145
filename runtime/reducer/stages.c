#include "reducer/stages.h"

#include <pthread.h>
#include <stdatomic.h>

static pthread_rwlock_t lock = PTHREAD_RWLOCK_INITIALIZER; /* held by those that call the watcher, too */
static gradcomp_stage_watcher *watcher;
static void *watcher_ctx;
static atomic_bool watched;

void stages_watch(gradcomp_stage_watcher *watch, void *ctx)
{
	pthread_rwlock_wrlock(&lock);
	watcher = watch;
	watcher_ctx = ctx;
	atomic_store(&watched, watch != NULL);
	pthread_rwlock_unlock(&lock);
}

void stages_tell(gradcomp_stage stage, uint32_t bucket, bool begins)
{
	if (!atomic_load_explicit(&watched, memory_order_relaxed))
		return;
	pthread_rwlock_rdlock(&lock);
	if (watcher)
		watcher(watcher_ctx, stage, bucket, begins);
	pthread_rwlock_unlock(&lock);
}
