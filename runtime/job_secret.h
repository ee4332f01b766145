/* The job's secret: where it comes from (setting security.secret), and the key the
 * transport gets, which is of one secret, one job and step, and one run. */
#ifndef JOB_SECRET_H
#define JOB_SECRET_H

#include "gradcomp/abi.h"
#include "transport/secret.h"

#define JOB_SECRET_TEXT 320

/* What a rank's card tells of the secret: printable, without blanks. Rank 0's has it
 * in it with "pmix"; the others tell where they look for it. A file is looked at
 * here already, so that all learn what is wrong with it. */
gradcomp_status job_secret_offer(const char *setting, int rank, char text[JOB_SECRET_TEXT], gradcomp_error *err);
/* Does another rank look at the same place as rank 0? */
gradcomp_status job_secret_alike(const char *text0, const char *text, int rank, gradcomp_error *err);
/* Every rank: the key, out of this rank's setting and rank 0's text. `space` is the
 * PMIx namespace this rank is known to share with rank 0, or NULL. */
gradcomp_status job_secret_take(const char *setting, const char *text, const char *space,
                                unsigned char key[SECRET_BYTES], gradcomp_error *err);

#endif
