/* The command asks this without a job; what programs may ask is in gradcomp/gradcomp.h. */
#ifndef API_QUERY_H
#define API_QUERY_H

#include "config/config.h"

/* gradcomp check: whether a job with these options of srun could start, as far as the node of
 * srun can tell. The SPECs are those among the options, or NULL for what the settings say.
 * options NULL: they are in the environment, and named in GRADCOMP_OPTIONS. */
gradcomp_status query_check_options(const config_option *options, const char *compressor, const char *collective,
                                    gradcomp_error *err);

#endif
