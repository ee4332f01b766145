/* Links between ranks that are threads of this process, as strict as gradcomp/collective.h
 * allows: a send is complete when its receiver has taken it, nothing moves before somebody waits, a
 * multicast not before all its receivers are there, and what nobody waits for is noticed. When all
 * ranks wait for each other they are told so. */
#ifndef CONFORMANCE_KIT_FABRIC_H
#define CONFORMANCE_KIT_FABRIC_H

#include "gradcomp/collective.h"

#include <pthread.h>
#include <stdbool.h>

enum { LINKS_RANKS_MAX = 16 };

typedef struct transfer transfer;

typedef struct link_end {
	gradcomp_links api;
	struct fabric *fabric;
	transfer *posted;       /* those of this call, newest first */
	const transfer *awaits; /* NULL: it runs */
	bool running;           /* inside a call */
	int calls;              /* sends and receives so far, and peers of multicasts */
	int multicasts;         /* those of this call */
	int fail_at;            /* the number of the one that fails; 0: none */
	bool met_failure;       /* an error was returned to this rank */
} link_end;

typedef struct fabric {
	int P;
	int32_t node[LINKS_RANKS_MAX];
	link_end ends[LINKS_RANKS_MAX];
	pthread_mutex_t lock;
	pthread_cond_t moved;
	bool stuck;             /* all waited for each other */
	gradcomp_error failure; /* that of all links; status 0: none */
} fabric;

/* Connects P ranks, `per_node` neighbours on a node. */
void fabric_open(fabric *f, int P, int per_node);
void fabric_close(fabric *f);
/* All ranks are about to call, each on its thread. */
void fabric_enter(fabric *f);
/* A rank has returned: how many of its transfers it has not waited for. */
int fabric_leave(fabric *f, int rank);
/* All have: the next call begins afresh. */
void fabric_forget(fabric *f);

#endif
