#include "transport/verbs/verbs_module.h"

#include "base/error.h"
#include "base/module.h"
#include "transport/verbs/fabric.h"

#include <dirent.h>
#include <stdlib.h>
#include <string.h>

#define DEVICES "/sys/class/infiniband"

static int device_there(void)
{
	DIR *dir = opendir(DEVICES);
	int there = 0;
	for (struct dirent *e; dir && !there && (e = readdir(dir));)
		there = e->d_name[0] != '.';
	if (dir)
		closedir(dir);
	return there;
}

static const fabric_ops *verbs_module(const config *c, gradcomp_error *why)
{
	const fabric_ops *f;
	const void *symbol;
	if (!strstr(config_str(c, SET_TRANSPORT_ALLOW), "verbs")) {
		error_set(why, GRADCOMP_ERR_NOTFOUND, "transport.allow=%s", config_str(c, SET_TRANSPORT_ALLOW));
		return NULL;
	}
	if (!device_there()) {
		error_set(why, GRADCOMP_ERR_NOTFOUND, "this machine has no RDMA device (%s)", DEVICES);
		return NULL;
	}
	if (module_symbol(config_str(c, SET_GRADCOMP_PLUGIN_PATH), FABRIC_MODULE, FABRIC_SYMBOL, &symbol, why))
		return NULL;
	f = symbol;
	if (f->version == FABRIC_VERSION && f->struct_size == sizeof *f)
		return f;
	error_set(why, GRADCOMP_ERR_ABI, "%s is of version %u, this library wants %u: install both from one build",
	          FABRIC_MODULE, f->version, FABRIC_VERSION);
	return NULL;
}

void verbs_options(const config *c, transport_options *o, gradcomp_error *why)
{
	const char *device = config_str(c, SET_TRANSPORT_VERBS_DEVICE), *port = strchr(device, ':'),
		   *gid = port ? strchr(port + 1, ':') : NULL;
	o->verbs_named = !config_is_default(c, SET_TRANSPORT_ALLOW);
	o->verbs_device = device;
	o->verbs_gid = gid ? atoi(gid + 1) : -1;
	o->verbs_memory = (size_t)config_int(c, SET_TRANSPORT_VERBS_MEMORY);
	o->fabric = verbs_module(c, why);
	o->verbs_missing = why->text;
}
