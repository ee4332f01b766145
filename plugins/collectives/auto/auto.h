/* auto: the algorithms it chooses from, and what the links were measured to cost. */
#ifndef AUTO_H
#define AUTO_H

#include "hier.h"
#include "rhd.h"
#include "ring.h"

typedef enum way { DOUBLED, PEERS, TREE, HALVED, LEVELS, RING, WAYS } way;

/* Seconds of a message of sizes[k] bytes, by LOAD_WITHIN and LOAD_BETWEEN. In between
 * it is a line: short and long messages begin in different ways. */
#define FIT_SIZES 7
extern const uint32_t fit_sizes[FIT_SIZES];
typedef struct link_fit {
	double seconds[LOAD_WAYS][FIT_SIZES];
} link_fit;

typedef struct automatic {
	const gradcomp_host *host;
	const gradcomp_links *links;
	ring *ring;
	rhd *rhd;     /* its tree is the tree */
	hier *levels; /* NULL: there are none */
	int senders; /* see ring_load() */
	int measured;
	link_fit fit; /* equal on all ranks, to the bit */
} automatic;

/* The fastest way by what was measured, on all ranks the same. */
way auto_choose(automatic *a, load_call call, uint64_t bytes);
/* Sets the parts up for one way of an all-reduce or a broadcast. */
void auto_set(automatic *a, way w);

/* "8000/9000/...": nanoseconds by size, within a node and, behind those, between nodes;
 * -1 when it is no such list. */
int auto_fit_read(const char *text, link_fit *out);
/* Measures, once; logs what came out. To be called before there is a choice. */
gradcomp_status auto_measure(automatic *a, gradcomp_error *err);
/* "all-reduce: peers to 4K, ring" of all calls, for the log. */
void auto_describe(automatic *a, char *out, size_t capacity);

#endif
