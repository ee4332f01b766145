/* A compressor's code functions as a collective calls them. */
#ifndef PLUGIN_CODE_VIEW_H
#define PLUGIN_CODE_VIEW_H

#include "gradcomp/collective.h"

typedef struct code_source {
	const struct gradcomp_compressor_v1 *compressor;
	void *instance;
} code_source;

/* Valid as long as *source, which it points to. A code that is longer than was promised fails there,
 * whatever the collective does with it. */
gradcomp_codec code_view(code_source *source);

#endif
