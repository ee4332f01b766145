/* Shared by the files of the roster. */
#ifndef JOB_ROSTER_INTERNAL_H
#define JOB_ROSTER_INTERNAL_H

#include "job/roster.h"

#include "base/clock.h"
#include "transport/control/listener.h"
#include "transport/core/endpoint.h"

#include <pthread.h>
#include <stdbool.h>

/* An answer that has not come by then will not: the other end's thread does nothing else. */
#define ROSTER_CALL_SECONDS 1.0
#define ROSTER_MESSAGE_MAX (256u << 20)

enum { ROSTER_PREPARE = 1, ROSTER_ACCEPT, ROSTER_COMMIT };
enum { ROSTER_PROMISE = 1, ROSTER_ACCEPTED, ROSTER_REFUSED, ROSTER_NOT_YET, ROSTER_AHEAD };

typedef struct roster_blob {
	unsigned char *p; /* of malloc(), or NULL */
	size_t bytes;
} roster_blob;

/* A question or an answer; doc/wire-format.md. */
typedef struct roster_message {
	uint32_t type, from;
	uint64_t epoch, ballot;
	roster_blob view;  /* question: the sender's epoch; AHEAD: the answerer's */
	roster_blob value; /* proposed or accepted for the next one */
	roster_blob text;  /* question: why; PROMISE: endpoint record */
} roster_message;

struct roster {
	int rank, n;
	endpoint *endpoints;
	int32_t *node;
	address own[ADDRESS_MAX];
	int nown;
	unsigned char key[SECRET_BYTES], base[SECRET_BYTES]; /* of connections; of epochs' secrets */
	listener listener;
	int wake_fd;
	pthread_t thread;
	bool running;

	pthread_mutex_t lock; /* of what follows */
	pthread_cond_t changed;
	bool quit, closed; /* closed: takes part in nothing more */
	transport *transport;
	roster_view view;
	roster_blob decided;    /* the same as bytes; empty at epoch 0 */
	const char *record;     /* while this rank is in roster_agree() */
	uint64_t promised, accepted;
	roster_blob accepted_value;
	double heard; /* when somebody last led an agreement */
};

/* roster_message.c */
int roster_message_write(const roster_message *m, roster_blob *out);
/* Takes what it needs out of `in`; -1 when it is not valid or without memory. */
int roster_message_read(const roster_blob *in, roster_message *m);
void roster_message_clear(roster_message *m);
int roster_blob_copy(roster_blob *out, const void *p, size_t bytes);
int roster_view_write(const roster_view *v, roster_blob *out);
int roster_view_read(const roster_blob *in, int n, roster_view *v);
bool roster_view_has(const roster_view *v, int rank);

/* roster.c: the answer of this rank. Locks. */
void roster_answer(roster *m, const roster_message *question, roster_message *answer);

/* roster_call.c: asks ranks[0..n-1] all at once; answers[i].type is 0 where there is none. */
void roster_ask(roster *m, const int *ranks, int n, const roster_message *question, roster_message *answers);
/* One end of a call, behind the handshake: 0, or -1. */
int roster_send(int fd, const roster_blob *b, double until);
int roster_receive(int fd, roster_blob *b, double until);

#endif
