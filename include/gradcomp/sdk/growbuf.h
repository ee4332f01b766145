/* Memory of a plugin's that grows to what was needed most: for create(), and for collectives. */
#ifndef GRADCOMP_SDK_GROWBUF_H
#define GRADCOMP_SDK_GROWBUF_H

#include "gradcomp/abi.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Makes sure that *p, of *have bytes (NULL and 0 at first), holds `bytes`; its content is lost when
 * it grows. `who` is for the message. On failure both are as they were. The caller gives *p
 * to host->release() in the end. */
static inline gradcomp_status sdk_growbuf_reserve(const gradcomp_host *host, char **p, size_t *have, size_t bytes,
                                                  const char *who, gradcomp_error *err)
{
	if (bytes <= *have)
		return GRADCOMP_OK;
	char *more = (char *)host->alloc(bytes);
	if (!more)
		return host->fail(err, GRADCOMP_ERR_NOMEM, "%s: no memory for %zu bytes", who, bytes);
	host->release(*p);
	*p = more;
	*have = bytes;
	return GRADCOMP_OK;
}

#ifdef __cplusplus
}
#endif
#endif
