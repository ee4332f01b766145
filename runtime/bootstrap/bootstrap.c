/* Chooses the method: the application's store, then that of gradcomp run, then PMIx, then a job of
 * one rank. */
#include "bootstrap/bootstrap.h"

#include "base/error.h"
#include "base/number.h"
#include "bootstrap/rendezvous.h"
#include "bootstrap/run_env.h"

#include <stdlib.h>
#include <string.h>

static gradcomp_status single_open(void **ctx, const config *c, const gradcomp_store *store, int *rank, int *nranks,
                                   gradcomp_error *err)
{
	(void)c, (void)store, (void)err;
	*ctx = NULL;
	*rank = 0;
	*nranks = 1;
	return GRADCOMP_OK;
}

static gradcomp_status single_exchange(void *ctx, const char *mine, double timeout, char **all, gradcomp_error *err)
{
	(void)ctx, (void)timeout;
	all[0] = strdup(mine);
	return all[0] ? GRADCOMP_OK : error_set(err, GRADCOMP_ERR_NOMEM, "bootstrap: no memory");
}

static void single_close(void *ctx)
{
	(void)ctx;
}

static const bootstrap_method bootstrap_single = {
	.name = "single", .open = single_open, .exchange = single_exchange, .close = single_close};

/* Without --mpi=pmix srun starts tasks that have no PMIx. Each would be a job of its own, and
 * the ranks would train apart without a word. */
static gradcomp_status refuse_task_without_pmix(gradcomp_error *err)
{
	const char *tasks = getenv("SLURM_STEP_NUM_TASKS"), *proc = getenv("SLURM_PROCID");
	if (!tasks || !proc || atoi(tasks) < 2)
		return GRADCOMP_OK;
	return error_set(err, GRADCOMP_ERR_STATE,
	                 "this task is one of %d of a Slurm step, but srun gave it no PMIx: type srun --mpi=pmix ... "
	                 "(or ask for MpiDefault=pmix in slurm.conf)",
	                 atoi(tasks));
}

/* A job that a launcher starts below a task of Slurm or mpirun inherits that task's PMIx. Its ranks would wait for
 * each other in a job of another size, and blame a neighbour. */
static gradcomp_status refuse_other_world(const bootstrap *w, gradcomp_error *err)
{
	const char *world = getenv("WORLD_SIZE"), *rank = getenv("RANK");
	if (!world || !rank || atoi(world) == w->nranks)
		return GRADCOMP_OK;
	return error_set(
		err, GRADCOMP_ERR_MISMATCH,
		"this is rank %.20s of WORLD_SIZE=%.20s, but the PMIx server has %d rank%s: a launcher below srun or "
		"mpirun has started it; start the ranks with torchrun, or one task a rank (srun --mpi=pmix -n %.20s ...)",
		rank, world, w->nranks, w->nranks == 1 ? "" : "s", world);
}

static int number_of(const char *variable)
{
	const char *text = getenv(variable);
	int64_t n;
	return text && number_int(text, &n) == NUMBER_OK && n >= 0 && n <= 1 << 20 ? (int)n : -1;
}

/* Ranks that gradcomp run has started have its rendezvous server for a store. */
static gradcomp_status connect_run(const config *c, bootstrap *w, gradcomp_error *err)
{
	rendezvous_client_options who = {.struct_size = sizeof who,
	                                 .where = getenv(RUN_ENV_WHERE),
	                                 .token = getenv(RUN_ENV_TOKEN),
	                                 .rank = number_of("RANK"),
	                                 .nranks = number_of("WORLD_SIZE"),
	                                 .timeout = config_float(c, SET_TRANSPORT_TIMEOUT)};
	if (!who.token || who.rank < 0 || who.nranks < 1 || who.rank >= who.nranks)
		return error_set(
			err, GRADCOMP_ERR_STATE,
			"gradcomp run has started this process, but RANK, WORLD_SIZE or GRADCOMP_RUN_TOKEN is not what it "
			"set: leave them as they were, or take GRADCOMP_RUN out of the environment too");
	return rendezvous_connect(&who, &w->client, err);
}

/* A launcher has started several ranks, and each would be a job of its own. */
static gradcomp_status refuse_lonely_rank(gradcomp_error *err)
{
	int world = number_of("WORLD_SIZE"), rank = number_of("RANK");
	if (world < 2 || rank < 0) { /* MPICH's mpiexec has PMI, and no PMIx */
		world = number_of("PMI_SIZE");
		rank = number_of("PMI_RANK");
	}
	if (world < 2 || rank < 0)
		return GRADCOMP_OK;
	return error_set(
		err, GRADCOMP_ERR_STATE,
		"this is rank %d of %d, but nothing says where the others are: start the program with srun --mpi=pmix, mpirun of Open "
		"MPI or gradcomp run -n %d, or give the job torch.distributed's store (gradcomp.torch); for a job of one rank each, "
		"take WORLD_SIZE and PMI_SIZE out of the environment",
		rank, world, world);
}

gradcomp_status bootstrap_open(const config *c, const gradcomp_store *store, bootstrap *w, gradcomp_error *err)
{
	gradcomp_status st = GRADCOMP_OK;
	memset(w, 0, sizeof *w);
	if (!store && getenv(RUN_ENV_WHERE)) {
		st = connect_run(c, w, err);
		if (st)
			return st;
		store = rendezvous_store(w->client);
	}
	if (store) {
		w->method = &bootstrap_store;
	} else if (getenv("PMIX_NAMESPACE")) {
		w->method = &bootstrap_step;
	} else {
		st = refuse_task_without_pmix(err);
		st = st ? st : refuse_lonely_rank(err);
		w->method = &bootstrap_single;
	}
	if (!st)
		st = w->method->open(&w->ctx, c, store, &w->rank, &w->nranks, err);
	if (!st && !store && w->method != &bootstrap_single) {
		st = refuse_other_world(w, err);
		if (st)
			w->method->close(w->ctx);
	}
	if (st) {
		rendezvous_disconnect(w->client);
		memset(w, 0, sizeof *w);
	}
	return st;
}

gradcomp_status bootstrap_exchange(bootstrap *w, const char *mine, double timeout, char **all, gradcomp_error *err)
{
	if (strlen(mine) >= BOOTSTRAP_MAX)
		return error_set(err, GRADCOMP_ERR_INTERNAL, "bootstrap: endpoint record of %zu bytes, the limit is %d",
		                 strlen(mine), BOOTSTRAP_MAX - 1);
	return w->method->exchange(w->ctx, mine, timeout, all, err);
}

void bootstrap_heard(bootstrap *w, double limit)
{
	if (w->method->heard)
		w->method->heard(w->ctx, limit);
}

void bootstrap_close(bootstrap *w)
{
	if (w->method)
		w->method->close(w->ctx);
	rendezvous_disconnect(w->client);
	memset(w, 0, sizeof *w);
}
