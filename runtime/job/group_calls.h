/* The calls of a group that are under way, and who carries them out.
 *
 * Collectives stand in a queue. One thread at a time carries out the first of them (`busy`): one that waits for a
 * call, or else a thread of the group's own, so that a call that is waited for at once costs no change of threads.
 * Messages are moved in the same way, by one thread at a time, beside them (group_messages.c). */
#ifndef JOB_GROUP_CALLS_H
#define JOB_GROUP_CALLS_H

#include "base/error.h"
#include "job/job.h"

typedef enum message_state {
	MESSAGE_NEW,
	MESSAGE_OPEN,    /* RECV: nothing has matched */
	MESSAGE_OFFERED, /* SEND: the other rank has been told of it, and is to ask for it */
	MESSAGE_TAKEN,   /* RECV: the other rank has been asked for it */
	MESSAGE_MOVING,
	MESSAGE_ENDED /* not yet `done` */
} message_state;

struct gradcomp_group_request {
	group_calls *calls;
	gradcomp_call call;
	gradcomp_group_request *next;
	double began, deadline; /* of clock_now(); deadline 0: none */
	bool plain;             /* what fails ends the job, not the group */
	bool commits;           /* it ends with group_commit() */
	bool done;              /* under the lock */
	/* A message's, of the thread that moves them. */
	message_state state;
	int peer; /* that it goes to, or comes from; GRADCOMP_ANY_RANK: not known yet */
	uint64_t number;
	/* How it has ended. */
	gradcomp_status status;
	gradcomp_error error;
};

/* A thread that carries out what nobody waits for. */
typedef struct group_worker {
	group_calls *calls;
	pthread_t thread;
	pthread_cond_t work;
	bool started, resting, stopping;
	bool hurry; /* it is not to wait for somebody who may wait for the call soon */
	/* All with the lock held. When the oldest call was begun that there is work on, 0: there is none; whether no
	 * other thread is at it; does some of it, without the lock meanwhile. */
	double (*pending)(const group_calls *c);
	bool (*vacant)(const group_calls *c);
	void (*carry)(group_calls *c);
} group_worker;

struct group_messages;

struct group_calls {
	gradcomp_group *group; /* NULL: it has been freed */
	pthread_mutex_t lock;  /* guards what follows */
	pthread_cond_t ended;  /* a call has ended, or a thread has stopped carrying calls out */
	int references;        /* the group's, and those of requests */
	gradcomp_group_request *first, **last;
	bool busy;
	channel *at_work; /* the collectives', while it is open */
	bool over;        /* the group has ended: calls return `why` */
	bool abrupt;      /* it has, while calls were in flight or wanted */
	bool told;        /* group_dismiss() */
	gradcomp_error why;
	group_worker collectives, messages;
	struct group_messages *carrier; /* made on first use */
};

/* INVALID, UNSUPPORTED, RANGE: the call, as it is now, cannot be carried out. */
gradcomp_status group_call_check(const gradcomp_group *g, const gradcomp_call *call, gradcomp_error *err);
/* Carries out a collective that has been checked, over the group's blocking collective, which is open. plain: what that
 * does not serve is UNSUPPORTED. */
gradcomp_status group_collective(gradcomp_group *g, const gradcomp_call *call, bool plain, gradcomp_error *err);

/* NULL: no memory. */
group_calls *group_calls_create(gradcomp_group *g);
/* Ends what is under way, stops the threads and closes what they use. After it the group can be used anew. */
void group_calls_close(group_calls *c);
/* After that: the group's reference is gone. NULL is fine. */
void group_calls_free(group_calls *c);
/* Carries out a call as the functions do that the group had before gradcomp_call: on this thread, after what was
 * started, and a failure ends the job. */
gradcomp_status group_run(gradcomp_group *g, const gradcomp_call *call, gradcomp_error *err);
/* The group has ended for all calls; with the lock held. The first end counts. The thread that carries out a collective
 * closes its channel then. */
static inline void group_calls_over(group_calls *c, gradcomp_status status, const char *text)
{
	if (c->over)
		return;
	c->over = true;
	error_set(&c->why, status == GRADCOMP_ERR_TIMEOUT ? GRADCOMP_ERR_STATE : status, "%s", text);
	if (c->at_work)
		transport_end_channel(c->at_work, status, text);
}
/* Has the thread do what there is; with the lock held. Where there can be none, others that wait do it. */
void group_worker_wake(group_worker *w, bool hurry);

/* group_messages.c; with the lock held, which they leave at times. */
static inline bool group_call_is_message(const gradcomp_group_request *q)
{
	return q->call.kind == GRADCOMP_CALL_SEND || q->call.kind == GRADCOMP_CALL_RECV;
}
/* On success the message is on its way. */
gradcomp_status group_message_post(group_calls *c, gradcomp_group_request *q, gradcomp_error *err);
/* Moves what can be moved without waiting, unless another thread is at it. */
void group_messages_turn(group_calls *c);
/* Moves messages until q has ended, or until that time (0: no limit). */
void group_message_wait(group_calls *c, gradcomp_group_request *q, double until);
/* The group has ended: so do all messages. */
void group_messages_end(group_calls *c);
/* Frees what messages take, when they have ended; with the lock held, which is left meanwhile. */
void group_messages_free(group_calls *c);
double group_messages_pending(const group_calls *c);
bool group_messages_vacant(const group_calls *c);
void group_messages_carry(group_calls *c);

#endif
