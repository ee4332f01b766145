/* Runs of floats under a code on their way between ranks: coding one, noting what that
 * lost, and reading what another rank coded.
 *
 * A coded run is a head of 8 bytes, the length of the code, and the code. Where the
 * code's bound is short both go as one message, at the bound; else the head goes ahead,
 * and the code follows in a message of its length. */
#ifndef PLUGINS_COMMON_COLLECTIVES_CODING_H
#define PLUGINS_COMMON_COLLECTIVES_CODING_H

#include "gradcomp/collective.h"

#define CODING_HEAD sizeof(uint64_t)
#define CODING_SHORT 8192u
/* Numbers a piece of a block is a multiple of: codes work in blocks of their own. */
#define CODING_GRAIN 1024u

typedef struct coding {
	const gradcomp_host *host;
	const gradcomp_links *links;
	const char *who; /* for messages */
	const gradcomp_codec *codec;
} coding;

static inline uint64_t coding_bound(const coding *c, uint64_t n)
{
	return c->codec->bound(c->codec->ctx, n);
}

/* Returns 1 when what is lost in a sum is lost for good: then partial sums are not coded where that can be helped. */
static inline int coding_loses(const gradcomp_codec *codec, const float *residual)
{
	return codec->flags & GRADCOMP_CODEC_LOSES && !residual;
}

/* Returns 1 when a run of n goes as two messages. */
static inline int coding_long(const coding *c, uint64_t n)
{
	return coding_bound(c, n) > CODING_SHORT;
}

/* Bytes of the slot that holds every run of up to `piece` of blocks offset[b]..offset[b+1],
 * b < nblocks, cut into pieces: a code of less numbers may be longer. */
uint64_t coding_stride(const coding *c, const uint64_t *offset, int nblocks, uint64_t piece);

/* Codes x into a slot. */
gradcomp_status coding_make(const coding *c, const float *x, uint64_t n, uint64_t counter, char *slot,
                            gradcomp_error *err);
/* Computes what the code in `slot` lost of x, a partial sum: e = x - decoded. NULL: nobody asks. */
gradcomp_status coding_loss(const coding *c, const float *x, uint64_t n, const char *slot, float *e,
                            gradcomp_error *err);
/* The same of the complete sum times `scale`, which x takes the decoded numbers of: the
 * loss is in units of the sum. */
gradcomp_status coding_settle(const coding *c, float *x, uint64_t n, double scale, const char *slot, float *e,
                              gradcomp_error *err);

/* Posts a coded run; req: two of them. */
gradcomp_status coding_send(const coding *c, int peer, const char *slot, uint64_t n, gradcomp_request *req,
                            gradcomp_error *err);
gradcomp_status coding_sent(const coding *c, uint64_t n, gradcomp_request *req, gradcomp_error *err);
/* Posts the receive of what comes first: all of it, or its head; then waits for it, and
 * for the code that follows. */
gradcomp_status coding_recv(const coding *c, int peer, char *slot, uint64_t n, gradcomp_request *req,
                            gradcomp_error *err);
gradcomp_status coding_arrive(const coding *c, int peer, char *slot, uint64_t n, gradcomp_request *req,
                              gradcomp_error *err);
/* Decodes onto x, or in its place. */
gradcomp_status coding_add(const coding *c, const char *slot, float *x, uint64_t n, gradcomp_error *err);
gradcomp_status coding_take(const coding *c, const char *slot, float *x, uint64_t n, gradcomp_error *err);

#endif
