/* What a plugin needs to know before there is any work: how much scratch operators take
 * where the work will be. Tables differ in this. */
#ifndef PLUGINS_COMMON_ROOM_H
#define PLUGINS_COMMON_ROOM_H

#include "gradcomp/compressor.h"

/* The table whose *_scratch() functions hold for work of this layout. */
static inline const gradcomp_operators *room_table(const gradcomp_host *host, const gradcomp_layout *layout)
{
	const gradcomp_operators *there = NULL;
	if (GRADCOMP_HAS(layout, device) && layout->device != GRADCOMP_HOST && GRADCOMP_HAS(host, operators_on))
		there = host->operators_on(layout->device, NULL);
	return there ? there : host->operators;
}

#endif
