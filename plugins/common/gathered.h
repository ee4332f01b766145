/* Payloads that all ranks gather and that all have one length: what is checked
 * before anything in them is looked at. */
#ifndef PLUGINS_COMMON_GATHERED_H
#define PLUGINS_COMMON_GATHERED_H

#include "gradcomp/compressor.h"

static inline gradcomp_round gathered_round(uint64_t bytes)
{
	return (gradcomp_round){.pattern = GRADCOMP_GATHERED, .flags = GRADCOMP_ROUND_FIXED, .bound = bytes};
}

static inline gradcomp_status gathered_expect(const gradcomp_host *host, const gradcomp_layout *layout,
                                              const char *name, const gradcomp_work *work,
                                              const gradcomp_payload *in, uint32_t n, uint64_t bytes,
                                              gradcomp_error *err)
{
	if (n != (uint32_t)layout->nranks)
		return host->fail(err, GRADCOMP_ERR_INTERNAL, "%s: %u payloads for %d ranks", name, n, layout->nranks);
	for (uint32_t w = 0; w < n; w++)
		if (in[w].bytes != bytes)
			return host->fail(err, GRADCOMP_ERR_MISMATCH,
			                  "%s: rank %u sent %llu bytes for bucket %u of %llu numbers, %llu are right",
			                  name, w, (unsigned long long)in[w].bytes, work->bucket->index,
			                  (unsigned long long)work->bucket->numel, (unsigned long long)bytes);
	return GRADCOMP_OK;
}

/* Where a check of a rank's payload notes a fault. On the host that is `mine`, so
 * that the rank can be named; on a device it is the host's own word. */
static inline int *gathered_fault(const gradcomp_work *work, int *mine)
{
	return work->device == GRADCOMP_HOST ? mine : work->fault;
}

static inline gradcomp_status gathered_refuse(const gradcomp_host *host, const char *name,
                                              const gradcomp_work *work, uint32_t rank, const char *what,
                                              gradcomp_error *err)
{
	return host->fail(err, GRADCOMP_ERR_MISMATCH, "%s: rank %u sent %s for bucket %u", name, rank, what,
	                  work->bucket->index);
}

#endif
