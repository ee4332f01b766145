/* bytes: gives a payload of its own in place of the host's. */
#define FAULT_NAME "replaces_payload"
#define FAULT_ENCODE \
	if (work->bucket->numel) \
		out->data = (void *)work->flat; \
	out->bytes = FAULT_BOUND(work->bucket->numel); \
	return GRADCOMP_OK
#include "tests/plugins/faulty_compressor.h"
