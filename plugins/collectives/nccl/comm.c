/* The communicator, and how nothing here waits for ever.
 *
 * It is made from the job's own links: all ranks say whether they can, rank 0's unique
 * id goes to all. It never blocks; everything asked of it is waited for in one place
 * that also looks at the time and at the job: when a rank has died, which the job's
 * links find out and NCCL need not, the communicator is aborted, which ends its
 * kernels, and the call fails with the job's words. */
#include "plugins/collectives/nccl/comm.h"

#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <dlfcn.h>

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

/* Ends what is on the stream, and keeps why. */
static gradcomp_status give_up(nccl *n, const gradcomp_error *why, const char *what, gradcomp_error *err)
{
	double since = now();

	if (n->comm)
		n->f.ncclCommAbort(n->comm);
	n->comm = NULL;
	while (cudaStreamQuery(n->queue) == cudaErrorNotReady && now() - since < DRAIN_SECONDS)
		breathe(since);
	cudaGetLastError();
	n->host->fail(&n->failed, why->status, "%s; rank %d was waiting for NCCL to %s", why->text, n->links->rank, what);
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

	snprintf(said, sizeof said, "%s%s%s", n->f.ncclGetErrorString(rc), last && *last ? ": " : "",
	         last ? last : "");
	said[strcspn(said, "\n")] = 0;
	return broken(n, "NCCL", said, what, err);
}

/* Until NCCL has nothing more to do before the host may go on, and then, with
 * `stream`, until the event has come. */
static gradcomp_status await(nccl *n, int stream, const char *what, gradcomp_error *err)
{
	double since = now();

	for (;;) {
		ncclResult_t state = ncclSuccess, rc = n->f.ncclCommGetAsyncError(n->comm, &state);
		cudaError_t e = stream ? cudaEventQuery(n->event) : cudaSuccess;
		gradcomp_error why = {0};

		if (rc || (state != ncclSuccess && state != ncclInProgress))
			return nccl_broken(n, rc ? rc : state, what, err);
		if (e != cudaSuccess && e != cudaErrorNotReady)
			return broken(n, "CUDA", cudaGetErrorString(e), what, err);
		if (state == ncclSuccess && e == cudaSuccess)
			return GRADCOMP_OK;
		if (job_failure(n, &why))
			return give_up(n, &why, what, err);
		if (now() - since > n->timeout) {
			n->host->fail(&why, GRADCOMP_ERR_TIMEOUT, "nccl: nothing came in %g s, the limit (timeout=)", n->timeout);
			return give_up(n, &why, what, err);
		}
		breathe(since);
	}
}

gradcomp_status nccl_launched(nccl *n, ncclResult_t rc, const char *what, gradcomp_error *err)
{
	if (rc != ncclSuccess && rc != ncclInProgress)
		return nccl_broken(n, rc, what, err);
	return await(n, 0, what, err);
}

gradcomp_status nccl_done(nccl *n, const char *what, gradcomp_error *err)
{
	cudaError_t e = cudaEventRecord(n->event, n->queue);

	return e ? broken(n, "CUDA", cudaGetErrorString(e), what, err) : await(n, 1, what, err);
}

gradcomp_status nccl_reserve(nccl *n, size_t bytes, gradcomp_error *err)
{
	cudaError_t e;
	void *p;

	if (bytes <= n->scratch_bytes)
		return GRADCOMP_OK;
	cudaFree(n->scratch);
	n->scratch = NULL;
	n->scratch_bytes = 0;
	e = cudaMalloc(&p, bytes);
	if (e)
		return n->host->fail(err, GRADCOMP_ERR_NOMEM, "nccl: no CUDA memory for %zu bytes: %s", bytes,
		                     cudaGetErrorString(e));
	n->scratch = p;
	n->scratch_bytes = bytes;
	return GRADCOMP_OK;
}

/* What this rank needs of its own. */
static gradcomp_status prepare(nccl *n, gradcomp_error *err)
{
	gradcomp_status st = nccl_load(n, err);
	cudaError_t e;

	if (st)
		return st;
	if (!GRADCOMP_HAS(n->host, operators_on) || !(n->ops = n->host->operators_on(GRADCOMP_CUDA, err)))
		return err && err->status ? err->status : GRADCOMP_ERR_UNSUPPORTED;
	e = cudaEventCreateWithFlags(&n->event, cudaEventDisableTiming);
	return e ? n->host->fail(err, GRADCOMP_ERR_IO, "nccl: no CUDA event: %s", cudaGetErrorString(e)) : GRADCOMP_OK;
}

/* All ranks can, or all fail: those that can by the number of one that cannot. */
static gradcomp_status all_can(nccl *n, gradcomp_status mine, gradcomp_error *err)
{
	int64_t worst = mine ? n->links->rank + 1 : 0;
	gradcomp_error inner = {0};
	gradcomp_status st = ring_allreduce(n->ring, &worst, 1, GRADCOMP_I64, GRADCOMP_MAX, 1.0, &inner);

	if (mine)
		return mine;
	if (st)
		return n->host->fail(err, st, "%s", inner.text);
	return !worst ? GRADCOMP_OK
	              : n->host->fail(err, GRADCOMP_ERR_PEER, "nccl: rank %lld of the group cannot use NCCL, see its own error",
	                              (long long)worst - 1);
}

gradcomp_status nccl_ready(nccl *n, gradcomp_error *err)
{
	static const char what[] = "bring all ranks together";
	ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
	gradcomp_error own = {0};
	gradcomp_status st;
	ncclUniqueId id;
	ncclResult_t rc = ncclSuccess;

	if (n->failed.status)
		return n->host->fail(err, n->failed.status, "%s", n->failed.text);
	if (n->comm)
		return GRADCOMP_OK;
	memset(&id, 0, sizeof id);
	st = prepare(n, &own);
	if (!st && !n->links->rank && (rc = n->f.ncclGetUniqueId(&id)))
		st = n->host->fail(&own, GRADCOMP_ERR_IO, "nccl: no unique id: %s", n->f.ncclGetErrorString(rc));
	st = all_can(n, st, &own);
	if (!st)
		st = ring_broadcast(n->ring, &id, sizeof id, 0, &own);
	if (st) {
		n->host->fail(&n->failed, st, "%s", own.text);
		return n->host->fail(err, st, "%s", own.text);
	}
	config.blocking = 0;
	return nccl_launched(n, n->f.ncclCommInitRankConfig(&n->comm, n->links->nranks, id, n->links->rank, &config), what,
	                     err);
}

void nccl_close(nccl *n)
{
	gradcomp_error why;
	double since = now();
	ncclResult_t state = ncclInProgress;

	if (n->comm) {
		n->f.ncclCommFinalize(n->comm);
		while (!n->f.ncclCommGetAsyncError(n->comm, &state) && state == ncclInProgress && !job_failure(n, &why) &&
		       now() - since < DRAIN_SECONDS)
			breathe(since);
		if (state == ncclSuccess)
			n->f.ncclCommDestroy(n->comm);
		else
			n->f.ncclCommAbort(n->comm);
	}
	if (n->event)
		cudaEventDestroy(n->event);
	if (n->scratch)
		cudaFree(n->scratch);
}

gradcomp_status nccl_load(nccl *n, gradcomp_error *err)
{
	/* Never unloaded: it leaves threads behind. */
	void *library = dlopen("libnccl.so.2", RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);

	if (!library)
		return n->host->fail(err, GRADCOMP_ERR_UNSUPPORTED,
		                     "nccl: %s; install NCCL, or name its folder in LD_LIBRARY_PATH", dlerror());
#define NCCL_SYMBOL(name) \
	*(void **)&n->f.name = dlsym(library, #name); \
	if (!n->f.name) \
		return n->host->fail(err, GRADCOMP_ERR_UNSUPPORTED, \
		                     "nccl: libnccl.so.2 has no %s: it must be of version 2.18 or later", #name);
	NCCL_FUNCTIONS(NCCL_SYMBOL)
	return GRADCOMP_OK;
}
