/* Finds out from what all ranks have measured which of them holds up the others, and by what. It is a pure function of
 * a table, and reads no clock. It names a rank only where the evidence is clear: rather none than a wrong one. */
#ifndef JOB_SLOW_RANK_H
#define JOB_SLOW_RANK_H

#include <stdbool.h>
#include <stddef.h>

/* One rank's totals since its job began, of the steps that count: neither the first nor one in which memory grew.
 * Seconds and bytes; all are numbers of a rank_times record (rank_times.h), in this order, and 0 is not known. */
typedef struct rank_times {
	double steps;
	double step_s;     /* whole steps */
	double own_s;      /* the program's part of them: from a step's end to the last gradient of the next */
	double load_s;     /* the time in that in which it waits for gradcomp's datasets */
	double code_s;     /* encoding and decoding, summed over messages */
	double exchange_s; /* exchanging likewise; it includes waiting for late ranks */
	double wait_s;     /* from the last gradient to the end of the step */
	double usual_s;    /* the median own part of the latest steps */
	double off_s; /* how far the mean own part of a step may be off: its standard error, steps in a row being alike */
	/* A step whose own part is more than twice the usual one has a pause: their number, and what they were longer. */
	double pauses, pause_s;
	double cpu_s, cpu_own_s; /* the process computed so much in some steps' own part, which was so long */
	double samples;          /* that gradcomp's datasets gave */
	double speed_s;          /* a fixed piece of arithmetic takes so long */
	double queue_s;          /* the process's first thread has waited for a processor */
	/* The link that has been busy for longest: bytes, seconds in which the peer could have taken some, bytes a second
	 * at best lately, the peer's rank plus 1; 1 when the rate is what the link carries, 0 when it is at least that. */
	double link_bytes, link_s, link_rate, link_peer, link_full;
} rank_times;
#define RANK_TIMES_FIELDS (sizeof(rank_times) / sizeof(double))

/* Files of report.metrics have the number: new ones come last. */
typedef enum slow_kind {
	SLOW_NOTHING,
	SLOW_DATA,
	SLOW_PAUSES,
	SLOW_WORK,
	/* All four are slow computing: the processor is slow, or others use it, or the rank waits for something; or it
	 * is not known why. */
	SLOW_CLOCK,
	SLOW_SHARED,
	SLOW_IDLE,
	SLOW_COMPUTING,
	SLOW_LINK,
	SLOW_KINDS
} slow_kind;

typedef struct slow_rank {
	slow_kind kind;
	int rank, peer; /* peer: the other end of a slow link, else -1 */
	double share;   /* it costs so much of a step */
	/* Seconds of its own part of a step, and of the others', the median; of a link bytes a second. */
	double own, usual;
	double part; /* so many seconds of that are of its kind; of work and clocks: how many times the others' */
} slow_rank;

/* It is told where it costs more than this share of a step. */
#define SLOW_RANK_TOLD 0.05

/* Looks at n ranks' totals. False, and kind NOTHING, where none costs more than SLOW_RANK_TOLD, or it is not clear
 * which, or there is no memory to find out. */
bool slow_rank_find(const rank_times *t, int n, slow_rank *out);
/* Returns the bytes a second that the rank's busiest link carries; 0 where it was never full, or is not known. */
double slow_rank_link(const rank_times *t);
/* "slow computing", for people and programs. */
const char *slow_rank_kind(slow_kind kind);
/* The first kind that has the same name. */
slow_kind slow_rank_family(slow_kind kind);
/* Says what is to be done about it, as an imperative. */
const char *slow_rank_advice(slow_kind kind);
/* Writes why it is thought so, at most `room` bytes: "its own part of a step takes 51.2 ms, the others' 30.1 ms". */
void slow_rank_evidence(const slow_rank *s, char *out, size_t room);
/* Writes the line for people: "rank 3 on n2 costs 23 % of a step: slow computing, its own part ...: look at ...". */
void slow_rank_line(const slow_rank *s, const char *host, char *out, size_t room);

#endif
