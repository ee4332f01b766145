/* One task of bench/fence: how long ranks take to learn where the others are, through PMIx. Prints two
 * numbers of seconds: a fence that collects everybody's record of BYTES, and the reading of all of them.
 *
 *     fence BYTES [lazy]
 *
 * lazy: the fence collects nothing; records are fetched from the other nodes' servers as they are read.
 */
#include <pmix.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static double now(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void need(pmix_status_t rc, const char *what)
{
	if (rc == PMIX_SUCCESS)
		return;
	fprintf(stderr, "fence: %s: %s\n", what, PMIx_Error_string(rc));
	exit(1);
}

static void get(const pmix_proc_t *self, uint32_t rank, size_t bytes)
{
	pmix_proc_t peer;
	pmix_value_t *value = NULL;
	PMIX_PROC_LOAD(&peer, self->nspace, rank);
	need(PMIx_Get(&peer, "gradcomp.bench", NULL, 0, &value), "get");
	if (value->type != PMIX_STRING || strlen(value->data.string) != bytes) {
		fprintf(stderr, "fence: rank %u's record is not what it put there\n", rank);
		exit(1);
	}
	PMIX_VALUE_RELEASE(value);
}

int main(int argc, char **argv)
{
	pmix_proc_t self, job;
	pmix_value_t *value = NULL, record;
	pmix_info_t collect;
	const bool yes = true;
	const bool lazy = argc == 3 && !strcmp(argv[2], "lazy");
	size_t bytes = argc == 2 || lazy ? strtoul(argv[1], NULL, 10) : 0;
	if (!bytes || bytes > 1 << 20) {
		fputs("usage: fence BYTES [lazy]\n", stderr);
		return 2;
	}
	need(PMIx_Init(&self, NULL, 0), "init");
	PMIX_PROC_LOAD(&job, self.nspace, PMIX_RANK_WILDCARD);
	need(PMIx_Get(&job, PMIX_JOB_SIZE, NULL, 0, &value), "job size");
	uint32_t P = value->data.uint32;
	PMIX_VALUE_RELEASE(value);
	char *text = malloc(bytes + 1);
	if (!text)
		return 1;
	memset(text, 'x', bytes);
	text[bytes] = 0;
	PMIX_VALUE_LOAD(&record, text, PMIX_STRING);
	/* All have started before the clock runs. */
	need(PMIx_Fence(NULL, 0, NULL, 0), "first fence");
	double began = now();
	need(PMIx_Put(PMIX_GLOBAL, "gradcomp.bench", &record), "put");
	need(PMIx_Commit(), "commit");
	PMIX_INFO_LOAD(&collect, PMIX_COLLECT_DATA, &yes, PMIX_BOOL);
	need(PMIx_Fence(NULL, 0, lazy ? NULL : &collect, lazy ? 0 : 1), "fence");
	double fenced = now();
	for (uint32_t r = 0; r < P; r++)
		get(&self, r, bytes);
	double read = now();
	/* No server leaves before all have been answered. */
	need(PMIx_Fence(NULL, 0, NULL, 0), "last fence");
	printf("%.9f %.9f\n", fenced - began, read - fenced);
	PMIX_VALUE_DESTRUCT(&record);
	free(text);
	PMIx_Finalize(NULL, 0);
	return 0;
}
