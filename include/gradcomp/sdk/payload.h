/* Payloads that all ranks gather: the round to plan, and what is checked before anything in
 * them is looked at. */
#ifndef GRADCOMP_SDK_PAYLOAD_H
#define GRADCOMP_SDK_PAYLOAD_H

#include "gradcomp/compressor.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Returns a round that is GATHERED and FIXED. */
gradcomp_round sdk_gathered_round(uint64_t bytes);
/* Checks decode()'s n payloads: one of each rank, of `bytes` bytes. The message names the rank. */
gradcomp_status sdk_gathered_expect(const gradcomp_host *host, const gradcomp_layout *layout, const char *name,
                                    const gradcomp_work *work, const gradcomp_payload *in, uint32_t n, uint64_t bytes,
                                    gradcomp_error *err);

/* Returns the word in which a check of a rank's payload notes a fault. On the host that is `mine`, so that the rank
 * can be named; on a device it is the host's own word. */
static inline int *sdk_gathered_fault(const gradcomp_work *work, int *mine)
{
	return work->device == GRADCOMP_HOST ? mine : work->fault;
}

/* Fails with MISMATCH: "NAME: rank RANK sent WHAT for bucket B". */
gradcomp_status sdk_gathered_refuse(const gradcomp_host *host, const char *name, const gradcomp_work *work,
                                    uint32_t rank, const char *what, gradcomp_error *err);

/* Fails with OVERFLOW unless all n numbers lie within -most..most, for encode() and decode() to return. On a device
 * nobody knows yet: it is noted where the host looks, and OK is returned. Needs the operator range_check. */
gradcomp_status sdk_overflow(const gradcomp_host *host, const char *name, const gradcomp_work *work, const float *x,
                             uint64_t n, float most, gradcomp_error *err);

/* Begins a payload, in the byte order of the machine. */
typedef struct sdk_payload_header {
	uint32_t kind; /* digest of the plugin's name and the version of its payloads */
	uint32_t bucket;
	uint64_t step;
	uint64_t bytes; /* behind the header */
} sdk_payload_header;

/* Returns a round for plan(): GATHERED, with at most `most` bytes behind the header. */
gradcomp_round sdk_payload_round(uint64_t most);
/* Returns, for encode(), where the payload goes, aligned to 8, of at most out->capacity less the header. */
void *sdk_payload_begin(gradcomp_payload *out);
/* Writes the header of `bytes` bytes that lie there, and sets out->bytes. */
void sdk_payload_end(gradcomp_payload *out, const char *name, uint32_t version, const gradcomp_work *work,
                     uint64_t bytes);
/* Checks, for decode(), that there is one payload of each rank, each of this plugin, version, bucket and step, as
 * long as it says and at most `most` bytes. What lies behind the header is still the plugin's to check. */
gradcomp_status sdk_payload_expect(const gradcomp_host *host, const gradcomp_layout *layout, const char *name,
                                   uint32_t version, const gradcomp_work *work, const gradcomp_payload *in, uint32_t n,
                                   uint64_t most, gradcomp_error *err);
/* Returns what is behind the header of a payload that has passed: aligned to 8. */
const void *sdk_payload_body(const gradcomp_payload *in, uint64_t *bytes);

#ifdef __cplusplus
}
#endif
#endif
