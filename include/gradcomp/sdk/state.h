/* The head of a saved state: what it is of, so that the state of another
 * compressor or model is refused, in words, before anything of it is used. */
#ifndef GRADCOMP_SDK_STATE_H
#define GRADCOMP_SDK_STATE_H

#include "gradcomp/compressor.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct sdk_state_header {
	char compressor[16];
	uint32_t version, nranks; /* those of the job that saved it: this state goes to any number of ranks */
	uint64_t shapes;          /* digest of all dimensions */
	uint64_t parameters;      /* digest of what the plugin says must be equal */
	uint64_t bytes;           /* behind the head */
} sdk_state_header;

#define SDK_STATE_DIGEST_SEED 14695981039346656037u

/* FNV-1a, a word at a time. */
static inline uint64_t sdk_state_digest_add(uint64_t digest, uint64_t word)
{
	return (digest ^ word) * 1099511628211u;
}

sdk_state_header sdk_state_header_make(const gradcomp_layout *layout, const char *name, uint32_t version,
                                       uint64_t parameters, uint64_t bytes);
/* Writes, for save(), the head, when the buffer holds all; *body is where the rest goes, or NULL when only the
 * length was asked for. */
gradcomp_status sdk_state_header_write(const gradcomp_host *host, const sdk_state_header *head, void *out,
                                       uint64_t capacity, uint64_t *bytes, void **body, gradcomp_error *err);
/* Checks, for load(), that `in` begins with this head, and is as long as it says. */
gradcomp_status sdk_state_header_check(const gradcomp_host *host, const sdk_state_header *want, const void *in,
                                       uint64_t bytes, gradcomp_error *err);

#ifdef __cplusplus
}
#endif
#endif
