/* Which processes of this node use a dataset, and which of them are alive. Each holds a lock on
 * one byte of the shared memory's file, which the kernel releases when it ends. Unlike a process
 * number this is never reused, and it is the same in every PID namespace. */
#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <sys/random.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "job/job.h"
#include "io/dataset/dataset_internal.h"

static pthread_once_t forked_once = PTHREAD_ONCE_INIT;
static pthread_mutex_t table_lock = PTHREAD_MUTEX_INITIALIZER;
static atomic_uint forks;  /* counted by process_forks() */
static uint64_t own_token; /* no other process has it; 0: not drawn yet. With table_lock. */
static atomic_uint_fast64_t seen_token;

static void forked_prepare(void)
{
	pthread_mutex_lock(&table_lock);
}

static void forked_parent(void)
{
	pthread_mutex_unlock(&table_lock);
}

static void forked_child(void)
{
	own_token = 0;
	atomic_store(&seen_token, 0);
	atomic_fetch_add(&forks, 1);
	pthread_mutex_unlock(&table_lock);
}

static void forked_install(void)
{
	pthread_atfork(forked_prepare, forked_parent, forked_child);
}

unsigned process_forks(void)
{
	pthread_once(&forked_once, forked_install);
	return atomic_load(&forks);
}

static int byte_lock(int fd, int command, unsigned at, short type, struct flock *l)
{
	*l = (struct flock){.l_type = type, .l_whence = SEEK_SET, .l_start = (off_t)at, .l_len = 1};
	return fcntl(fd, command, l);
}

/* An entry whose byte can be locked is free, or of a process that has ended. A process's own
 * locks do not show, so entries of its other datasets are compared by token. */
static gradcomp_status take_entry(gradcomp_dataset *ds, gradcomp_error *err)
{
	struct flock l;
	while (!own_token)
		if (getrandom(&own_token, sizeof own_token, 0) != sizeof own_token)
			return error_errno(err, GRADCOMP_ERR_IO, "no random numbers for a dataset");
	atomic_store(&seen_token, own_token);
	for (unsigned i = 0; i < PROCESSES; i++) {
		process *p = &ds->head->processes[i];
		unsigned generation;

		if (atomic_load(&p->token) == own_token)
			continue;
		if (byte_lock(ds->fd, F_SETLK, i, F_WRLCK, &l)) {
			if (errno == EACCES || errno == EAGAIN || errno == EINTR)
				continue;
			return error_errno(err, GRADCOMP_ERR_IO,
			                   "cannot lock a byte of a dataset's memory (descriptor %d)", ds->fd);
		}
		generation = (atomic_load(&p->generation) + 1) & 0xffff;
		atomic_store(&p->generation, generation ? generation : 1);
		atomic_store(&p->token, own_token);
		atomic_store(&ds->self, i << 4 | atomic_load(&p->generation) << 16);
		return GRADCOMP_OK;
	}
	return error_set(err, GRADCOMP_ERR_RANGE, "more than %u processes of this node use one dataset", PROCESSES);
}

gradcomp_status process_register(gradcomp_dataset *ds, gradcomp_error *err)
{
	unsigned now = process_forks();
	gradcomp_status st = GRADCOMP_OK;
	pthread_mutex_lock(&table_lock);
	if (atomic_load(&ds->forks) != now || !atomic_load(&ds->self)) {
		ds->child |= atomic_load(&ds->forks) != now;
		st = take_entry(ds, err);
		if (!st)
			atomic_store(&ds->forks, now);
	}
	pthread_mutex_unlock(&table_lock);
	return st;
}

void process_unregister(gradcomp_dataset *ds)
{
	uint32_t self = atomic_exchange(&ds->self, 0);
	struct flock l;
	if (!self)
		return;
	atomic_store(&ds->head->processes[WORD_PROCESS(self)].token, 0);
	byte_lock(ds->fd, F_SETLK, WORD_PROCESS(self), F_UNLCK, &l);
}

bool process_is_child(const gradcomp_dataset *ds)
{
	return ds->child || atomic_load(&ds->forks) != atomic_load(&forks);
}

void process_failed(gradcomp_dataset *ds, const gradcomp_error *err)
{
	failure *f = &ds->area->failed;
	unsigned none = 0;
	if (!atomic_compare_exchange_strong(&f->state, &none, 1))
		return;
	f->error = *err;
	atomic_store_explicit(&f->state, 2, memory_order_release);
}

void process_mended(gradcomp_dataset *ds)
{
	atomic_store(&ds->area->failed.state, 0);
}

bool process_lost(const gradcomp_dataset *ds)
{
	const failure *f = &ds->area->failed;
	return ds->endures && atomic_load_explicit(&f->state, memory_order_acquire) == 2 &&
	       f->error.status == GRADCOMP_ERR_PEER_LOST;
}

static gradcomp_status known_failure(const gradcomp_dataset *ds, gradcomp_error *err)
{
	const failure *f = &ds->area->failed;
	if (atomic_load_explicit(&f->state, memory_order_acquire) != 2)
		return GRADCOMP_OK;
	return error_set(err, f->error.status, "%s", f->error.text);
}

/* Returns the failure of the job, as far as this process knows now. */
static gradcomp_status job_state(gradcomp_dataset *ds, gradcomp_error *err)
{
	gradcomp_error why;
	gradcomp_status st = known_failure(ds, err);
	/* The transport of a job that outlives ranks may be replaced meanwhile; the service tells what it finds. */
	if (st || ds->child || ds->endures)
		return st;
	st = transport_failure(ds->group->job->transport, &why);
	if (st) {
		process_failed(ds, &why);
		error_set(err, st, "%s", why.text);
	}
	return st;
}

gradcomp_status process_enter(gradcomp_dataset *ds, gradcomp_error *err)
{
	gradcomp_status st;
	if (atomic_load_explicit(&ds->forks, memory_order_relaxed) !=
	    atomic_load_explicit(&forks, memory_order_relaxed)) {
		st = process_register(ds, err);
		if (st)
			return st;
	}
	if (atomic_load_explicit(&ds->stopped, memory_order_relaxed))
		return error_set(err, GRADCOMP_ERR_STATE, "the dataset was stopped");
	st = process_lost(ds) ? GRADCOMP_OK : job_state(ds, err);
	return process_outlives(ds, st) ? GRADCOMP_OK : st;
}

bool process_alive(const gradcomp_dataset *ds, uint32_t word)
{
	const process *p = &ds->head->processes[WORD_PROCESS(word)];
	struct flock l;
	if (atomic_load(&p->generation) != WORD_GENERATION(word))
		return false;
	if (atomic_load(&p->token) == atomic_load(&seen_token))
		return true;
	return byte_lock(ds->fd, F_GETLK, WORD_PROCESS(word), F_WRLCK, &l) || l.l_type != F_UNLCK;
}

static gradcomp_status go_on(gradcomp_dataset *ds, gradcomp_error *err)
{
	gradcomp_status st = job_state(ds, err);
	uint32_t rank;
	if (st || !ds->child)
		return st;
	rank = atomic_load(&ds->area->rank);
	if (rank && process_alive(ds, rank))
		return GRADCOMP_OK;
	return error_set(err, GRADCOMP_ERR_PEER, "rank %d, which this process was forked off, %s", ds->rank,
	                 rank ? "has ended" : "has freed the dataset");
}

gradcomp_status process_wait(gradcomp_dataset *ds, atomic_uint *word, uint32_t seen, gradcomp_error *err)
{
	return process_wait_ns(ds, word, seen, WAIT_NS, err);
}

gradcomp_status process_wait_ns(gradcomp_dataset *ds, atomic_uint *word, uint32_t seen, uint64_t ns,
                                gradcomp_error *err)
{
	struct timespec ts = {0, (long)(ns < WAIT_NS ? ns : WAIT_NS)};
	if (!syscall(SYS_futex, word, FUTEX_WAIT, seen, &ts, NULL, 0) || errno != ETIMEDOUT)
		return known_failure(ds, err);
	return go_on(ds, err);
}

void process_wake(atomic_uint *word)
{
	syscall(SYS_futex, word, FUTEX_WAKE, INT32_MAX, NULL, NULL, 0);
}

uint64_t process_clock_ns(void)
{
	struct timespec ts;
	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec;
}
