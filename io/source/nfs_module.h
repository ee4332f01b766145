/* The module source/nfs.so exports this. */
#ifndef IO_SOURCE_NFS_MODULE_H
#define IO_SOURCE_NFS_MODULE_H

#include "io/source/source_ops.h"
#include "io/source/nfs_url.h"

#define SOURCE_NFS_MODULE "source/nfs.so"
#define SOURCE_NFS_SYMBOL "gradcomp_source_nfs"
#define SOURCE_NFS_VERSION 2

typedef struct source_nfs_module {
	uint32_t version, struct_size, ops_size; /* sizeof(source_ops) */
	/* `timeout`: seconds without an answer after which the server counts as lost. */
	gradcomp_status (*open)(const source_url *url, double timeout, source_wait wait, source **out,
	                        gradcomp_error *err);
} source_nfs_module;

/* Finds and loads it. */
gradcomp_status source_nfs_open(const struct config *c, const char *spec, source_wait wait, source **out,
                                gradcomp_error *err);

#endif
