#include "base/term_watch.h"

#include <errno.h>
#include <semaphore.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/types.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/thread.h"

/* The handler touches these alone: it can run in any thread, in a child, and after term_watch_stop(). */
static _Atomic pid_t watched; /* the process; 0: none */
static atomic_bool came;
static sem_t wake;

static struct {
	void (*last)(void *ctx, int signal);
	void *ctx;
	pthread_t thread;
	pthread_mutex_t lock;
	pthread_cond_t ended;
	bool done; /* `last` is; under the lock */
} watch = {.lock = PTHREAD_MUTEX_INITIALIZER};

static void on_term(int signal_number)
{
	int saved = errno;
	if (atomic_load(&watched) == getpid()) {
		atomic_store(&came, true);
		sem_post(&wake);
	} else {
		signal(signal_number, SIG_DFL);
		raise(signal_number);
	}
	errno = saved;
}

static void *speak(void *unused)
{
	watch.last(watch.ctx, SIGTERM);
	pthread_mutex_lock(&watch.lock);
	watch.done = true;
	pthread_cond_signal(&watch.ended);
	pthread_mutex_unlock(&watch.lock);
	return unused;
}

static void end_process(void)
{
	struct sigaction plain = {.sa_handler = SIG_DFL};
	double limit = clock_now() + TERM_WATCH_SECONDS;
	pthread_t speaker;
	sigset_t term;
	if (!thread_start(&speaker, speak, NULL)) {
		pthread_mutex_lock(&watch.lock);
		while (!watch.done && clock_now() < limit)
			thread_wait(&watch.ended, &watch.lock, 100);
		pthread_mutex_unlock(&watch.lock);
	}
	sigaction(SIGTERM, &plain, NULL);
	sigemptyset(&term);
	sigaddset(&term, SIGTERM);
	pthread_sigmask(SIG_UNBLOCK, &term, NULL);
	raise(SIGTERM);
}

static void *wait_for_it(void *unused)
{
	while (sem_wait(&wake))
		continue;
	if (atomic_load(&came))
		end_process();
	return unused;
}

static bool is_ours(const struct sigaction *a)
{
	return !(a->sa_flags & SA_SIGINFO) && a->sa_handler == on_term;
}

bool term_watch_start(void (*last)(void *ctx, int signal), void *ctx)
{
	struct sigaction now, ours = {.sa_handler = on_term, .sa_flags = SA_RESTART | SA_ONSTACK};
	pid_t none = atomic_load(&watched), self = getpid();
	/* A child of a process that watches has its handler and no thread of it. */
	if (sigaction(SIGTERM, NULL, &now) ||
	    (!is_ours(&now) && (now.sa_flags & SA_SIGINFO || now.sa_handler != SIG_DFL)))
		return false;
	if (self == 1 || none == self || !atomic_compare_exchange_strong(&watched, &none, self))
		return false;
	watch.last = last;
	watch.ctx = ctx;
	watch.done = false;
	atomic_store(&came, false);
	thread_condition(&watch.ended);
	if (!sem_init(&wake, 0, 0) && !thread_start(&watch.thread, wait_for_it, NULL)) {
		sigaction(SIGTERM, &ours, NULL);
		return true;
	}
	atomic_store(&watched, 0);
	return false;
}

void term_watch_stop(void)
{
	struct sigaction now, plain = {.sa_handler = SIG_DFL};
	if (!sigaction(SIGTERM, NULL, &now) && is_ours(&now))
		sigaction(SIGTERM, &plain, NULL);
	atomic_store(&watched, 0);
	sem_post(&wake);
	pthread_join(watch.thread, NULL);
}
