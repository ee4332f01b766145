/* Sources on NFS servers are in a module, so that the library does not need libnfs. */
#include "config/config.h"
#include "io/source/nfs_module.h"
#include "base/module.h"

static const source_nfs_module *nfs_module(const config *c, gradcomp_error *err)
{
	const void *symbol;
	gradcomp_error why = {0};
	gradcomp_status st = module_symbol(config_str(c, SET_GRADCOMP_PLUGIN_PATH), SOURCE_NFS_MODULE,
	                                   SOURCE_NFS_SYMBOL, &symbol, &why);
	if (st) {
		error_set(err, GRADCOMP_ERR_UNSUPPORTED,
		          "nfs:// needs the module %s: %s; a mounted filesystem can be staged by its path",
		          SOURCE_NFS_MODULE, why.text);
		return NULL;
	}
	const source_nfs_module *m = symbol;
	if (m->version == SOURCE_NFS_VERSION && m->struct_size == sizeof *m && m->ops_size == sizeof(source_ops))
		return m;
	error_set(err, GRADCOMP_ERR_UNSUPPORTED,
	          "%s is of version %u, this library wants %u: install both from one build", SOURCE_NFS_MODULE,
	          m->version, SOURCE_NFS_VERSION);
	return NULL;
}

gradcomp_status source_nfs_open(const struct config *c, const char *spec, source_wait wait, source **out,
                                gradcomp_error *err)
{
	source_url url;
	gradcomp_status st = source_url_parse(spec, &url, err);
	if (st)
		return st;
	const source_nfs_module *m = nfs_module(c, err);
	return m ? m->open(&url, config_float(c, SET_STAGE_SOURCE_TIMEOUT), wait, out, err) : GRADCOMP_ERR_UNSUPPORTED;
}
