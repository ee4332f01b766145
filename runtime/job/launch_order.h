/* The order in which a job's communicators on a device have their turns.
 *
 * What NCCL has put on a device may hold it until the peers' has come there, so two communicators have to come in
 * one order on all ranks, on the host and on the device. Those of a group take turns: all ranks say that they have
 * come to the same turn, the first rank gives it a number, and turns begin in the order of numbers. So a rank waits
 * for nothing but turns that are under way on all ranks, in whatever order programs, threads and gradients come. It
 * takes two messages in host memory a turn. A group with one communicator, until it has a second one, has no turns.
 * What different communicators of a rank launch, of any group, comes one after another on the device too. */
#ifndef JOB_LAUNCH_ORDER_H
#define JOB_LAUNCH_ORDER_H

#include "device/device.h"

#include <pthread.h>
#include <stdbool.h>

struct coll_ctx;
struct gradcomp_group;
struct launch_order;

/* One communicator, or several whose work is on one stream. */
typedef struct launcher {
	struct launch_order *order; /* NULL: it has not joined */
	struct gradcomp_group *group;
	const device_calls *d;
	void *stream; /* of the latest turn */
	void *event;
	uint64_t turns, from; /* so far; the first that has a number */
	bool dirty;           /* launched since another followed it */
	bool active, numbered;
	struct launcher *next;
} launcher;

/* A job's. */
typedef struct launch_order {
	pthread_mutex_t lock;
	pthread_cond_t change;
	launcher *all;
} launch_order;

/* A group's, under the lock of its job's. */
typedef struct launch_turns {
	uint32_t joined;
	bool agreeing;      /* no turn begins */
	uint64_t next, now; /* numbers: to be given by the first rank; of the turn that is */
} launch_turns;

void launch_order_open(launch_order *o);
void launch_order_close(launch_order *o);
/* Collective over the group, over what carries the communicator's host memory. On a thread whose device has the
 * stream, which is where launches go, or one that a turn names and whose launches come after it; NULL: it is named by
 * each turn, and has done all when a turn ends. */
gradcomp_status launch_order_join(launcher *l, struct gradcomp_group *g, const struct coll_ctx *c,
                                  const device_calls *d, void *stream, gradcomp_error *err);
/* When nothing is launched any more. Nothing where it has not joined. */
void launch_order_leave(launcher *l);
/* Begins a turn of all ranks of the group; `within`: goes on with one, where some of them may have nothing to do.
 * What is put on the stream then comes after what others have launched. A launcher has one turn at a time, which is
 * ended, whatever has happened in it. */
gradcomp_status launch_order_begin(launcher *l, const struct coll_ctx *c, void *stream, bool within,
                                   gradcomp_error *err);
void launch_order_end(launcher *l);

#endif
