/* Links for programs that run a collective plugin, or a protocol of their own, on a
 * group themselves. */
#include "job.h"

#include "error.h"

gradcomp_status gradcomp_links_open(gradcomp_group *g, const gradcomp_links **out, gradcomp_error *err)
{
	channel *c;
	gradcomp_status st;
	if (!out)
		return error_set(err, GRADCOMP_ERR_INVALID, "out is NULL");
	*out = NULL;
	if (!g)
		return error_set(err, GRADCOMP_ERR_INVALID, "group is NULL");
	st = group_channel(g, &c, err);
	if (st)
		return st;
	job_count(g->job, 1);
	*out = channel_links(c);
	return GRADCOMP_OK;
}

void gradcomp_links_close(gradcomp_group *g, const gradcomp_links *links)
{
	if (!links)
		return;
	channel_close(links->ctx);
	job_count(g->job, -1);
}
