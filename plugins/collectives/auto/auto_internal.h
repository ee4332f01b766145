/* auto: the algorithms it chooses from, and what the links were measured to cost. */
#ifndef PLUGINS_COLLECTIVES_AUTO_AUTO_INTERNAL_H
#define PLUGINS_COLLECTIVES_AUTO_AUTO_INTERNAL_H

#include "plugins/common/collectives/direct.h"
#include "plugins/common/collectives/hier.h"
#include "plugins/common/collectives/rhd.h"
#include "plugins/common/collectives/ring.h"

typedef enum way { DOUBLED, PEERS, TREE, HALVED, LEVELS, RING, ACROSS, STRAIGHT, WAYS } way;

/* Seconds of a message of sizes[k] bytes, by CALL_WITHIN and CALL_BETWEEN. In between
 * it is a line: short and long messages begin in different ways. */
#define FIT_SIZES 7
extern const uint32_t fit_sizes[FIT_SIZES];
typedef struct link_fit {
	double seconds[CALL_LEVELS][FIT_SIZES];
	double further[CALL_LEVELS]; /* of a short one that is posted at the same time as another */
} link_fit;

/* A choice follows from this. */
typedef struct auto_shape {
	int nranks;
	ring_shape ring;
	call_senders to_all; /* ACROSS's and STRAIGHT's */
	rhd_shape *rhd;
	const hier_shape *levels; /* NULL: there are none */
	int across;               /* few ranks of several nodes: stripes may go straight to all others */
	uint64_t straight; /* the least bytes of a block that goes straight from its rank to all others; 0: none does */
	link_fit fit;      /* equal on all ranks, to the bit */
} auto_shape;

typedef struct automatic {
	const gradcomp_host *host;
	const gradcomp_links *links;
	ring *ring;
	rhd *rhd;         /* calls down the tree take the one inside of it */
	hier *levels;     /* NULL: there are none */
	direct *straight; /* NULL: nothing goes so */
	uint64_t *counts; /* sizes of the blocks of an all-reduce that ends so: nranks */
	int measured;
	auto_shape shape;
	struct {
		uint64_t bytes; /* 0: none */
		way way;
	} last[CALL_BROADCAST + 1]; /* chosen since it was measured, by call */
} automatic;

/* Says if stripes may go straight between nodes. */
int auto_across(int nranks, int nnodes);
/* The least block that goes straight where all ranks are on one node; 0: none does. */
uint64_t auto_straight(int nranks, int nnodes, int one_copy);
/* The fastest way by what was measured, on all ranks the same, and its load; `out` may be NULL. */
way auto_best(auto_shape *s, call_kind call, uint64_t bytes, call_cost *out);
/* Does the same, and sets the parts up for it. */
way auto_choose(automatic *a, call_kind call, uint64_t bytes);
gradcomp_status auto_predict(const link_fit *fit, int32_t nranks, int32_t nnodes, size_t chunk, uint32_t primitive,
                             uint64_t bytes, gradcomp_call_load *out, gradcomp_error *err);

/* "8000/9000/...": nanoseconds by size and of a further message, within a node and, behind those, between nodes; without
 * that of a further message it is half of the shortest. -1 when it is no such list. */
int auto_fit_read(const char *text, link_fit *out);
/* Measures, once; logs what came out. To be called before there is a choice. */
gradcomp_status auto_measure(automatic *a, gradcomp_error *err);
/* "all-reduce: peers to 4K, ring" of all calls, for the log. */
void auto_describe(automatic *a, char *out, size_t capacity);

#endif
