/* Which compressors and collectives a coder can be made of. */
#ifndef CODER_CODER_SPEC_H
#define CODER_CODER_SPEC_H

#include <stdbool.h>

#include "plugin/spec_table.h"

/* A coder's SPECs come to this. Lives as long as the table they came from. */
typedef struct coder_parts {
	const struct gradcomp_compressor_v1 *compressor;
	const struct gradcomp_collective_v1 *collective;
	const plugin *collective_plugin;
	const spec *compressor_spec, *collective_spec;
	bool dense;  /* numbers go as they are, in their own type */
	bool device; /* in GPU memory */
} coder_parts;

/* NULL stands for what is configured; a collective that nobody configured is the default one, or the first installed one
 * that serves. With `device` it is that for devices, and for codes one of two levels, which sends less between nodes,
 * where the group has `levels` (group_has_levels()) and nobody configured that either. */
gradcomp_status coder_choose(spec_table *t, const char *compressor, const char *collective, bool device, bool levels,
                             coder_parts *out, gradcomp_error *err);
/* Does what gradcomp_coder_check() does, with settings that are given. */
gradcomp_status coder_check(const config *c, const char *compressor, const char *collective, gradcomp_error *err);
/* Makes an instance of a compressor that codes; it must code from the first call on. */
gradcomp_status coder_instance(const coder_parts *parts, const gradcomp_host *host, const gradcomp_layout *layout,
                               void **instance, gradcomp_error *err);

#endif
