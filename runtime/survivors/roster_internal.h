/* Shared by the files of the roster. */
#ifndef SURVIVORS_ROSTER_INTERNAL_H
#define SURVIVORS_ROSTER_INTERNAL_H

#include "survivors/roster.h"

#include "base/clock.h"
#include "transport/control/listener.h"
#include "transport/wire/endpoint.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>

/* One round of questions takes at most so long. A rank that has not answered by then will not: its thread does
 * nothing else. */
#define ROSTER_CALL_SECONDS 1.0
/* The rank that leads asks this many others itself; when there are more, others ask for it. */
#define ROSTER_DIRECT 64
#define ROSTER_RELAYS 4 /* questions that a rank passes on at a time */
#define ROSTER_MESSAGE_MAX (16u << 20)

enum { ROSTER_PREPARE = 1, ROSTER_ACCEPT, ROSTER_COMMIT, ROSTER_TALLY, ROSTER_BUSY };

typedef struct roster_blob {
	unsigned char *p; /* made by malloc(), or NULL */
	size_t bytes;
} roster_blob;

/* A question, or what one or more ranks have answered; doc/dev/wire-format.md. Bitmaps are over the members
 * of `epoch`, in their order, and empty when no bit is set. */
typedef struct roster_message {
	uint32_t type, from, budget; /* budget: of a question, milliseconds for the answer */
	uint64_t epoch;
	uint64_t ballot;   /* question; tally: that of `value`, or 0 */
	uint64_t promised; /* tally: the highest that somebody refused for */
	roster_blob view;  /* question: the sender's epoch; tally: a newer one, which somebody has */
	roster_blob value; /* proposed or accepted for the next one */
	roster_blob text;  /* question: why */
	roster_blob set;   /* bitmap. Question: whom the other end shall ask, too; tally: who said yes */
	roster_blob late;  /* bitmap, tally: who lives and has not come */
} roster_message;

struct roster {
	int rank, n;
	endpoint *endpoints;
	int32_t *node;
	address own[ADDRESS_MAX];
	int nown;
	unsigned char key[SECRET_BYTES], base[SECRET_BYTES]; /* for connections; for epochs' secrets */
	listener listener;
	int wake_fd;
	pthread_t thread;
	bool running;
	atomic_uint_fast64_t calls, bytes;

	pthread_mutex_t lock; /* guards what follows */
	pthread_cond_t changed;
	bool quit, closed; /* closed: takes part in nothing more */
	int relays;        /* threads that pass on a question */
	transport *transport;
	roster_view view;
	roster_blob decided; /* the same as bytes; empty at epoch 0 */
	bool calling;        /* this rank is in roster_agree() */
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
/* Write and read a view of a job that began with n ranks. */
int roster_view_write(const roster_view *v, int n, roster_blob *out);
int roster_view_read(const roster_blob *in, int n, roster_view *v);
/* Bit i of a bitmap of n, which is made when it is empty; -1 without memory. */
int roster_bit_set(roster_blob *b, int n, int i);
bool roster_bit(const roster_blob *b, int i);
/* Adds what `from` says; its bitmaps count where `asked` has a bit. -1 without memory. */
int roster_tally_add(roster_message *to, const roster_message *from, const roster_blob *asked);

/* roster.c: adds the answer of this rank to a tally. Locks. */
void roster_answer(roster *m, const roster_message *question, roster_message *tally);

/* roster_call.c: asks the members that `set` names, for so many seconds at most, and adds up what they answer.
 * `relayed`: this rank passes on a question, and asks each of them itself. */
void roster_ask(roster *m, const roster_view *members, const roster_blob *set, const roster_message *question,
                double seconds, bool relayed, roster_message *tally);
/* One end of a call, behind the handshake: 0, or -1. */
int roster_send(int fd, const roster_blob *b, double until);
int roster_receive(int fd, roster_blob *b, double until);

#endif
