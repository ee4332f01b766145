/* Links and codes that count what goes through them. */
#ifndef TOOLS_BENCH_COUNT_H
#define TOOLS_BENCH_COUNT_H

#include "gradcomp/collective.h"

typedef struct counted_links {
	gradcomp_links api; /* for the plugin */
	const gradcomp_links *inner;
	uint64_t bytes, messages; /* sent */
} counted_links;

void count_links(counted_links *c, const gradcomp_links *inner);

typedef struct counted_codec {
	gradcomp_codec api;
	const struct gradcomp_compressor_v1 *plugin;
	void *instance;
	uint64_t calls, numbers; /* coded */
} counted_codec;

/* The code functions of a compressor's instance. */
void count_codec(counted_codec *c, const struct gradcomp_compressor_v1 *plugin, void *instance);

#endif
