/* Memory of a plugin's that grows to what was needed most. */
#ifndef PLUGINS_COMMON_GROWBUF_H
#define PLUGINS_COMMON_GROWBUF_H

#include "gradcomp/abi.h"

/* Makes sure that *p, of *have bytes, holds `bytes`; its content is lost when it
 * grows. `who` is for the message. */
static inline gradcomp_status growbuf_reserve(const gradcomp_host *host, char **p, size_t *have, size_t bytes,
                                        const char *who, gradcomp_error *err)
{
	if (bytes <= *have)
		return GRADCOMP_OK;
	char *more = host->alloc(bytes);
	if (!more)
		return host->fail(err, GRADCOMP_ERR_NOMEM, "%s: no memory for %zu bytes", who, bytes);
	host->release(*p);
	*p = more;
	*have = bytes;
	return GRADCOMP_OK;
}

#endif
