/* nfs://SERVER[:PORT]/EXPORT/PATH[?KEY=VALUE[&KEY=VALUE...]], checked. */
#ifndef IO_SOURCE_NFS_URL_H
#define IO_SOURCE_NFS_URL_H

#include <limits.h>
#include <stdbool.h>

#include "base/error.h"

#define SOURCE_URL_SCHEME "nfs://"
#define SOURCE_SERVER_MAX 256

typedef struct source_url {
	char server[SOURCE_SERVER_MAX]; /* a name, or an address without brackets */
	char path[PATH_MAX];            /* "/a/b", bytes as they are on the server; "/" alone */
	char name[2 * PATH_MAX];        /* the URL without arguments, always written the same way */
	int version;                    /* 3 or 4 */
	int port;                       /* NFS's port; 0: the usual one (4), asked of the portmapper (3) */
	int mount_port;                 /* the mount service's (3); 0: asked of the portmapper */
	uint32_t uid, gid;              /* sent with every request */
	bool own;                       /* they are the process's, and its other groups go along */
} source_url;

bool source_url_is(const char *spec);
/* INVALID: says which part is wrong, and what would be right. */
gradcomp_status source_url_parse(const char *text, source_url *out, gradcomp_error *err);

#endif
