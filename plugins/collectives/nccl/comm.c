/* The communicator, and how nothing here waits for ever.
 *
 * The ranks of an instance meet once, by the job's own links: all say whether they can, and rank 0's unique
 * id makes the communicator. Nothing of it is another instance's: those may meet at the same time, on threads that
 * come in another order on every rank. What is split off it (ncclCommSplit) shares nothing with it either, as
 * config.splitShare of the parent says, which is 0 unless NCCL_COMM_SPLIT_SHARE_RESOURCES is set: whoever is
 * aborted would end the kernels of all others, and their results would look whole.
 *
 * A communicator never blocks; everything asked of it is waited for in one place
 * that also looks at the time and at the job: when a rank has died, which the job's
 * links find out and NCCL need not, the communicator is aborted, which ends its
 * kernels, and the call fails with the job's words. */
#include "plugins/collectives/nccl/comm.h"
#include "plugins/collectives/nccl/relaxed.h"

#include <dlfcn.h>
#include <link.h>
#include <pthread.h>
#include <sched.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* The job's links take a moment to name a rank that NCCL has lost already. */
#define NEWS_SECONDS 3.0
#define SPIN_SECONDS 100e-6
#define NAP_NS 50000
/* An aborted kernel is gone after this, or the device is lost. */
#define DRAIN_SECONDS 10.0

static double now(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void breathe(double since)
{
	static const struct timespec nap = {.tv_nsec = NAP_NS};
	if (now() - since < SPIN_SECONDS)
		sched_yield();
	else
		nanosleep(&nap, NULL);
}

int nccl_on_device(const void *buf)
{
	struct cudaPointerAttributes a;
	if (!buf)
		return 0;
	if (cudaPointerGetAttributes(&a, buf) == cudaSuccess)
		return a.type == cudaMemoryTypeDevice || a.type == cudaMemoryTypeManaged;
	cudaGetLastError(); /* not to be found by the application */
	return 0;
}

static gradcomp_status job_failure(const nccl *n, gradcomp_error *err)
{
	const gradcomp_links *l = n->links;
	return GRADCOMP_HAS(l, failure) && l->failure ? l->failure(l->ctx, err) : GRADCOMP_OK;
}

static void *abort_one(void *arg)
{
	nccl *m = arg;
	m->f.ncclCommAbort(m->comm);
	m->comm = NULL;
	return NULL;
}

/* Aborts n and those whose work is on the same stream, which would not end either. An abort returns when what the
 * communicator has on the stream is over, which may be behind another's that is to be aborted: so they go on at the
 * same time. n's own is this thread's, which may have asked NCCL for something (2.18 asks the thread for it). */
static void abort_all(nccl *n)
{
	if (n->dividing)
		abort_one(n); /* nothing has been launched; a thread of NCCL's writes to others until this is over */
	for (nccl *m = n->with; m && m != n; m = m->with)
		m->aborting = m->comm && !pthread_create(&m->aborter, NULL, abort_one, m);
	if (n->comm)
		abort_one(n);
	for (nccl *m = n->with; m && m != n; m = m->with) {
		if (m->aborting)
			pthread_join(m->aborter, NULL);
		else if (m->comm)
			abort_one(m);
		m->aborting = 0;
	}
}

static bool has_work(const nccl *n)
{
	return cudaStreamQuery_relaxed(n->queue) == cudaErrorNotReady ||
	       (n->enqueues && n->other_queue && cudaStreamQuery_relaxed(n->other_queue) == cudaErrorNotReady);
}

/* Ends what is on the streams, and keeps why. */
static gradcomp_status give_up(nccl *n, const gradcomp_error *why, const char *what, gradcomp_error *err)
{
	double since = now();
	abort_all(n);
	while (has_work(n) && now() - since < DRAIN_SECONDS)
		breathe(since);
	cudaGetLastError();
	n->host->fail(&n->failed, why->status, "%s; rank %d was waiting for NCCL to %s", why->text, n->links->rank,
	              what);
	for (nccl *m = n->with; m && m != n; m = m->with)
		m->failed = n->failed;
	return n->host->fail(err, n->failed.status, "%s", n->failed.text);
}

/* NCCL or CUDA says that it cannot go on. If a rank has died, that is why. */
static gradcomp_status broken(nccl *n, const char *who, const char *said, const char *what, gradcomp_error *err)
{
	gradcomp_error why = {0};
	double since = now();
	while (!job_failure(n, &why) && now() - since < NEWS_SECONDS)
		breathe(since);
	if (!why.status)
		n->host->fail(&why, GRADCOMP_ERR_IO, "%s: %s", who, said);
	return give_up(n, &why, what, err);
}

static gradcomp_status nccl_broken(nccl *n, ncclResult_t rc, const char *what, gradcomp_error *err)
{
	const char *last = n->comm ? n->f.ncclGetLastError(n->comm) : "";
	char said[256];
	snprintf(said, sizeof said, "%s%s%s", n->f.ncclGetErrorString(rc), last && *last ? ": " : "", last ? last : "");
	said[strcspn(said, "\n")] = 0;
	return broken(n, "NCCL", said, what, err);
}

/* Finds out if NCCL has nothing more to do before the host may go on and, with `stream`, if the event has come.
 * Fails when that will not happen, with nothing left on the stream. */
static gradcomp_status look(nccl *n, ncclComm_t comm, int stream, double since, const char *what, int *over,
                            gradcomp_error *err)
{
	ncclResult_t state = ncclSuccess, rc = n->f.ncclCommGetAsyncError(comm, &state);
	cudaError_t e = stream ? cudaEventQuery_relaxed(n->event) : cudaSuccess;
	gradcomp_error why = {0};
	*over = 0;
	if (rc || (state != ncclSuccess && state != ncclInProgress))
		return nccl_broken(n, rc ? rc : state, what, err);
	if (e != cudaSuccess && e != cudaErrorNotReady)
		return broken(n, "CUDA", cudaGetErrorString(e), what, err);
	if (state == ncclSuccess && e == cudaSuccess) {
		*over = 1;
		return GRADCOMP_OK;
	}
	if (job_failure(n, &why))
		return give_up(n, &why, what, err);
	if (now() - since > n->timeout) {
		n->host->fail(&why, GRADCOMP_ERR_TIMEOUT, "nccl: nothing came in %g s, the limit (timeout=)",
		              n->timeout);
		return give_up(n, &why, what, err);
	}
	return GRADCOMP_OK;
}

static gradcomp_status await(nccl *n, ncclComm_t comm, int stream, const char *what, gradcomp_error *err)
{
	double since = now();
	int over = 0;
	gradcomp_status st = look(n, comm, stream, since, what, &over, err);
	while (!st && !over) {
		breathe(since);
		st = look(n, comm, stream, since, what, &over, err);
	}
	return st;
}

gradcomp_status nccl_launched(nccl *n, ncclResult_t rc, const char *what, gradcomp_error *err)
{
	if (!nccl_going(rc))
		return nccl_broken(n, rc, what, err);
	gradcomp_status st = await(n, n->comm, 0, what, err);
	if (!st && n->latest && *n->latest) {
		cudaError_t e = cudaEventRecord(*n->latest, n->queue);
		st = e ? broken(n, "CUDA", cudaGetErrorString(e), what, err) : GRADCOMP_OK;
	}
	return st;
}

/* From here on the stream owes what is on it now. */
static gradcomp_status record(nccl *n, gradcomp_error *err)
{
	cudaError_t e = cudaEventRecord(n->event, n->queue);
	n->owes = !e;
	n->more = 0;
	n->since = now();
	return e ? broken(n, "CUDA", cudaGetErrorString(e), n->last, err) : GRADCOMP_OK;
}

gradcomp_status nccl_done(nccl *n, const char *what, gradcomp_error *err)
{
	gradcomp_status st;
	snprintf(n->last, sizeof n->last, "%s", what);
	n->more = 1;
	if (n->enqueues && n->owes)
		return GRADCOMP_OK;
	st = record(n, err);
	if (st || n->enqueues)
		return st;
	n->owes = 0;
	return await(n, n->comm, 1, what, err);
}

gradcomp_status nccl_watch(nccl *n, int *busy, gradcomp_error *err)
{
	int over = 1;
	gradcomp_status st = GRADCOMP_OK;
	*busy = 0;
	if (n->failed.status)
		return n->host->fail(err, n->failed.status, "%s", n->failed.text);
	if (n->comm && n->owes)
		st = look(n, n->comm, 1, n->since, n->last, &over, err);
	if (!st && over)
		n->owes = 0;
	/* Work that has come behind it may be what waits for a rank that is gone. */
	if (!st && over && n->comm && n->more) {
		st = record(n, err);
		if (!st)
			st = look(n, n->comm, 1, n->since, n->last, &over, err);
		n->owes = !st && !over;
	}
	*busy = !st && n->owes;
	return st;
}

void nccl_take_queue(nccl *n, cudaStream_t queue)
{
	char *const scratch = n->scratch;
	const size_t bytes = n->scratch_bytes;
	if (queue == n->queue)
		return;
	n->scratch = n->other_scratch;
	n->scratch_bytes = n->other_scratch_bytes;
	n->other_scratch = scratch;
	n->other_scratch_bytes = bytes;
	n->other_queue = n->queue;
	n->queue = queue;
}

gradcomp_status nccl_reserve(nccl *n, size_t bytes, gradcomp_error *err)
{
	const size_t room = bytes > 2 * n->scratch_bytes ? bytes : 2 * n->scratch_bytes;
	void *p;
	if (bytes <= n->scratch_bytes)
		return GRADCOMP_OK;
	cudaError_t e = cudaMalloc_relaxed(&p, room);
	if (e)
		cudaGetLastError(); /* not to be found by the application */
	if (e)
		return n->host->fail(err, GRADCOMP_ERR_NOMEM, "nccl: no CUDA memory for %zu bytes: %s", room,
		                     cudaGetErrorString(e));
	if (n->scratch)
		n->outgrown[n->noutgrown++] = n->scratch;
	n->scratch = p;
	n->scratch_bytes = room;
	return GRADCOMP_OK;
}

enum { OLDEST = 21800 };

/* NCCL's functions in *f; or why not, in `why`. What is asked of NCCL has been the same since the version OLDEST, and a
 * configuration of this build's header says how long it is: neither needs NCCL to be of the header's version. */
static int load(nccl_functions *f, char *why, size_t size)
{
	int version = 0;
	/* Never unloaded: it leaves threads behind. What the process has loaded by this name is taken before any file. */
	void *library = dlopen("libnccl.so.2", RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
	if (!library) {
		snprintf(why, size, "%s; install NCCL, or name its folder in LD_LIBRARY_PATH", dlerror());
		return 0;
	}
	*(void **)&f->ncclGetVersion = dlsym(library, "ncclGetVersion");
	if (f->ncclGetVersion && !f->ncclGetVersion(&version) && version < OLDEST) {
		snprintf(why, size, "libnccl.so.2 is of version %d, older than 2.18 (%d): install NCCL 2.18 or later",
		         version, OLDEST);
		return 0;
	}
#define NCCL_SYMBOL(name) \
	*(void **)&f->name = dlsym(library, #name); \
	if (!f->name) { \
		snprintf(why, size, "libnccl.so.2 has no %s: it must be of version 2.18 or later", #name); \
		return 0; \
	}
	NCCL_FUNCTIONS(NCCL_SYMBOL)
	return 1;
}

static int version_by(ncclResult_t (*ask)(int *version))
{
	int version = 0;
	return ask && !ask(&version) ? version : 0;
}

/* Returns the version of libnccl.so.2, 21803 for 2.18.3. */
static int version_of(const nccl *n)
{
	return version_by(n->f.ncclGetVersion);
}

typedef struct libraries {
	const char *used;
	char other[256];
} libraries;

/* For dl_iterate_phdr(), which goes on until it is not 0. */
static int find_another(struct dl_phdr_info *loaded, size_t size, void *ctx)
{
	static const char name[] = "libnccl.so";
	libraries *l = ctx;
	const char *slash = strrchr(loaded->dlpi_name, '/');
	(void)size;
	if (strncmp(slash ? slash + 1 : loaded->dlpi_name, name, sizeof name - 1) ||
	    !strcmp(loaded->dlpi_name, l->used))
		return 0;
	snprintf(l->other, sizeof l->other, "%s", loaded->dlpi_name);
	return 1;
}

/* Returns 1 when another file of NCCL's is loaded, too: then `text` says which, and which is used. */
static int loaded_twice(const nccl *n, char *text, size_t size)
{
	Dl_info used;
	libraries l = {0};
	ncclResult_t (*version)(int *) = NULL;
	if (!dladdr(*(void *const *)&n->f.ncclGetVersion, &used))
		return 0;
	l.used = used.dli_fname;
	if (!dl_iterate_phdr(find_another, &l))
		return 0;
	void *other = dlopen(l.other, RTLD_LAZY | RTLD_NOLOAD);
	if (other) {
		*(void **)&version = dlsym(other, "ncclGetVersion");
		dlclose(other);
	}
	snprintf(
		text, size,
		"nccl: two NCCLs are loaded in this process: %s (version %d), which gradcomp uses, and %s (version %d): "
		"PyTorch brings one along, so take the folder of another out of LD_LIBRARY_PATH and LD_PRELOAD",
		l.used, version_of(n), l.other, version_by(version));
	return 1;
}

/* Makes what this rank needs of its own. */
static gradcomp_status prepare(nccl *n, gradcomp_error *err)
{
	char why[256];
	gradcomp_status st = load(&n->f, why, sizeof why)
	                             ? GRADCOMP_OK
	                             : n->host->fail(err, GRADCOMP_ERR_UNSUPPORTED, "nccl: %s", why);
	cudaError_t e;
	if (st)
		return st;
	if (!GRADCOMP_HAS(n->host, operators_on) || !(n->ops = n->host->operators_on(GRADCOMP_CUDA, err)))
		return err && err->status ? err->status : GRADCOMP_ERR_UNSUPPORTED;
	e = cudaEventCreateWithFlags(&n->event, cudaEventDisableTiming);
	return e ? n->host->fail(err, GRADCOMP_ERR_IO, "nccl: no CUDA event: %s", cudaGetErrorString(e)) : GRADCOMP_OK;
}

/* Finished, or aborted where that does not come about: not without a rank that is lost, which may be of this node. */
static void end_comm(nccl *n, ncclComm_t comm)
{
	gradcomp_error why;
	double since = now();
	ncclResult_t state = ncclInProgress;
	if (!job_failure(n, &why))
		n->f.ncclCommFinalize(comm);
	while (!job_failure(n, &why) && !n->f.ncclCommGetAsyncError(comm, &state) && state == ncclInProgress &&
	       now() - since < DRAIN_SECONDS)
		breathe(since);
	if (state == ncclSuccess)
		n->f.ncclCommDestroy(comm);
	else
		n->f.ncclCommAbort(comm);
}

/* The reason of a rank that cannot, on all others. */
static gradcomp_status share_reason(nccl *n, int rank, gradcomp_status mine, gradcomp_error *err)
{
	static const char prefix[] = "nccl: ";
	struct {
		char host[64], text[380];
	} told = {{0}, {0}};
	gradcomp_error inner = {0};
	if (mine) {
		gethostname(told.host, sizeof told.host - 1);
		const char *own = err->text;
		own += strncmp(own, prefix, sizeof prefix - 1) ? 0 : sizeof prefix - 1;
		snprintf(told.text, sizeof told.text, "%.*s", (int)sizeof told.text - 1, own);
	}
	gradcomp_status st = ring_broadcast(n->ring, &told, sizeof told, rank, &inner);
	if (mine)
		return mine;
	told.host[sizeof told.host - 1] = told.text[sizeof told.text - 1] = 0;
	return st ? n->host->fail(err, st, "%s", inner.text)
	          : n->host->fail(err, GRADCOMP_ERR_PEER, "nccl: rank %d of the group, on %s, cannot use NCCL: %s",
	                          rank, told.host, told.text);
}

/* All ranks can, or all fail: those that can with the reason of one that cannot. */
static gradcomp_status all_can(nccl *n, gradcomp_status mine, gradcomp_error *err)
{
	const gradcomp_host *h = n->host;
	const int version = mine ? 0 : version_of(n), rank = n->links->rank;
	char two[700] = "";
	int64_t most[] = {mine ? rank + 1 : 0, version, -version,
	                  !mine && loaded_twice(n, two, sizeof two) ? n->links->nranks - rank : 0};
	gradcomp_error inner = {0};
	gradcomp_status st = ring_allreduce(n->ring, most, 4, GRADCOMP_I64, GRADCOMP_MAX, 1.0, &inner);
	if (st)
		return mine ? mine : h->fail(err, st, "%s", inner.text);
	if (most[0])
		return share_reason(n, (int)most[0] - 1, mine, err);
	if (most[1] != -most[2])
		return h->fail(
			err, GRADCOMP_ERR_MISMATCH,
			"nccl: ranks have libnccl.so.2 of versions %d and %d, this one %d: all need the same, from "
			"one package or one virtual environment",
			(int)-most[2], (int)most[1], version);
	/* One rank says it for all. */
	if (*two && most[3] == n->links->nranks - rank)
		h->log(h->ctx, GRADCOMP_LOG_WARN, "%s", two);
	return nccl_own_gpus(n, version, err);
}

/* Makes the communicator, for which every rank of the group comes here. */
static gradcomp_status meet(nccl *n, const char *what, gradcomp_error *err)
{
	ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
	gradcomp_error own = {0};
	ncclUniqueId id = {{0}};
	ncclResult_t rc;
	gradcomp_status mine = prepare(n, &own), st;
	if (!mine && !n->links->rank && (rc = n->f.ncclGetUniqueId(&id)))
		mine = n->host->fail(&own, GRADCOMP_ERR_IO, "nccl: no unique id: %s", n->f.ncclGetErrorString(rc));
	st = ring_broadcast(n->ring, &id, sizeof id, 0, err);
	if (st)
		return mine ? n->host->fail(err, mine, "%s", own.text) : st;
	st = all_can(n, mine, &own);
	if (st)
		return n->host->fail(err, st, "%s", own.text);
	config.blocking = 0;
	rc = n->f.ncclCommInitRankConfig(&n->comm, n->links->nranks, id, n->links->rank, &config);
	return nccl_launched(n, rc, what, err);
}

gradcomp_status nccl_ready(nccl *n, gradcomp_error *err)
{
	gradcomp_status st;
	if (n->failed.status)
		return n->host->fail(err, n->failed.status, "%s", n->failed.text);
	if (n->comm)
		return GRADCOMP_OK;
	st = meet(n, "bring all ranks together", err);
	if (st && !n->failed.status)
		n->host->fail(&n->failed, st, "%s", err ? err->text : "NCCL cannot be used");
	return st;
}

gradcomp_status nccl_split(nccl *n, nccl *out, int colour, gradcomp_error *err)
{
	static const char what[] = "divide the ranks";
	ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
	ncclComm_t none;
	cudaError_t e = cudaSuccess;
	gradcomp_status st;
	if (out) {
		out->f = n->f;
		out->ops = n->ops;
		e = cudaEventCreateWithFlags(&out->event, cudaEventDisableTiming);
	}
	config.blocking = 0;
	n->dividing = 1;
	/* A thread of NCCL's writes what is split off; it is there when n has nothing more to do. */
	st = nccl_launched(n,
	                   n->f.ncclCommSplit(n->comm, out ? colour : NCCL_SPLIT_NOCOLOR, out ? out->links->rank : 0,
	                                      out ? &out->comm : &none, &config),
	                   what, err);
	n->dividing = 0;
	if (!st && out)
		st = e ? n->host->fail(err, GRADCOMP_ERR_IO, "nccl: no CUDA event: %s", cudaGetErrorString(e))
		       : await(out, out->comm, 0, what, err);
	if (st && !n->failed.status)
		n->host->fail(&n->failed, st, "%s", err ? err->text : "NCCL cannot be used");
	return st;
}

void nccl_close(nccl *n)
{
	gradcomp_error why = {0};
	/* Otherwise those that are closed one after another wait for work on the stream that does not end. */
	if (n->comm && job_failure(n, &why))
		abort_all(n);
	if (n->comm)
		end_comm(n, n->comm);
	if (n->event)
		cudaEventDestroy(n->event);
	while (n->noutgrown)
		cudaFree_relaxed(n->outgrown[--n->noutgrown]);
	if (n->scratch)
		cudaFree_relaxed(n->scratch);
	if (n->other_scratch)
		cudaFree_relaxed(n->other_scratch);
}

const char *nccl_unusable(void)
{
	static _Thread_local char why[256];
	nccl_functions f;
	return load(&f, why, sizeof why) ? NULL : why;
}
