#include "gradcomp/gradcomp.h"

const char *gradcomp_version(void)
{
	return GRADCOMP_VERSION_STRING;
}

const char *gradcomp_strerror(gradcomp_status status)
{
	switch (status) {
	case GRADCOMP_OK: return "no error";
	case GRADCOMP_ERR_INVALID: return "wrong argument or value";
	case GRADCOMP_ERR_NOMEM: return "out of memory";
	case GRADCOMP_ERR_NOTFOUND: return "not found";
	case GRADCOMP_ERR_UNSUPPORTED: return "not supported here";
	case GRADCOMP_ERR_ABI: return "not a plugin of this ABI";
	case GRADCOMP_ERR_INSECURE: return "a file that others can write";
	case GRADCOMP_ERR_IO: return "input or output failed";
	case GRADCOMP_ERR_AUTH: return "a peer without the job's secret";
	case GRADCOMP_ERR_MISMATCH: return "ranks disagree";
	case GRADCOMP_ERR_PEER: return "a rank died or left";
	case GRADCOMP_ERR_TIMEOUT: return "a rank did not answer in time";
	case GRADCOMP_ERR_STATE: return "called at the wrong moment";
	case GRADCOMP_ERR_RANGE: return "too large";
	case GRADCOMP_ERR_INTERNAL: return "internal error, please report it";
	}
	return "unknown status";
}
