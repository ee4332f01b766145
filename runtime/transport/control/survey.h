/* How fast the networks are that nodes have in common. */
#ifndef TRANSPORT_CONTROL_SURVEY_H
#define TRANSPORT_CONTROL_SURVEY_H

#include "transport/core/transport.h"

#define SURVEY_UNKNOWN UINT32_MAX

/* Measures the Mbit/s to the next node over each network, on the lowest rank of a node; SURVEY_UNKNOWN for what
 * this rank cannot tell. Takes some 0.1 s, and 0.5 s where networks do not answer. */
void survey_measure(transport *t, uint32_t rate[NETWORKS_MAX], double deadline);
void survey_log(const transport *t);
/* Reads and forgets what has come over the connection; false at its end. */
bool survey_swallow(int fd);

#endif
