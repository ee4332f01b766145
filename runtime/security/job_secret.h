/* The job's secret: where it comes from (setting security.secret), and the key the
 * transport gets, which is of one secret, one job and step, and one run. */
#ifndef SECURITY_JOB_SECRET_H
#define SECURITY_JOB_SECRET_H

#include "gradcomp/abi.h"
#include "base/log.h"
#include "security/secret.h"

#define JOB_SECRET_TEXT 1024

/* The part of a rank's endpoint record that is about the secret, printable, without tabs:
 * where the rank takes it from. Rank 0's also has what the others need, sealed by MUNGE or
 * in the clear. A file, and munged, are tried here already, so that all ranks learn what is
 * wrong. `space` is the PMIx namespace all ranks are known to share, or NULL. A munged that does
 * not serve is asked again for `patience` seconds; nothing weaker takes its place. */
gradcomp_status job_secret_offer(const char *setting, int rank, const char *space, double patience, const log_sink *log,
                                 char text[JOB_SECRET_TEXT], gradcomp_error *err);
/* Checks that another rank takes the secret from where rank 0 does; MISMATCH names both. */
gradcomp_status job_secret_alike(const char *text0, const char *text, int rank, gradcomp_error *err);
/* On every rank: the key, from this rank's setting and rank 0's text; `mine` is this
 * rank's own. */
gradcomp_status job_secret_take(const char *setting, const char *text0, const char *mine, const char *space,
                                double patience, const log_sink *log, unsigned char key[SECRET_BYTES],
                                gradcomp_error *err);

#endif
