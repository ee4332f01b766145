/* How the ranks of a job find each other: each gives a short text, its endpoint record, and
 * gets those of all.
 *
 * Three methods behind one table: the step of a PMIx server (step.c), the key-value store of a
 * framework, and a job of one rank. */
#ifndef BOOTSTRAP_BOOTSTRAP_H
#define BOOTSTRAP_BOOTSTRAP_H

#include "config/config.h"
#include "gradcomp/gradcomp.h"

/* The most bytes a rank's text may have, with the final 0. */
#define BOOTSTRAP_MAX 4096

typedef struct bootstrap_method {
	const char *name;
	/* On failure nothing is left and *ctx is untouched. `c` outlives it. */
	gradcomp_status (*open)(void **ctx, const config *c, const gradcomp_store *store, int *rank, int *nranks,
	                        gradcomp_error *err);
	/* Exchanges the ranks' texts. Collective, once. `mine` may be a refusal; then, or when another rank's is
	 * one, only that rank's text need be there. all[r] (nranks of them, each to be freed, the array is the
	 * caller's) becomes rank r's text. */
	gradcomp_status (*exchange)(void *ctx, const char *mine, double timeout, char **all, gradcomp_error *err);
	/* Collective, when the records say that the job cannot begin: returns when all ranks are here,
	 * or after `limit` seconds. NULL: nobody depends on this process for it. */
	void (*heard)(void *ctx, double limit);
	void (*close)(void *ctx);
} bootstrap_method;

/* A text "E<rank> <reason>": the rank cannot join, and so no other can. */
#define BOOTSTRAP_REFUSAL 'E'

struct rendezvous_client;

typedef struct bootstrap {
	const bootstrap_method *method;
	void *ctx;
	int rank, nranks;
	struct rendezvous_client *client; /* its rendezvous, where gradcomp run has started this rank */
} bootstrap;

/* `store` may be NULL. Says what to type when srun was started without PMIx. */
gradcomp_status bootstrap_open(const config *c, const gradcomp_store *store, bootstrap *w, gradcomp_error *err);
gradcomp_status bootstrap_exchange(bootstrap *w, const char *mine, double timeout, char **all, gradcomp_error *err);
void bootstrap_heard(bootstrap *w, double limit);
void bootstrap_close(bootstrap *w);

extern const bootstrap_method bootstrap_store, bootstrap_step;

#endif
