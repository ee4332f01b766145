/* Words that all ranks of a reducer share between two steps, over the collective that
 * carries its gradients, whatever that serves and wherever it wants its buffers. For the
 * exchange thread; all ranks alike. */
#ifndef REDUCER_WORD_SYNC_H
#define REDUCER_WORD_SYNC_H

#include "reducer/reducer.h"

/* Returns 1 when the collective can carry words at all. */
int word_sync_supported(const reducer *r);
/* Makes w[i] the largest of all ranks' w[i]. */
gradcomp_status word_sync_max(reducer *r, int64_t *w, size_t n, gradcomp_error *err);
/* Makes w what the group's first rank has. */
gradcomp_status word_sync_bcast(reducer *r, int64_t *w, size_t n, gradcomp_error *err);

#endif
