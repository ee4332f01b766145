#include "tools/stage_nodes.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bootstrap/rendezvous.h"
#include "base/number.h"

/* The job is there to copy: what the user has set for training is not meant for it. */
static const char *const settings[] = {"gradcomp.compressor=none",
                                       "gradcomp.collective=rhd",
                                       "gradcomp.report=",
                                       "gradcomp.record=",
                                       "gradcomp.trace=",
                                       "operators.threads=1",
                                       NULL};

static int number_of(const char *variable, int otherwise)
{
	const char *text = getenv(variable);
	int64_t n;
	return text && number_int(text, &n) == NUMBER_OK && n >= 0 && n <= 1 << 20 ? (int)n : otherwise;
}

int stage_nodes_count(void)
{
	return number_of(STAGE_RENDEZVOUS_RANKS, 1);
}

static void tell(void *ctx, const char *text)
{
	(void)ctx;
	fprintf(stderr, "gradcomp: %s\n", text);
}

static int ask(void *ctx)
{
	int (*const *stop)(void) = ctx;

	return (*stop)();
}

gradcomp_status stage_nodes_open(int pmix, int (*stop)(void), gradcomp_job **job, gradcomp_error *err)
{
	const char *set[sizeof settings / sizeof *settings];
	gradcomp_job_options o = {.struct_size = sizeof o, .settings = set};
	rendezvous_client_options who = {.struct_size = sizeof who,
	                                 .where = getenv(STAGE_RENDEZVOUS),
	                                 .token = getenv(STAGE_RENDEZVOUS_TOKEN),
	                                 .rank = number_of(STAGE_RENDEZVOUS_RANK, -1),
	                                 .nranks = stage_nodes_count(),
	                                 .stop = ask,
	                                 .waiting = tell,
	                                 .ctx = &stop};
	rendezvous_client *client = NULL;
	gradcomp_status st = GRADCOMP_OK;
	*job = NULL;
	memcpy(set, settings, sizeof settings);
	/* Its lines would stand between those of the progress. */
	if (!getenv("GRADCOMP_LOG"))
		set[sizeof settings / sizeof *settings - 2] = "gradcomp.log=warn";
	if (!pmix) {
		if (!who.where || !*who.where || !who.token)
			return GRADCOMP_OK;
		st = rendezvous_connect(&who, &client, err);
		if (st)
			return st;
		o.store = rendezvous_store(client);
	}
	st = gradcomp_job_create(&o, job, err);
	rendezvous_disconnect(client);
	return st;
}
