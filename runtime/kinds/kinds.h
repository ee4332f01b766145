/* The kinds of reducers that make others: which of them a compressor's text asks for. */
#ifndef KINDS_KINDS_H
#define KINDS_KINDS_H

#include <stdbool.h>

#include "plugin/spec_table.h"
#include "reducer/reducer.h"

typedef struct reducer_kind {
	const char *what; /* for messages: "compressor auto, which ..." */
	/* Asks whether a text (NULL: the configured one) is for it. */
	bool (*requested)(const config *c, const char *compressor);
	/* Checks such a text before anything is made. */
	gradcomp_status (*check)(spec_table *specs, const char *compressor, const char *collective,
	                         gradcomp_error *err);
	/* Makes a reducer of it, like gradcomp_reducer_create(), without a delay. */
	gradcomp_status (*open)(gradcomp_group *group, const gradcomp_tensor_desc *tensors, uint32_t ntensors,
	                        const gradcomp_reducer_options *options, gradcomp_reducer **out, gradcomp_error *err);
} reducer_kind;

/* Returns the kind that a compressor's text (NULL: the configured one) asks for; NULL: one that reduces itself, with one
 * SPEC. */
const reducer_kind *kinds_find(const config *c, const char *compressor);
/* Makes a reducer of the kind that the options ask for, like gradcomp_reducer_create(), without a delay. */
gradcomp_status kinds_open(gradcomp_group *group, const gradcomp_tensor_desc *tensors, uint32_t ntensors,
                           const gradcomp_reducer_options *options, gradcomp_reducer **out, gradcomp_error *err);

#endif
