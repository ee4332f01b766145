/* A call with every allocation failing in turn, the first, then the second, until there is none left to fail:
 * it fails in words or needs it not, and keeps neither memory nor descriptors. One TAP line says how many were
 * tried, and how many of them the call needs: more than `least`. */
#ifndef TESTS_SUPPORT_INJECT_EACH_ALLOCATION_H
#define TESTS_SUPPORT_INJECT_EACH_ALLOCATION_H

#include "gradcomp/abi.h"

typedef struct each_allocation {
	const char *what;
	gradcomp_status (*call)(gradcomp_error *err);
	int least;
	void (*prepare)(void); /* before each call; nothing fails there. NULL: nothing is prepared */
	const char *(*wrong)(gradcomp_status
	                             status); /* after each call: what else is wrong, or NULL. NULL: nothing is asked */
} each_allocation;

void each_allocation_fails(const each_allocation *of);

#endif
