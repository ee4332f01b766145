#define _GNU_SOURCE
#include "transport/core/transport_internal.h"

#include "base/error.h"

#include <sys/eventfd.h>
#include <unistd.h>

gradcomp_status failure_open(job_failure *f)
{
	f->fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	return f->fd >= 0 ? GRADCOMP_OK : GRADCOMP_ERR_NOMEM;
}

void failure_close(job_failure *f)
{
	if (f->fd >= 0)
		close(f->fd);
}

void failure_set(job_failure *f)
{
	atomic_store(&f->set, 1);
	eventfd_write(f->fd, 1);
}

gradcomp_status transport_failure(const transport *t, gradcomp_error *err)
{
	if (!transport_failed(t))
		return GRADCOMP_OK;
	return error_set(err, t->failure.error.status, "%s", t->failure.error.text);
}
