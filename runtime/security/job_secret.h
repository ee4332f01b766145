/* The job's secret: where it comes from (setting security.secret), and the key the
 * transport gets, which is of one secret, one job and step, and one run. */
#ifndef SECURITY_JOB_SECRET_H
#define SECURITY_JOB_SECRET_H

#include "gradcomp/abi.h"
#include "base/log.h"
#include "security/secret.h"

#define JOB_SECRET_TEXT 1024

/* What a rank's record tells of the secret, printable, without tabs: the way it takes
 * it; of rank 0 also what the others need, sealed or not. A file, and munged, are
 * tried here already, so that all learn what is wrong. `space` is the PMIx
 * namespace all ranks are known to share, or NULL. */
gradcomp_status job_secret_offer(const char *setting, int rank, const char *space, const log_sink *log,
                                 char text[JOB_SECRET_TEXT], gradcomp_error *err);
/* Does another rank take the same way as rank 0? */
gradcomp_status job_secret_alike(const char *text0, const char *text, int rank, gradcomp_error *err);
/* Every rank: the key, out of this rank's setting and rank 0's text; `mine` is this
 * rank's own. */
gradcomp_status job_secret_take(const char *setting, const char *text0, const char *mine, const char *space,
                                unsigned char key[SECRET_BYTES], gradcomp_error *err);

#endif
