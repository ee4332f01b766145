/* A reducer whose tensors have SPECs by their names (config/name_rules.h): it stands before a reducer for each SPEC
 * that some tensor has. These reduce side by side, and what they do for a tensor is what they do anywhere.
 *
 * Its state is a head and the states of all of them. A load that one of them refuses is undone in the others. */
#ifndef KINDS_BY_NAME_H
#define KINDS_BY_NAME_H

#include "plugin/spec_table.h"
#include "reducer/reducer.h"

/* Returns true when a compressor's text (NULL: the configured one) asks for it. */
bool by_name_requested(const config *c, const char *compressor);
/* Holds all SPECs against the plugins that are installed. */
gradcomp_status by_name_check(spec_table *specs, const char *compressor, const char *collective, gradcomp_error *err);
/* Does what gradcomp_reducer_create() does, without a delay. */
gradcomp_status by_name_open(gradcomp_group *group, const gradcomp_tensor_desc *tensors, uint32_t ntensors,
                             const gradcomp_reducer_options *options, gradcomp_reducer **out, gradcomp_error *err);

#endif
